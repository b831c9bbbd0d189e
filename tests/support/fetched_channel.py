"""A channel whose replies are fetched: a program of this process asks by a call, and reads the events of the reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

from spade_coreason.domain.channel_kinds import PROGRAM
from spade_coreason.domain.jid import bare_jid
from spade_coreason.domain.messages import (
    BlockEmitted,
    Completed,
    Failed,
    InboundRequest,
    Refused,
    TurnEvent,
    derive_part_id,
)
from spade_coreason.runtime import PLAIN_PRESENTATION, Channel, ChannelGateway, OutboundMessage, PresentationOptions
from spade_coreason.runtime.channels import ReplyEncoder

NAME = "fetched"
Event = dict[str, Any]


class JsonEncoder(ReplyEncoder):
    """Each event as a line of JSON, with the address that it goes to and an id by which a repeated one is known."""

    shows_typing = has_live_messages = shows_files = batches = shows_thoughts = shows_steps = False
    follows_streams = True

    def __init__(self, incoming: InboundRequest, key: UUID) -> None:
        self.key, self.recipient, self._number = str(key), incoming.sender, 0
        self._uuid, self._request_id = key, str(incoming.request_id)

    def encode(self, event: TurnEvent) -> list[str]:
        self._number += 1
        fields = event.block.dump() if isinstance(event, BlockEmitted) else asdict(event)
        event_id = derive_part_id(self._uuid, self._number)
        about = {"to": self.recipient, "request": self._request_id, "id": event_id, "type": type(event).__name__}
        return [json.dumps(about | fields, default=str)]

    def readdress(self, content: str, recipient: str) -> str:
        return json.dumps(json.loads(content) | {"to": recipient})


class JsonChannel(Channel):
    """What channels of JSON events share."""

    def make_encoder(
        self, incoming: InboundRequest, key: UUID, options: PresentationOptions = PLAIN_PRESENTATION
    ) -> ReplyEncoder:
        return JsonEncoder(incoming, key)

    def load_message(self, content: str) -> OutboundMessage:
        return OutboundMessage(json.loads(content)["to"], content)


class FetchedChannel(JsonChannel):
    """The channel of one agent. `ask` and `fetch` give the events of a reply up to its end."""

    def __init__(self) -> None:
        self._readers: WeakValueDictionary[str, asyncio.Queue[Event]] = WeakValueDictionary()
        self._gateway: ChannelGateway | None = None

    @property
    def is_open(self) -> bool:
        """True while its agent runs."""
        return self._gateway is not None

    async def open(self, gateway: ChannelGateway) -> None:
        self._gateway = gateway

    async def close(self) -> None:
        self._gateway = None

    def send(self, messages: Sequence[OutboundMessage]) -> None:
        for message in messages:
            if (reader := self._readers.get(message.recipient)) is not None:
                reader.put_nowait(json.loads(message.content))
            message.acknowledge()  # whoever has gone can fetch it

    async def ask(self, sender: str, query: str, request_id: UUID, thread: str | None = None) -> AsyncIterator[Event]:
        """Ask as `sender` (a bare JID)."""
        request = _build_request(sender, query, request_id, thread)
        assert self._gateway is not None
        events = self._open_reader(request.sender)
        self._gateway.receive(request, channel=NAME)
        async for event in _read(events):
            yield event

    async def fetch(self, sender: str, request_id: UUID) -> AsyncIterator[Event]:
        """Read the reply to a request of before. There are no events if the agent does not know it."""
        request = _build_request(sender, "", request_id, None)
        assert self._gateway is not None
        events = self._open_reader(request.sender)
        if await self._gateway.repeat_reply(request, channel=NAME):
            async for event in _read(events):
                yield event

    def _open_reader(self, address: str) -> asyncio.Queue[Event]:
        reader = self._readers[address] = asyncio.Queue()
        return reader


async def _read(events: asyncio.Queue[Event]) -> AsyncIterator[Event]:
    while (event := await events.get())["type"] not in (Completed.__name__, Failed.__name__, Refused.__name__):
        yield event
    yield event


def texts_of(events: Sequence[Event]) -> list[str]:
    """Return the texts among events, and the pieces of streams."""
    return [text for event in events if (text := event.get("content", event.get("chunk"))) is not None]


def _build_request(sender: str, query: str, request_id: UUID, thread: str | None) -> InboundRequest:
    address = f"{bare_jid(sender)}/{uuid4()}"
    return InboundRequest(
        PROGRAM, address, "", thread, {"query": query}, f"{thread}\n{query}", owner=sender, request_id=request_id
    )
