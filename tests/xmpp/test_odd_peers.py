"""Peers that answer what nobody asked, twice, never, with nonsense or without end. Each harms no ask but its own."""

from __future__ import annotations

import asyncio
import json
import logging
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4
from xml.etree.ElementTree import Element

import pytest

from spade_coreason import AgentRequest, PeerAnswer, Response, Session
from spade_coreason.exceptions import AnswerTooLongError, PeerTimeoutError, PeerUnavailableError
from spade_coreason.xmpp.client import AgentClient
from spade_coreason.xmpp.connection.endpoint import ServerEndpoint
from spade_coreason.xmpp.servers.bare_stream import StreamError
from tests.support.hosting import Echo, FunctionAgent, OnlineAgent, container, run_agent
from tests.support.servers.raw_client import RawClient, login_at, open_raw_client
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

MARK = "<answer xmlns='urn:spade-coreason:answer:0'/>"
JSON = "{urn:xmpp:json:0}json"
RETRACT = "{urn:xmpp:message-retract:1}retract"
CHUNK = "x" * 100_000
FIFTY_MEGABYTES = 500
"""The number of chunks."""


class Asked(NamedTuple):
    """A request as the peer got it: the full JID that asked, and the id."""

    sender: str
    request_id: str


class OddPeer:
    """An account without any code of the platform, which sends what the test tells it to."""

    def __init__(self, client: RawClient, jid: str) -> None:
        self.client = client
        self.jid = jid

    async def receive(self, child: str) -> Element:
        """Return the next message with a child of this name."""
        async with asyncio.timeout(TIMEOUT_S):
            while (stanza := await self.client.receive()).tag != "{jabber:client}message" or stanza.find(child) is None:
                pass
        return stanza

    async def request(self) -> Asked:
        """Return the next request."""
        stanza = await self.receive(JSON)
        event = json.loads(stanza.findtext(JSON) or "")
        [event] = event if isinstance(event, list) else [event]
        return Asked(stanza.get("from", ""), event["data"]["request_id"])

    def send(self, to: str, inner: str, **attributes: str) -> None:
        """Send a message."""
        names = "".join(f" {name}='{value}'" for name, value in {"id": str(uuid4()), **attributes}.items())
        self.client.send(f"<message to='{to}'{names}>{inner}</message>")

    def send_event(self, asked: Asked, kind: str, data: Mapping[str, Any], event_id: str | None = None) -> None:
        """Send an event of a reply."""
        fields = {"type": f"ai.coreason.{kind}", "id": event_id or str(uuid4()), "requestid": asked.request_id, "data": data}
        self.send(asked.sender, container(fields) + MARK)

    def answer(self, asked: Asked, text: str, ids: tuple[str | None, str | None] = (None, None)) -> None:
        """Send a whole reply. `ids` are those of its events."""
        self.send_event(asked, "block.markdown", {"content": text}, ids[0])
        self.send_event(asked, "request.completed", {"conversation_id": "c", "state": "active"}, ids[1])


class Exchange(NamedTuple):
    """An agent that asks, its odd peer, a stranger to both, and a neighbour that answers as it should."""

    asker: OnlineAgent
    peer: OddPeer
    mallory: OddPeer
    neighbour: OnlineAgent

    def ask(self, text: str = "hello", timeout_s: float = TIMEOUT_S) -> asyncio.Task[PeerAnswer]:
        """Ask the odd peer."""
        return asyncio.create_task(self.asker.peers.ask(self.peer.jid, text, timeout=timeout_s))

    async def assert_neighbour_answers(self, count: int = 3) -> None:
        """Check that asks of another peer are answered."""
        for number in range(count):
            answer = await self.asker.peers.ask(self.neighbour.jid, f"{number}", timeout=TIMEOUT_S)
            assert answer.text == f"{number}"


@asynccontextmanager
async def open_exchange(server: XmppServer, tmp_path: Path) -> AsyncIterator[Exchange]:
    async with AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(run_agent(Echo(), server, tmp_path)) for _ in range(2)]
        odd = []
        for _ in range(2):
            account = await server.account()
            client = await stack.enter_async_context(open_raw_client(login_at(server, account)))
            client.send("<presence/>")
            odd.append(OddPeer(client, account[0]))
        yield Exchange(agents[0], odd[0], odd[1], agents[1])


async def test_only_the_jid_that_was_asked_answers_and_only_what_is_open(real_server: XmppServer, tmp_path: Path) -> None:
    async with open_exchange(real_server, tmp_path) as exchange:
        asking = exchange.ask()
        asked = await exchange.peer.request()
        exchange.mallory.answer(asked, "forged")
        exchange.mallory.send_event(asked, "request.failed", {"message": "forged"})
        exchange.mallory.send(asked.sender, "<error type='cancel'/>", id=asked.request_id, type="error")
        await eventually(lambda: exchange.asker.requests.dropped == 4)
        assert not asking.done()
        exchange.peer.answer(asked._replace(request_id=str(uuid4())), "an answer to nothing")
        exchange.peer.answer(asked._replace(request_id=""), "an answer to nothing")
        exchange.peer.answer(asked, "true")
        assert (await asking).text == "true"
        assert exchange.asker.requests.dropped == 8
        await exchange.assert_neighbour_answers()


