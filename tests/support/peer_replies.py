"""Replies of a peer, and their arrival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from spade_coreason.domain.messages import Bounce, ReplyEvent
from spade_coreason.runtime.peers.open_requests import OpenRequests
from spade_coreason.runtime.peers.peer_answers import PeerEvent
from tests.support.wait import TIMEOUT_S

ME = "me@localhost"
PEER = "peer@localhost"
OTHER = "other@localhost"


def reply(
    kind: str,
    data: Mapping[str, Any] | None = None,
    *,
    sender: str = f"{PEER}/agent",
    request_id: str = "r",
    event_id: str = "",
) -> ReplyEvent:
    return ReplyEvent(sender, request_id, kind, event_id or str(uuid4()), data or {})


def markdown_reply(content: str, block_id: str = "", **fields: str) -> ReplyEvent:
    return reply("block.markdown", {"id": block_id or str(uuid4()), "content": content}, **fields)


def chunk_reply(seq: int, text: str, stream_id: str = "s") -> ReplyEvent:
    return reply("stream.chunk", {"stream_id": stream_id, "seq": seq, "chunk": text})


def completed_reply(**fields: str) -> ReplyEvent:
    return reply("request.completed", {"conversation_id": "c", "state": "active"}, **fields)


async def collect_events(
    requests: OpenRequests,
    *arrivals: ReplyEvent | Bounce,
    jid: str = PEER,
    request_id: str = "r",
    timeout_s: float = TIMEOUT_S,
) -> list[PeerEvent]:
    """Send a request, deliver `arrivals` as soon as it has left, and return the events."""
    return [event async for event in requests.events(jid, request_id, timeout_s, lambda: deliver(requests, *arrivals))]


def deliver(requests: OpenRequests, *arrivals: ReplyEvent | Bounce) -> None:
    for arrival in arrivals:
        if isinstance(arrival, Bounce):
            requests.receive_bounce(arrival)
        else:
            requests.receive(arrival)


def texts(events: list[PeerEvent]) -> list[str]:
    return [event.data["content"] for event in events if event.type == "block.markdown"]
