"""Agents of one process exchange messages directly, and nothing tells it from the way over the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic_core import PydanticSerializationError
from spade.behaviour import CyclicBehaviour
from spade.template import Template

from spade_coreason import AgentRequest, PeerAnswer, PeerError, Peers, Response, Session
from spade_coreason.contracts import DataBlock
from spade_coreason.domain.channel_kinds import PROGRAM
from spade_coreason.domain.jid import bare_jid
from spade_coreason.domain.messages import (
    NO_CONTEXT,
    BlockEmitted,
    Completed,
    InboundMessage,
    InboundRequest,
    MalformedRequest,
    ReplyBatch,
    ReplyEvent,
    RequestContext,
    TextEmitted,
)
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError, StoreError
from spade_coreason.runtime import OutboundMessage
from spade_coreason.runtime.channels import encode_reply
from spade_coreason.storage import Commit
from spade_coreason.testing import Policy, RunnerTimings
from spade_coreason.xmpp.codec import decode, read_reply_json
from spade_coreason.xmpp.codec.evidence import ANY_RECEIVER
from spade_coreason.xmpp.local_exchange import LocalExchange
from spade_coreason.xmpp.timings import ConnectionTimings
from spade_coreason.xmpp.transport import XmppTransport, parse_stanza, read_local
from tests.support.errors import ExpectedErrors
from tests.support.hosting import FunctionAgent, OnlineAgent, record_sent, run_agent
from tests.support.profiling import count_calls
from tests.support.servers.server import XmppServer
from tests.support.transports import STANZA_BYTES
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
        case "mirror":
            await response.data({"mirror": request.payload["data"]})
            await response.markdown(repr(request.payload["data"]))
        case "change":
            request.payload["list"].append("by the answerer")
            changing = {"list": request.payload["list"]}
            await response.data(changing)
            changing["list"].append("after it was sent")
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


def nest(levels: int) -> Any:
    """A list of lists within each other."""
    return [nest(levels - 1)] if levels else []


TAGS = "</json>]]><answer xmlns='x'/>&amp;<json xmlns='urn:xmpp:json:0'>['"
STRANGE = {
    "characters that XML forbids": "a\0b\x0b\x1f\x7f\x85\ufffe\uffff",
    "keys of such characters": {"\0": 1, "\ufffe": 2, "a\uffff": 3},
    "keys that become one": {"a\ufffe": 1, "a": 2},
    "lone surrogates": ["\ud800", "\udc00x", "\ud83d" + "\ude00", {"\ud800": 1}],
    "line ends": "a\r\nb\rc\n\u2028",
    "tags": {TAGS: TAGS},
    "what is no number": [float("nan")],
    "an endless number": [float("inf")],
    "a huge number": 10**400,
    "large numbers": [2**63, 10**300, -0.0, 1e-300, 1.0],
    "keys that are no text": {1: "a", None: "b", 2.5: "c"},
    "the same key twice": {1: "a", "1": "b"},
    "values of Python": {"a": (1, 2), "b": b"bytes", "c": {3}, "d": UUID(int=4), "e": datetime(2026, 1, 1, tzinfo=UTC)},
    "what JSON cannot have": [object()],
    "deep": nest(50),
    "too deep": nest(70),
    "far too deep": nest(190),
    "large": "é" * 30_000,
    "large in XML": "<" * 15_000,
    "too large": "é" * 32_500,
    "too large in XML": "<" * 16_200,
}


async def strange_payloads(pair: Pair) -> Any:
    """Payloads that JSON, XML or a server cannot carry, or not as they are."""
    await pair.peers.ask(pair.answerer.jid, "first")  # now it is known to read batches
    found = {}
    for name, data in STRANGE.items():
        try:
            answer = await pair.peers.ask(pair.answerer.jid, {"query": "mirror", "data": data}, timeout=TIMEOUT_S)
            found[name] = describe(pair, answer)
        except (PeerError, PydanticSerializationError) as error:
            found[name] = type(error).__name__, pair.anonymise(str(error))
    assert found["tags"][0] == repr({TAGS: TAGS})
    return found


async def changed_payloads(pair: Pair) -> Any:
    """A payload that the asker and the answerer change once it is on its way, and data that the answerer changes."""
    payload = {"query": "change", "list": ["by the asker"]}
    asking = asyncio.create_task(pair.peers.ask(pair.answerer.jid, payload, timeout=TIMEOUT_S))
    await asyncio.sleep(0)
    assert pair.asker.requests.open_count == 1  # it is on its way, and has not arrived
    payload["list"] += ["too late"]  # type: ignore[operator]
    answer = await asking
    answer.data[0]["data"]["list"].append("by the asker, in the answer")
    conversation = await pair.answerer.repository.list_conversations()
    return payload, [block["data"] for block in answer.data], len(conversation)


SCENARIOS = [single_asks, order_in_a_conversation, repeated_and_taken_back, strange_payloads, changed_payloads]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize(
    "kind", ["prosody", *(pytest.param(kind, marks=pytest.mark.release) for kind in ("ejabberd", "prosody_archive"))]
)
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
            await pair.answerer.runner.mailboxes.wait_until_idle()
            conversations = await pair.answerer.repository.list_conversations()
            stored.append(sorted((row.turns, pair.anonymise(row.owner)) for row in conversations))
    assert results[0] == results[1]
    assert stored[0] == stored[1]
    assert direct.delivered_count > 0


async def test_no_xml_is_parsed_between_the_agents_of_a_process(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_pair(prosody, tmp_path, LocalExchange()) as pair:
        with count_calls() as calls:
            await pair.peers.gather([(pair.answerer.jid, str(number)) for number in range(12)])
        assert calls["read_local"] >= 24
        assert calls["parse_stanza"] == calls["XML"] == 0


class Claiming(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
    """Collects the messages that it claims."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed: list[str] = []

    async def run(self) -> None:
        if (message := await self.receive(timeout=1.0)) is not None:
            self.claimed.append(str(message.sender))