async def test_a_second_answer_is_dropped_and_is_not_that_of_the_next_ask(real_server: XmppServer, tmp_path: Path) -> None:
    async with open_exchange(real_server, tmp_path) as exchange:
        first = exchange.ask("first")
        asked = await exchange.peer.request()
        for _ in range(2):
            exchange.peer.answer(asked, "one", ("a", "b"))
        assert (await first).text == "one"
        exchange.peer.answer(asked, "another", ("c", "d"))
        second = exchange.ask("second")
        again = await exchange.peer.request()
        exchange.peer.answer(asked, "late", ("e", "f"))
        exchange.peer.answer(again, "two", ("a", "b"))  # ids are those of one reply, not of all
        assert (await second).text == "two"
        assert exchange.asker.requests.dropped == 6
        assert [event.type for event in (await first).events] == ["block.markdown", "request.completed"]


@pytest.mark.parametrize("begins", [False, True])
async def test_a_slow_peer_is_named_and_taken_its_request_and_holds_up_nobody(
    real_server: XmppServer, tmp_path: Path, begins: bool
) -> None:
    async with open_exchange(real_server, tmp_path) as exchange:
        asking = exchange.ask(timeout_s=2.0)
        asked = await exchange.peer.request()
        if begins:
            exchange.peer.send_event(asked, "stream.chunk", {"stream_id": "s", "seq": 0, "chunk": "well,"})
        await exchange.assert_neighbour_answers()
        with pytest.raises(PeerTimeoutError) as error:
            await asking
        problem = "did not finish its answer" if begins else "did not answer"
        assert str(error.value).startswith(f"{exchange.peer.jid} {problem} in ")
        retraction = await exchange.peer.receive(RETRACT)
        assert retraction.find(RETRACT).get("id") == asked.request_id  # type: ignore[union-attr]  # found above
        exchange.peer.answer(asked, "too late")
        await eventually(lambda: exchange.asker.requests.dropped == 2)
        assert exchange.asker.requests.open_count == 0


def nonsense(asked: Asked) -> list[str]:
    """Return the insides of messages that look like answers."""

    def event(kind: Any = "ai.coreason.block.markdown", data: Any = None, **other: Any) -> dict[str, Any]:
        return {"type": kind, "id": str(uuid4()), "requestid": asked.request_id, "data": data, **other}

    fragment = {"event_id": "f", "index": 0, "count": 1, "chunk": "{"}
    values: list[Any] = [
        *("", "{", "[", "null", "7", "[" * 100_000, '{"type":"ai.coreason.block.markdown","type":"x"}', "[[[]]]"),
        *([], [None], [7, []], {}, {"type": 7}, {"type": "ai.coreason."}),
        *(event(data=data) for data in [None, 7, [None], "x"]),
        *(event(kind, {}) for kind in [None, 7, [None], "block.markdown", "ai.coreason.fragment", "ai.coreason.unknown"]),
        *(event("ai.coreason.fragment", {**fragment, **odd}) for odd in ({}, {"count": 0}, {"index": -1}, {"index": "0"})),
        *(event("ai.coreason.stream.chunk", data) for data in ({"seq": "x", "stream_id": []}, {"seq": -1, "chunk": {"a": 1}})),
        event("ai.coreason.stream.abort", {"stream_id": {}, "replacement": 7}),
        event("ai.coreason.block.data", {"id": [], "data": None}),
        event("ai.coreason.request.completed", {}, requestid=[asked.request_id]),
        event("ai.coreason.request", {"payload": {"query": "in turn"}}),
        [event(data=7), event(None, {}), {"type": "ai.coreason.request", "id": 7}],
    ]
    return [container(value) for value in values] + ["<json xmlns='urn:xmpp:json:0'><json/></json>"]


async def test_nonsense_is_no_answer_and_the_true_one_counts(real_server: XmppServer, tmp_path: Path) -> None:
    async with open_exchange(real_server, tmp_path) as exchange:
        asking = exchange.ask()
        asked = await exchange.peer.request()
        for inner in nonsense(asked):
            exchange.peer.send(asked.sender, inner + MARK)
            exchange.peer.send(asked.sender, inner)
        await exchange.assert_neighbour_answers()
        exchange.peer.answer(asked, "true")
        answer = await asking
        assert answer.text.endswith("true")
        assert exchange.asker.host.connection.session_count == 1
        assert exchange.asker.requests.open_count == 0


