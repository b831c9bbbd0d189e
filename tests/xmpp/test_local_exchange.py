"""Agents of one process exchange messages directly, and nothing tells it from the way over the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree.ElementTree import Element

import pytest

from spade_coreason import AgentRequest, PeerAnswer, PeerError, Peers, Response, Session
from spade_coreason.domain.jid import bare_jid
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError, StoreError
from spade_coreason.runtime import OutboundMessage
from spade_coreason.storage import Commit
from spade_coreason.testing import Policy, RunnerTimings
from spade_coreason.xmpp.local_exchange import LocalExchange
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.errors import ExpectedErrors
from tests.support.hosting import FunctionAgent, OnlineAgent, record_sent, run_agent
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually


class Pair:
    """Two agents of one process, one of which asks the other; a third agent accepts nobody."""

    def __init__(
        self, asker: OnlineAgent, answerer: OnlineAgent, closed: OnlineAgent, waiting: asyncio.Event, cancelled: list[str]
    ) -> None:
        self.asker, self.answerer, self.closed = asker, answerer, closed
        self.waiting, self.cancelled = waiting, cancelled
        self.session = uuid4()

    @property
    def peers(self) -> Peers:
        return self.asker.peers

    def anonymise(self, text: str) -> str:
        """Replace the names of the accounts, which are new in each test."""
        for name in ("asker", "answerer", "closed"):
            text = text.replace(getattr(self, name).jid, name)
        return text


async def answer(request: AgentRequest, session: Session, response: Response) -> None:
    query = request.payload["query"]
    history = [turn.input["query"] for turn in await session.history(100) if isinstance(turn.input, dict)]
    match query.split()[0]:
        case "stream":
            stream = await response.create_stream("title")
            for piece in ("one ", "two ", "three"):
                await stream.write(piece)
        case "data":
            await response.data({"who": session.identity.role, "hops": request.metadata["hops"], "history": history})
        case "long":
            await response.markdown("é<&> " * 40_000)
        case "error":
            await response.error("No.", {"secret": 1})
        case _:
            await response.markdown(f"{query}, after {history}")


@asynccontextmanager
async def run_pair(server: XmppServer, tmp_path: Path, exchange: LocalExchange | None, **options: Any) -> AsyncIterator[Pair]:
    is_waiting, cancelled = asyncio.Event(), list[str]()

    async def waiting(request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"].startswith("wait"):
            is_waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(request.payload["query"])
        await answer(request, session, response)

    async with AsyncExitStack() as stack:
        agents = [
            await stack.enter_async_context(
                run_agent(FunctionAgent(assist), server, tmp_path, access=access, local_exchange=exchange, **options)
            )
            for assist, access in ((answer, None), (waiting, None), (answer, ["x@y.z"]))
        ]
        await eventually(lambda: all(online.host.is_reachable for online in agents))
        asker, answerer, closed = agents
        yield Pair(asker, answerer, closed, is_waiting, cancelled)


def describe(pair: Pair, found: PeerAnswer | PeerError) -> Any:
    if isinstance(found, PeerError):
        return type(found).__name__, pair.anonymise(str(found))
    events = [event.type for event in found.events]
    return found.text, [data["data"] for data in found.data], events, pair.anonymise(found.jid)


async def single_asks(pair: Pair) -> Any:
    """One question of each kind, and those that fail."""
    jid, found = pair.answerer.jid, []
    for query in ("hello", "stream", "data", "long", "error", "hello again"):
        request = AgentRequest(session_id=pair.session, payload={"query": query})
        found += await pair.peers.gather([(jid, request)])
    found += await pair.peers.gather([(pair.closed.jid, "hello"), (f"{jid}/nowhere", "hello")], timeout=TIMEOUT_S)
    return [describe(pair, one) for one in found]


async def order_in_a_conversation(pair: Pair) -> Any:
    """Many questions at once in one conversation."""
    requests = [AgentRequest(session_id=pair.session, payload={"query": str(number)}) for number in range(60)]
    found = await pair.peers.gather([(pair.answerer.jid, request) for request in requests], limit=60)
    return [describe(pair, one)[0] for one in found]


async def repeated_and_taken_back(pair: Pair) -> Any:
    """The same request twice, its id for another one, and a request that is cancelled."""
    request = AgentRequest(session_id=uuid4(), payload={"query": "once"})
    found = [await pair.peers.ask(pair.answerer.jid, request) for _ in range(2)]
    other = request.model_copy(update={"payload": {"query": "another"}})
    with pytest.raises(PeerRefusedError) as refused:
        await pair.peers.ask(pair.answerer.jid, other)
    asking = asyncio.create_task(pair.peers.ask(pair.answerer.jid, "wait", timeout=TIMEOUT_S))
    await pair.waiting.wait()
    asking.cancel()
    await eventually(lambda: pair.cancelled == ["wait"])
    return [describe(pair, one)[:2] for one in found], pair.anonymise(str(refused.value)), pair.cancelled


SCENARIOS = [single_asks, order_in_a_conversation, repeated_and_taken_back]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("kind", ["prosody", "ejabberd", "prosody_archive"])
async def test_both_ways_give_the_same(
    kind: str, scenario: Callable[[Pair], Awaitable[Any]], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: XmppServer = request.getfixturevalue(kind)
    direct = LocalExchange()
    results, stored = [], []
    for number, exchange in enumerate((direct, None)):
        directory = tmp_path / str(number)
        directory.mkdir()
        async with run_pair(server, directory, exchange) as pair:
            results.append(await scenario(pair))
            await pair.answerer.runner.wait_until_idle()
            conversations = await pair.answerer.repository.list_conversations()
            stored.append(sorted((row.turns, pair.anonymise(row.owner)) for row in conversations))
    assert results[0] == results[1]
    assert stored[0] == stored[1]
    assert direct.delivered_count > 0


async def test_requests_of_one_moment_arrive_as_one_once_the_answerer_has_shown_that_it_reads_them(
    prosody: XmppServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, received = LocalExchange(), list[Element]()
    async with run_pair(prosody, tmp_path, exchange) as pair:
        jid, receive = pair.answerer.jid, pair.answerer.host.receive_local
        await pair.peers.ask(jid, "first")

        def record(stanza: Element) -> Any:
            received.append(stanza)
            return receive(stanza)

        monkeypatch.setattr(pair.answerer.host, "receive_local", record)
        before = exchange.delivered_count
        answers = await pair.peers.gather([(jid, str(number)) for number in range(12)], limit=12)
        assert [answer.text.split(",")[0] for answer in answers if isinstance(answer, PeerAnswer)] == [
            str(number) for number in range(12)
        ]
        assert len(received) == 1
        assert exchange.delivered_count >= before + 24  # 12 requests, and their answers


@pytest.mark.parametrize("kind", ["prosody", "ejabberd"])
async def test_a_message_to_an_agent_that_is_away_takes_the_wire_and_later_ones_stay_behind_it(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: XmppServer = request.getfixturevalue(kind)
    exchange = LocalExchange()
    async with run_pair(server, tmp_path, exchange) as pair:
        await pair.answerer.host.stop()
        before = exchange.delivered_count
        asking = asyncio.create_task(pair.peers.ask(pair.answerer.jid, "while it is away", timeout=TIMEOUT_S))
        await pair.asker.host.connection.wait_until_acknowledged(TIMEOUT_S)
        assert exchange.delivered_count == before
        await pair.answerer.database.close()
        await pair.answerer.start()
        assert (await asking).text.startswith("while it is away")
        await eventually(lambda: pair.answerer.host.is_reachable)
        before = exchange.delivered_count
        assert (await pair.peers.ask(pair.answerer.jid, "now")).text.startswith("now")
        assert exchange.delivered_count > before


async def test_a_message_that_cannot_be_stored_comes_again_over_the_server(
    prosody: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("database or disk is full", "cannot store received messages")
    exchange, timings = LocalExchange(), ConnectionTimings(renewal_delay_s=0.3)
    policy = replace(Policy(), timings=RunnerTimings(retry_s=0.3))
    async with run_pair(prosody, tmp_path, exchange, policy=policy, timings=timings) as pair:
        query = "long " + "x" * 40_000
        await set_max_pages(pair.answerer, 1)  # no smaller than it is
        with pytest.raises(PeerFailedError, match="I cannot store anything at the moment") as error:
            await pair.peers.ask(pair.answerer.jid, query, timeout=TIMEOUT_S)
        assert error.value.code == 503
        await eventually(lambda: pair.answerer.host.connection.session_count >= 2)
        await set_max_pages(pair.answerer, 100_000)
        await eventually(lambda: pair.answerer.runner.metrics.snapshot().answers > 0)


class Station:
    """An agent of this process that stores nothing, and notes which way messages take."""

    is_reachable = True

    def __init__(self, name: str) -> None:
        self.full_jid = f"{name}@localhost/agent"
        self.received: list[str | None] = []
        self.sent_by_server: list[OutboundMessage] = []
        self.commits: list[Commit[bool]] = []
        self.unreadable_id: str | None = None
        """The id of the message that it fails to handle."""

    def receive_local(self, stanza: Element) -> Commit[bool]:
        if stanza.get("id") == self.unreadable_id:
            raise ValueError("unreadable")
        self.received.append(stanza.get("id"))
        self.commits.append(Commit[bool]())
        return self.commits[-1]

    def send_by_server(self, stanzas: Sequence[OutboundMessage]) -> bool:
        self.sent_by_server += stanzas
        return False


def make_stations() -> tuple[LocalExchange, Station, Station]:
    exchange, sender, receiver = LocalExchange(), Station("sender"), Station("receiver")
    for station in (sender, receiver):
        exchange.add(station, bare_jid(station.full_jid))
    return exchange, sender, receiver


def make_messages(count: int) -> list[OutboundMessage]:
    return [
        OutboundMessage("receiver@localhost", f"<message to='receiver@localhost' id='{number}'/>") for number in range(count)
    ]


async def test_a_message_that_cannot_be_handled_stops_no_other_and_is_acknowledged(expected_errors: ExpectedErrors) -> None:
    expected_errors("receiver@localhost/agent: cannot handle a message from sender@localhost/agent: ValueError: unreadable")
    exchange, sender, receiver = make_stations()
    messages, receiver.unreadable_id = make_messages(200), "1"
    exchange.send(sender, messages[:-1])
    await eventually(lambda: "198" in receiver.received)
    exchange.send(sender, messages[-1:])
    await eventually(lambda: "199" in receiver.received)
    assert receiver.received == [str(number) for number in range(200) if number != 1]
    for commit in receiver.commits:
        commit.resolve(True)
    assert all(message.is_acknowledged for message in messages)
    assert sender.sent_by_server == []


@pytest.mark.parametrize("way_back", ["it cannot be stored", "the agent goes away"])
async def test_what_has_to_go_over_the_server_after_all_is_not_overtaken(way_back: str) -> None:
    exchange, sender, receiver = make_stations()
    messages = make_messages(3)
    exchange.send(sender, messages[:1])
    receiver.is_reachable = way_back == "it cannot be stored"
    await asyncio.sleep(0)
    for commit in receiver.commits:
        commit.resolve(StoreError("full"))
    receiver.is_reachable = True
    exchange.send(sender, messages[1:2])
    assert sender.sent_by_server == messages[:2]
    for message in sender.sent_by_server:
        message.acknowledge()  # the server has them
    exchange.send(sender, messages[2:])
    await asyncio.sleep(0)
    assert sender.sent_by_server == messages[:2]
    assert receiver.received[-1] == "2"


async def set_max_pages(online: OnlineAgent, pages: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await online.database.write(lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}"))
                return
            except StoreError:  # it was in one transaction with what cannot be written
                await asyncio.sleep(0.01)


async def test_one_process_with_wire_configured_exchanges_over_the_server(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_pair(prosody, tmp_path, None) as pair:
        sent = record_sent(pair.asker)
        assert (await pair.peers.ask(pair.answerer.jid, "hello")).text.startswith("hello")
        assert any("ai.coreason.request" in data for data in sent)