@pytest.mark.parametrize("way", ["direct", "wire"])
async def test_behaviours_of_spade_are_offered_what_agents_say_to_each_other(
    way: str, prosody: XmppServer, tmp_path: Path
) -> None:
    exchange = LocalExchange() if way == "direct" else None
    async with run_pair(prosody, tmp_path, exchange) as pair:
        claiming, elsewhere = Claiming(), Claiming()
        pair.closed.host.add_behaviour(claiming, Template(sender=f"{pair.asker.jid}/agent"))
        pair.answerer.host.add_behaviour(elsewhere, Template(body="something else"))
        asking = asyncio.create_task(pair.peers.ask(pair.closed.jid, "for the behaviour", timeout=TIMEOUT_S))
        await eventually(lambda: claiming.claimed == [f"{pair.asker.jid}/agent"])
        assert (await pair.peers.ask(pair.answerer.jid, "for the agent")).text == "for the agent, after []"
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert pair.closed.gateway.dropped["not admitted"] == 0
        assert elsewhere.claimed == []
    assert exchange is None or exchange.delivered_count >= 3


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


SENDER, RECIPIENT = "sender@localhost/agent", "receiver@localhost"
CONTEXTS = [
    NO_CONTEXT,
    RequestContext(3, "Alice@Example.org/phone", ("A@x", "b@x"), time.time() + 5, True, True),
    RequestContext(2**31, "x" * 3072, tuple(f"{number}@x" for number in range(70))),
    RequestContext(-1, "\0\ud800", ("a\ufffe@x c@x",), time.time() - 5),
    RequestContext(deadline=time.time() + 2**31),
]


def split_time(message: InboundMessage) -> Any:
    """Return a request without what differs by the moment, the text of its event and its deadline; and about that deadline."""
    if not isinstance(message, InboundRequest):
        return message
    deadline = pytest.approx(message.context.deadline, abs=TIMEOUT_S)
    return replace(message, content="", context=message.context._replace(deadline=0)), deadline