async def test_an_error_from_the_peer_itself_is_a_bounce(real_server: XmppServer, tmp_path: Path) -> None:
    async with open_exchange(real_server, tmp_path) as exchange:
        asking = exchange.ask()
        asked = await exchange.peer.request()
        gone = "<error type='cancel'><gone xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error>"
        exchange.peer.send(asked.sender, gone, id=asked.request_id, type="error")
        with pytest.raises(PeerUnavailableError, match=f"{exchange.peer.jid} is not available: gone"):
            await asking


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param("ejabberd", "chunks", marks=pytest.mark.release),
        ("ejabberd", "fragments"),
        ("ejabberd", "batches"),
        pytest.param("prosody", "chunks", marks=pytest.mark.release),
    ],
)
async def test_an_answer_of_50_megabytes_ends_its_ask_with_the_name_of_the_peer(
    kind: str, form: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with open_exchange(request.getfixturevalue(kind), tmp_path) as exchange:
        asking = exchange.ask()
        asked = await exchange.peer.request()
        other = exchange.ask("other")
        other_asked = await exchange.peer.request()

        async def flood() -> None:
            for number in range(FIFTY_MEGABYTES):
                if form == "fragments":
                    data = {"event_id": "f", "index": number, "count": FIFTY_MEGABYTES, "chunk": CHUNK}
                    exchange.peer.send_event(asked, "fragment", data)
                elif form == "chunks":
                    exchange.peer.send_event(asked, "stream.chunk", {"stream_id": "s", "seq": number, "chunk": CHUNK})
                else:
                    event = {"type": "ai.coreason.block.markdown", "requestid": asked.request_id}
                    events = [{**event, "id": f"{number}.{part}", "data": {"content": CHUNK[:50_000]}} for part in range(2)]
                    exchange.peer.send(asked.sender, container(events) + MARK)
                await exchange.peer.client.drain()
            exchange.peer.answer(asked, "and the end")

        tracemalloc.start()
        try:
            flooding = asyncio.create_task(flood())
            with pytest.raises(AnswerTooLongError) as error:
                await asking
            del asking
            await exchange.assert_neighbour_answers()
            await flooding
            exchange.peer.answer(other_asked, "short")
            assert (await other).text == "short"  # it came behind all of the flood
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert str(error.value).startswith(f"{exchange.peer.jid} sent more than ")
        assert exchange.asker.requests.open_count == 0
        retraction = await exchange.peer.receive(RETRACT)
        assert retraction.find(RETRACT).get("id") == asked.request_id  # type: ignore[union-attr]  # found above
        assert peak < 90_000_000
        assert held < 20_000_000


async def test_an_answer_of_50_megabytes_in_one_stanza_is_refused_by_the_server(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with open_exchange(real_server, tmp_path) as exchange:
        asking = exchange.ask(timeout_s=2.0)
        asked = await exchange.peer.request()

        async def send_all() -> None:
            exchange.peer.client.send(f"<message to='{asked.sender}'><json xmlns='urn:xmpp:json:0'>")
            for _ in range(FIFTY_MEGABYTES):
                exchange.peer.client.send(CHUNK)
                await exchange.peer.client.drain()
            while True:
                await exchange.peer.client.receive()

        with pytest.raises((StreamError, ConnectionError)):
            await send_all()
        await exchange.assert_neighbour_answers()
        with pytest.raises(PeerTimeoutError, match=exchange.peer.jid):
            await asking


async def test_a_peer_that_floods_is_named_in_the_log_and_holds_up_nobody(
    real_server: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_exchange(real_server, tmp_path) as exchange:
        asking = exchange.ask()
        asked = await exchange.peer.request()
        for _ in range(1500):
            exchange.peer.answer(asked._replace(request_id=str(uuid4())), "of nothing")
        await exchange.assert_neighbour_answers()
        exchange.peer.answer(asked, "true")
        assert (await asking).text == "true"
        await eventually(lambda: exchange.asker.requests.dropped == 3000)
    named = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text for text in named if text.startswith(f"{exchange.peer.jid} sent more than 1000 events")] != []
    assert len(named) == 1


async def test_two_senders_with_one_request_id_get_their_own_answers(real_server: XmppServer, tmp_path: Path) -> None:
    release, runs = asyncio.Event(), list[str]()

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        runs.append(session.identity.id)
        if len(runs) == 1:
            await release.wait()
        await response.markdown(f"for {session.identity.id}, as {len(await session.history())}")

    async with (
        run_agent(FunctionAgent(assist), real_server, tmp_path) as agent,
        AsyncExitStack() as stack,
    ):
        alice, mallory = [
            await stack.enter_async_context(
                AgentClient(*account, ServerEndpoint(real_server.host, real_server.port, ca_file=real_server.ca_file))
            )
            for account in [await real_server.account() for _ in range(2)]
        ]
        request = AgentRequest(session_id=uuid4(), payload={"query": "hello"})
        first = asyncio.create_task(alice.ask(agent.jid, request, timeout=TIMEOUT_S))
        await eventually(lambda: len(runs) == 1)
        stolen = await mallory.ask(agent.jid, request, timeout=TIMEOUT_S)
        mallory.cancel(agent.jid, request)
        repeated = await mallory.ask(agent.jid, request, timeout=TIMEOUT_S)
        release.set()
        assert runs[1:] != []
        assert {answer.text.partition(",")[0] for answer in (stolen, repeated)} == {f"for {runs[1]}"}
        assert (await first).text == f"for {runs[0]}, as 0"
        assert runs[0] not in runs[1:]
