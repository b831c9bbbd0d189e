"""Requests to peers: their lineage, their thread, their number and their length."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any
from uuid import UUID, uuid4
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason import AgentRequest, Peers
from spade_coreason.domain.identifiers import derive_thread
from spade_coreason.domain.messages import Bounce, InboundRequest
from spade_coreason.exceptions import PeerError, RequestTooLongError
from spade_coreason.runtime import PeerOptions
from spade_coreason.runtime.peers.open_requests import OpenRequests
from spade_coreason.runtime.steps.current import CURRENT_REQUEST
from spade_coreason.xmpp.codec.decode import decode
from tests.support.peer_replies import ME, OTHER, PEER, collect_events, completed_reply, deliver, markdown_reply, texts
from tests.support.transports import make_transport


def decode_sent(stanza: str) -> InboundRequest:
    """A request as its addressee reads it."""
    decoded = decode(fromstring(stanza.replace("<message ", f"<message xmlns='jabber:client' from='{ME}/agent' ", 1)))
    assert isinstance(decoded, InboundRequest)
    return decoded


async def send_request(request: AgentRequest | Mapping[str, Any] | str, jid: str = PEER) -> tuple[str, InboundRequest]:
    sent: list[str] = []
    await Peers(ME, OpenRequests(), make_transport(ME, sent.extend), PeerOptions()).tell(jid, request)
    (stanza,) = sent
    return stanza, decode_sent(stanza)


@pytest.mark.parametrize("way", ["ask", "tell"])
async def test_an_overlong_request_is_not_sent(way: str) -> None:
    sent: list[str] = []
    peers = Peers(ME, OpenRequests(), make_transport(ME, sent.extend, 10_000), PeerOptions())
    with pytest.raises(
        RequestTooLongError, match=r"was not sent the request, which has 3\d,\d{3} bytes .* \(limit: 10,000\)"
    ) as error:
        await (peers.ask(PEER, '"' * 5_000 + "<" * 5_000) if way == "ask" else peers.tell(PEER, '"' * 5_000 + "<" * 5_000))
    assert error.value.jid == PEER
    assert sent == []
    await peers.tell(PEER, "x" * 8_500)
    assert len(sent[0].encode()) < 10_000


@pytest.mark.parametrize("own", [ME, f"{ME}/agent", f"{ME.upper()}/elsewhere"])
@pytest.mark.parametrize(
    "request_from",
    [
        lambda peers, jid: peers.ask(jid, "x"),
        lambda peers, jid: peers.tell(jid, "x"),
        lambda peers, jid: anext(peers.stream(jid, "x")),
    ],
    ids=["ask", "tell", "stream"],
)
async def test_an_agent_that_asks_itself_is_refused_and_nothing_is_sent(
    request_from: Callable[[Peers, str], Awaitable[object]], own: str
) -> None:
    sent: list[str] = []
    peers = Peers(ME, OpenRequests(), make_transport(ME, sent.extend), PeerOptions())
    with pytest.raises(PeerError, match="own address, and an agent cannot ask itself") as error:
        await request_from(peers, own)
    assert error.value.jid == own.partition("/")[0]
    assert sent == []


async def test_tell_does_not_wait_and_its_reply_is_dropped() -> None:
    sent: list[str] = []
    requests = OpenRequests()
    await Peers(ME, requests, make_transport(ME, sent.extend), PeerOptions()).tell(PEER, "x")
    request_id = str(decode_sent(sent[0]).request_id)
    deliver(
        requests,
        markdown_reply("y", request_id=request_id),
        completed_reply(request_id=request_id),
        Bounce(PEER, request_id, "gone", ""),
    )
    assert requests.dropped == 3


@pytest.mark.parametrize(
    ("given", "payload"),
    [("a <text>", {"query": "a <text>"}), ({"a": [1, None]}, {"a": [1, None]}), ("", {"query": ""}), ({}, {})],
)
async def test_a_text_is_a_query_and_a_payload_is_itself(given: Mapping[str, Any] | str, payload: Any) -> None:
    stanza, request = await send_request(given, f"{PEER}/agent")
    assert request.payload == payload
    assert fromstring(stanza).get("to") == f"{PEER}/agent"
    assert request.context.parent_request_id is None
    assert request.context.root_request_id == request.request_id


async def test_a_request_leaves_with_its_id_and_without_its_session() -> None:
    asked = AgentRequest(session_id=uuid4(), payload={"a": 1}, metadata={"mine": "yes"})
    stanza, request = await send_request(asked)
    assert request.request_id == asked.request_id
    assert fromstring(stanza).get("id") == str(asked.request_id)
    assert request.metadata == {"mine": "yes"}
    assert str(asked.session_id) not in stanza


SESSIONS = [UUID(int=1), UUID(int=2)]


@pytest.mark.parametrize("resource", ["", "/agent", "/other"])
async def test_the_thread_depends_on_the_calling_conversation_and_the_peer(resource: str) -> None:
    threads: dict[tuple[UUID, str], set[str | None]] = {}
    for session in SESSIONS:
        for jid in (PEER, OTHER):
            asked = AgentRequest(session_id=session, payload={})
            for request in (asked, asked.create_child({}), asked.create_child({}).create_child({})):
                threads.setdefault((session, jid), set()).add((await send_request(request, f"{jid}{resource}"))[1].thread)
    assert threads == {(session, jid): {derive_thread(session, jid)} for session, jid in threads}
    assert len(set.union(*threads.values())) == 4


async def test_a_peer_in_capital_letters_is_the_same_peer() -> None:
    asked = AgentRequest(session_id=SESSIONS[0], payload={})
    assert (await send_request(asked, "Peer@LocalHost"))[1].thread == derive_thread(SESSIONS[0], PEER)


@pytest.mark.parametrize("way", ["text", "payload", "child"])
async def test_a_request_sent_in_a_turn_is_a_child_of_its_request(way: str) -> None:
    root = AgentRequest(session_id=uuid4(), payload={})
    turn = root.create_child({})
    token = CURRENT_REQUEST.set(turn)
    try:
        ways: dict[str, AgentRequest | Mapping[str, Any] | str] = {
            "text": "x",
            "payload": {"query": "x"},
            "child": turn.create_child({"query": "x"}),
        }
        _, request = await send_request(ways[way])
    finally:
        CURRENT_REQUEST.reset(token)
    assert request.payload == {"query": "x"}
    assert (request.context.root_request_id, request.context.parent_request_id) == (root.request_id, turn.request_id)
    assert request.request_id not in (root.request_id, turn.request_id)
    assert request.thread == derive_thread(root.session_id, PEER)


@pytest.mark.parametrize(("last", "sent_stanzas"), [("block.markdown", 2), ("request.completed", 1)])
async def test_a_stream_that_is_closed_is_retracted_unless_its_last_event_has_passed(last: str, sent_stanzas: int) -> None:
    sent: list[str] = []
    requests, request = OpenRequests(), AgentRequest(session_id=uuid4(), payload={})

    def answer(stanzas: list[str]) -> None:
        sent.extend(stanzas)
        where = {"request_id": str(request.request_id)}
        if len(sent) == 1:
            deliver(requests, markdown_reply("x", **where), completed_reply(**where))

    async with aclosing(Peers(ME, requests, make_transport(ME, answer), PeerOptions()).stream(PEER, request)) as events:
        async for event in events:
            if event.type == last:
                break
    assert len(sent) == sent_stanzas
    assert all("retract" in stanza for stanza in sent[1:])
    deliver(requests, completed_reply(request_id=str(request.request_id)))
    assert requests.dropped == 1


async def test_one_request_may_be_asked_of_two_at_once() -> None:
    requests, sent = OpenRequests(), asyncio.Semaphore(0)
    peers = Peers(ME, requests, make_transport(ME, lambda stanzas: sent.release()), PeerOptions())
    request = AgentRequest(session_id=uuid4(), payload={})
    both = asyncio.gather(*(peers.ask(jid, request, 1) for jid in (PEER, OTHER)))
    for _ in (PEER, OTHER):
        await sent.acquire()
    for jid in (OTHER, PEER):
        where = {"sender": jid, "request_id": str(request.request_id)}
        deliver(requests, markdown_reply(f"from {jid}", **where), completed_reply(**where))
    assert [answer.text for answer in await both] == [f"from {PEER}", f"from {OTHER}"]
    assert requests.dropped == 0


async def test_a_request_that_has_no_answer_yet_is_not_asked_of_the_same_peer_again() -> None:
    requests = OpenRequests()
    first = requests.events(PEER, "r", 1, lambda: deliver(requests, markdown_reply("first")))
    await anext(first)
    with pytest.raises(ValueError, match=f"the request r to {PEER} is still open; for a second one use request.create_child()"):
        await collect_events(requests, jid=f"{PEER}/x")
    deliver(requests, completed_reply())
    assert [event.type async for event in first] == ["request.completed"]
    assert texts(await collect_events(requests, markdown_reply("again"), completed_reply())) == ["again"]