def nested(depth: int) -> list[Any]:
    """Return an array of so many levels."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize("thread", [None, "", "t", "a\r\nb\rc\0\ufffe<&>", "\ud83d\ude00", "\0", "x" * 1024, "x" * 1025])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("query", ["q", "\0\ufffe\ud800</json>", float("nan")])
def test_a_request_is_read_without_its_stanza_as_its_stanza_is_read(
    query: Any, context: RequestContext, thread: str | None
) -> None:
    request = AgentRequest(session_id=uuid4(), payload={"query": query}, metadata={"a": [query]})
    transport = XmppTransport("sender@localhost", lambda messages: None, STANZA_BYTES)
    message = transport.encode_request(RECIPIENT, request, thread, context)
    read = read_local(message, ANY_RECEIVER, SENDER)
    assert "content" not in vars(message)
    assert split_time(read) == split_time(decode(parse_stanza(message, SENDER)))
    batched = transport.encode_request(RECIPIENT, request, thread, context, reads_batches=True)
    assert split_time(read_local(batched, ANY_RECEIVER, SENDER)) == split_time(read)


@pytest.mark.parametrize("accepts_batches", [True, False])
@pytest.mark.parametrize("text", ["a", TAGS, "\0\ufffe\ud800", '"&' * 40_000])
def test_a_reply_is_read_without_parsing_its_stanza_as_its_stanza_is_read(text: str, accepts_batches: bool) -> None:
    context = RequestContext(accepts_batches=accepts_batches)
    request = InboundRequest(
        PROGRAM, SENDER, "1", "t</json>", {}, "", context=context, owner="sender@localhost", request_id=uuid4()
    )
    encoder = XmppTransport(RECIPIENT, lambda messages: None, 65_536).make_encoder(request, uuid4())
    block = DataBlock(id=uuid4(), data={"text": text[:1000], text[:10]: [1.5, None]})
    messages = encode_reply(encoder, TextEmitted(text, 1), BlockEmitted(block), Completed("c", "active"))
    for message in messages:
        text_read = read_reply_json(message.content)
        assert text_read is not None
        read = read_local(message, ANY_RECEIVER, "receiver@localhost/agent")
        assert read == decode(parse_stanza(message, "receiver@localhost/agent"))
        assert isinstance(read, ReplyBatch if text_read.startswith("[") else ReplyEvent)


@pytest.mark.parametrize("reads_batches", [True, False])
def test_a_request_may_be_as_deep_as_in_its_stanza(reads_batches: bool) -> None:
    transport = XmppTransport("sender@localhost", lambda messages: None, STANZA_BYTES)
    kinds = set()
    for depth in range(50, 70):
        request = AgentRequest(session_id=uuid4(), payload={"query": nested(depth)})
        message = transport.encode_request(RECIPIENT, request, "t", NO_CONTEXT, reads_batches=reads_batches)
        read = read_local(message, ANY_RECEIVER, SENDER)
        by_wire = decode(parse_stanza(message, SENDER))
        assert isinstance(read, MalformedRequest) is isinstance(by_wire, MalformedRequest)
        kinds.add(type(read))
    assert kinds == {InboundRequest, MalformedRequest}


@pytest.mark.parametrize("data", [nested(70), int("9" * 500)], ids=["too deep", "too many digits"])
def test_a_reply_that_cannot_be_read_is_left_out_as_its_stanza_is(data: Any) -> None:
    request = InboundRequest(PROGRAM, SENDER, "1", "t", {}, "", owner="sender@localhost", request_id=uuid4())
    encoder = XmppTransport(RECIPIENT, lambda messages: None, 65_536).make_encoder(request, uuid4())
    [block, end] = encode_reply(encoder, BlockEmitted(DataBlock(id=uuid4(), data={"x": data})), Completed("c", "active"))
    assert read_local(block, ANY_RECEIVER, SENDER) is None
    assert decode(parse_stanza(block, SENDER)) is None
    assert isinstance(read_local(end, ANY_RECEIVER, SENDER), ReplyEvent)


@pytest.mark.parametrize(
    "make_message",
    [
        lambda transport: transport.encode_retraction(RECIPIENT, "1"),
        lambda transport: transport.encode_notice(RECIPIENT, TAGS),
        lambda transport: OutboundMessage(RECIPIENT, f"<message to='{RECIPIENT}' id='1'><body>hi</body></message>"),
    ],
)
def test_all_else_is_read_from_its_stanza(make_message: Callable[[XmppTransport], OutboundMessage]) -> None:
    message = make_message(XmppTransport("sender@localhost", lambda messages: None, STANZA_BYTES))
    read = read_local(message, ANY_RECEIVER, SENDER)
    assert read_reply_json(message.content) is None
    assert read == decode(parse_stanza(message, SENDER))


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

    def receive_local(self, message: OutboundMessage, sender: str) -> Commit[bool]:
        stanza = parse_stanza(message, sender)
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
