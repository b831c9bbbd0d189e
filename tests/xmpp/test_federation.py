"""Agents on two Prosody servers that federate: each ask ends as it does between agents of one server."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from spade_coreason import AgentDefinition, AgentRequest, PeerAnswer, PeerError, Peers, Response, Retry, Session
from spade_coreason.exceptions import (
    ApprovalRefusedError,
    PeerFailedError,
    PeerRefusedError,
    PeerTimeoutError,
    PeerUnavailableError,
)
from spade_coreason.testing import ApprovalPolicy
from tests.support.hosting import UNLIMITED, Echo, OnlineAgent, Tunnel, record_sent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.federation import EAST, NOWHERE, WEST, federate, find_s2s_addresses
from tests.support.servers.prosody import installed
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

Servers = tuple[XmppServer, XmppServer]


class Answerer:
    """Answers as the first word of the query says, and records its runs."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("answerer")
        self.requests: list[AgentRequest] = []
        self.cancelled: list[str] = []
        self.may_answer = asyncio.Event()

    @property
    def runs(self) -> Counter[UUID]:
        """The number of runs of each request."""
        return Counter(request.request_id for request in self.requests)

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        self.requests.append(request)
        query = request.payload["query"]
        match query.split()[0]:
            case "stream":
                stream = await response.create_stream("numbers")
                for piece in ("one ", "two ", "three"):
                    await stream.write(piece)
            case "data":
                await response.data({"hops": request.metadata["hops"], "sender": request.metadata["sender"]})
            case "fail":
                await response.error("out of paper")
            case "wait":
                try:
                    await self.may_answer.wait()
                except asyncio.CancelledError:
                    self.cancelled.append(query)
                    raise
        await response.markdown(f"{query}, run {self.runs[request.request_id]}")


@dataclass(frozen=True)
class Pair:
    """An agent that asks, and one on the other server that answers."""

    asker: OnlineAgent
    online: OnlineAgent
    answerer: Answerer

    @property
    def jid(self) -> str:
        return self.online.jid

    @property
    def peers(self) -> Peers:
        return self.asker.peers

    async def ask(self, request: AgentRequest | str, timeout: float = TIMEOUT_S) -> PeerAnswer | PeerError:
        """Ask, and return the answer or how the ask failed."""
        try:
            return await self.peers.ask(self.jid, request, timeout)
        except PeerError as error:
            return error


@asynccontextmanager
async def run_pair(asking: XmppServer, answering: XmppServer, tmp_path: Path) -> AsyncIterator[Pair]:
    """Run an agent that asks on one server, and one that answers on the other."""
    answerer = Answerer()
    async with (
        run_agent(Echo(), asking, tmp_path) as asker,
        run_agent(answerer, answering, tmp_path, access=[asking.domain]) as online,
    ):
        yield Pair(asker, online, answerer)


def has_run(answerer: Answerer, count: int) -> bool:
    """Return True if an agent has begun so many requests."""
    return len(answerer.requests) >= count


def ask_for(query: str) -> AgentRequest:
    """Make a request in a conversation of its own."""
    return AgentRequest(session_id=uuid4(), payload={"query": query})


@pytest.fixture
def start_servers(tmp_path: Path) -> Iterator[Callable[[Servers], Servers]]:
    """Start two servers for this test alone, which it may stop."""
    require("Prosody", installed())
    with ExitStack() as stack:

        def start(servers: Servers) -> Servers:
            for server in servers:
                stack.enter_context(server)
            return servers

        yield start


@pytest.mark.parametrize("asker", [WEST, EAST])
async def test_agents_of_two_servers_answer_stream_and_fail(asker: str, federation: Servers, tmp_path: Path) -> None:
    asking, answering = federation if asker == WEST else reversed(federation)
    async with run_pair(asking, answering, tmp_path) as pair:
        answer = await pair.peers.ask(pair.jid, "hello", TIMEOUT_S)
        assert (answer.text, answer.jid) == ("hello, run 1", pair.jid)
        events = [event async for event in pair.peers.stream(pair.jid, "stream", TIMEOUT_S)]
        assert events[-1].type == "request.completed"
        assert "".join(event.data["chunk"] for event in events if event.type == "stream.chunk") == "one two three"
        [data] = (await pair.peers.ask(pair.jid, "data", TIMEOUT_S)).data
        assert data["data"] == {"hops": 1, "sender": f"{pair.asker.jid}/agent"}
        with pytest.raises(PeerFailedError, match="out of paper"):
            await pair.peers.ask(pair.jid, "fail", TIMEOUT_S)
        asked = [ask_for(f"question {number}") for number in range(40)]
        found = await pair.peers.gather([(pair.jid, request) for request in asked], TIMEOUT_S, limit=40)
        assert [str(answer) for answer in found] == [f"question {number}, run 1" for number in range(40)]
        assert pair.asker.requests.open_count == 0


async def test_access_names_the_other_domain_or_one_of_its_agents(federation: Servers, tmp_path: Path) -> None:
    west, east = federation
    async with run_agent(Echo(), west, tmp_path) as asker, run_agent(Echo(), west, tmp_path) as other:
        closed, for_one = Echo(), Echo()
        async with run_agent(closed, east, tmp_path) as stranger:
            asks = [(stranger.jid, query) for query in ("let me in", "please")]
            for _ in range(2):
                for found in await asker.peers.gather(asks, TIMEOUT_S):
                    assert isinstance(found, PeerRefusedError)
                    assert "refuses: You don't have access to me yet." in str(found)
                    assert found.jid == stranger.jid
        assert closed.requests == []
        async with run_agent(for_one, east, tmp_path, access=[asker.jid]) as friend:
            assert (await asker.peers.ask(friend.jid, "hello", TIMEOUT_S)).text == "hello"
            with pytest.raises(PeerRefusedError):
                await other.peers.ask(friend.jid, "hello", TIMEOUT_S)
        assert len(for_one.requests) == 1


async def test_an_unknown_agent_and_an_unknown_domain_are_unavailable(federation: Servers, tmp_path: Path) -> None:
    async with run_agent(Echo(), federation[0], tmp_path) as asker:
        for jid in (f"nobody@{EAST}", f"somebody@{NOWHERE}"):
            with pytest.raises(PeerUnavailableError) as error:
                await asker.peers.ask(jid, "hello", TIMEOUT_S)
            assert error.value.jid == jid
        assert asker.requests.open_count == 0


@pytest.mark.servers
async def test_a_server_with_a_certificate_of_an_unknown_authority_is_unavailable(
    start_servers: Callable[[Servers], Servers], tmp_path: Path
) -> None:
    servers = federate(tmp_path, *find_s2s_addresses())
    (tmp_path / "authorities.pem").write_bytes(servers[0].ca_file.read_bytes())  # not that of the other server
    async with run_pair(*start_servers(servers), tmp_path) as pair:
        assert isinstance(await pair.ask("hello"), PeerUnavailableError)
        assert pair.answerer.requests == []


async def test_cancellation_and_the_end_of_the_time_reach_the_peer(federation: Servers, tmp_path: Path) -> None:
    async with run_pair(*federation, tmp_path) as pair:
        await pair.peers.ask(pair.jid, "hello", TIMEOUT_S)  # the servers are connected
        asking = asyncio.create_task(pair.peers.ask(pair.jid, "wait for me", TIMEOUT_S))
        await eventually(partial(has_run, pair.answerer, 2))
        assert 0 < pair.answerer.requests[-1].metadata["deadline"] - time.time() <= TIMEOUT_S
        asking.cancel()
        await eventually(lambda: pair.answerer.cancelled == ["wait for me"])
        with pytest.raises(PeerTimeoutError):
            await pair.peers.ask(pair.jid, ask_for("wait too long"), 0.5)
        await eventually(lambda: pair.answerer.cancelled == ["wait for me", "wait too long"])
        await eventually(lambda: not pair.online.runner.mailboxes.busy_count)


async def test_the_same_request_runs_once_and_gets_the_same_answer(federation: Servers, tmp_path: Path) -> None:
    async with run_pair(*federation, tmp_path) as pair:
        request = ask_for("once")
        first = await pair.peers.ask(pair.jid, request, TIMEOUT_S)
        second = await pair.peers.ask(pair.jid, request, TIMEOUT_S)
        assert (first.text, second.text) == ("once, run 1", "once, run 1")
        with pytest.raises(PeerRefusedError, match="This request id was used for another request before"):
            await pair.peers.ask(pair.jid, request.model_copy(update={"payload": {"query": "another"}}), TIMEOUT_S)
        assert pair.answerer.runs == {request.request_id: 1}


class Relay:
    """Asks the next agent, and passes its answer on."""

    def __init__(self, peers: Peers, to: str) -> None:
        self.manifest = AgentDefinition.simple("relay")
        self._peers = peers
        self._to = to

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown((await self._peers.ask(self._to, "who asks?", TIMEOUT_S)).text)


class Witness:
    """Answers with the person whose request led to it."""

    manifest = AgentDefinition.simple("witness")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown(request.metadata.get("root_sender") or "an agent")


@pytest.mark.parametrize(("west_trusts", "east_trusts"), [(True, True), (True, False), (False, True)])
async def test_a_person_is_named_only_if_both_sides_trust_the_other_domain(
    west_trusts: bool, east_trusts: bool, federation: Servers, tmp_path: Path
) -> None:
    west, east = federation
    trusted_by_west, trusted_by_east = [EAST] if west_trusts else [], [WEST] if east_trusts else []
    async with (
        run_agent(Witness(), east, tmp_path, access=[WEST], trusted_domains=trusted_by_east) as witness,
        run_agent(lambda peers: Relay(peers, witness.jid), west, tmp_path, trusted_domains=trusted_by_west) as relay,
        StockClient(*await west.account(), west) as alice,
    ):
        expected = alice.jid if west_trusts and east_trusts else "an agent"
        assert await alice.ask("go", relay.jid) == expected


class Vault:
    """Pays when it is approved, and says why nobody may approve it."""

    manifest = AgentDefinition.simple("vault")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        try:
            await session.run_approved("pay", str, 5)
        except ApprovalRefusedError as error:
            await response.markdown(error.problem)


@pytest.mark.parametrize(("west_trusts", "east_trusts"), [(True, True), (True, False), (False, True)])
async def test_an_approver_does_not_decide_what_they_ask_for_through_an_agent_of_another_platform(
    west_trusts: bool, east_trusts: bool, federation: Servers, tmp_path: Path
) -> None:
    west, east = federation
    account = await west.account()
    policy = replace(UNLIMITED, approvals=ApprovalPolicy(operators=(account[0],)))
    trusted_by_west, trusted_by_east = [EAST] if west_trusts else [], [WEST] if east_trusts else []
    async with (
        run_agent(Vault(), east, tmp_path, access=[WEST], policy=policy, trusted_domains=trusted_by_east) as vault,
        run_agent(lambda peers: Relay(peers, vault.jid), west, tmp_path, trusted_domains=trusted_by_west) as relay,
        StockClient(*account, west) as alice,
    ):
        is_known = west_trusts and east_trusts
        expected = f"no one but {alice.jid} may approve this" if is_known else "it is not known who asks"
        assert expected in await alice.ask("go", relay.jid)


@pytest.mark.servers
@pytest.mark.parametrize("missing", ["the agent", "the server"])
async def test_a_bounce_of_several_requests_in_one_message_fails_each_of_them(
    missing: str, start_servers: Callable[[Servers], Servers], tmp_path: Path
) -> None:
    west, east = start_servers(federate(tmp_path, *find_s2s_addresses(), offline=False))
    async with run_pair(west, east, tmp_path) as pair:
        await pair.peers.ask(pair.jid, "stream", TIMEOUT_S)
        assert pair.asker.requests.reads_batches(pair.jid)
        if missing == "the agent":
            await pair.online.host.stop()
        else:
            await asyncio.to_thread(east.stop)
        sent = record_sent(pair.asker)
        asks = [(pair.jid, ask_for(f"question {number}")) for number in range(8)]
        found = await pair.peers.gather(asks, TIMEOUT_S)
        assert {(type(error), error.jid) for error in found} == {(PeerUnavailableError, pair.jid)}
        assert sum(data.count("<message ") for data in sent) == 1
        assert pair.asker.requests.open_count == 0
        assert len(pair.answerer.requests) == 1
        if missing == "the server":
            await asyncio.to_thread(east.start)
            await eventually(lambda: pair.online.host.is_reachable)
        else:
            await pair.online.database.close()
            await pair.online.start()
        assert [str(answer) for answer in await pair.peers.gather(asks, TIMEOUT_S, retry=Retry(attempts=100, factor=1))] == [
            f"question {number}, run 1" for number in range(8)
        ]


async def assert_ends(pair: Pair, asked: list[AgentRequest], found: list[PeerAnswer | PeerError]) -> None:
    """Check that each ask ended with its answer or the right exception, and that a repeat gets the answer of the one run."""
    for request, end in zip(asked, found, strict=True):
        expected = f"{request.payload['query']}, run 1"
        if isinstance(end, PeerAnswer):
            assert end.text == expected
        else:
            assert isinstance(end, PeerUnavailableError | PeerTimeoutError), end
        again = await pair.peers.ask(pair.jid, request, TIMEOUT_S, retry=Retry(attempts=1000, wait_s=0.1, factor=1))
        assert again.text == expected
    assert pair.answerer.runs == {request.request_id: 1 for request in asked}
    assert pair.answerer.cancelled == []
    assert pair.asker.requests.open_count == 0


@pytest.mark.servers
@pytest.mark.parametrize("end", [XmppServer.stop, XmppServer.kill])
async def test_asks_end_as_they_would_have_when_the_server_of_the_peer_restarts(
    end: Callable[[XmppServer], None], start_servers: Callable[[Servers], Servers], tmp_path: Path
) -> None:
    west, east = start_servers(federate(tmp_path, *find_s2s_addresses()))
    async with run_pair(west, east, tmp_path) as pair:
        asked = [ask_for(f"wait {number}") for number in range(20)]
        asking = [asyncio.create_task(pair.ask(request)) for request in asked]
        await eventually(partial(has_run, pair.answerer, len(asked)))
        await asyncio.to_thread(end, east)
        assert isinstance(await pair.ask("is there anybody?"), PeerUnavailableError)
        retry, later = Retry(attempts=1000, wait_s=0.1, factor=1), ask_for("later")
        patient = asyncio.create_task(pair.peers.ask(pair.jid, later, TIMEOUT_S, retry=retry))
        pair.answerer.may_answer.set()
        await eventually(lambda: not pair.online.runner.mailboxes.busy_count)
        await asyncio.to_thread(east.start)
        found = await asyncio.gather(*asking)
        assert (await patient).text == "later, run 1"
        await assert_ends(pair, [*asked, later], [*found, await patient])
        print(Counter(type(end).__name__ for end in found))


@pytest.mark.servers
@pytest.mark.parametrize("resends", [pytest.param(False, marks=pytest.mark.release), True])
async def test_asks_end_as_they_would_have_when_the_connection_of_the_servers_is_cut(
    resends: bool, start_servers: Callable[[Servers], Servers], tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"{seed=}")
    rng = random.Random(seed)
    west_address, east_address = find_s2s_addresses()
    async with Tunnel(west_address) as to_west, Tunnel(east_address) as to_east:
        servers = federate(
            tmp_path, west_address, east_address, link_to_west=to_west.port, link_to_east=to_east.port, resends=resends
        )
        west, east = start_servers(servers)
        async with run_pair(west, east, tmp_path) as pair:
            waiting = [ask_for(f"wait {number}") for number in range(10)]
            asking = [asyncio.create_task(pair.ask(request)) for request in waiting]
            await eventually(partial(has_run, pair.answerer, len(waiting)))
            to_west.cut()
            to_east.cut()
            pair.answerer.may_answer.set()
            found = await asyncio.gather(*asking)
            asked = list(waiting)
            for cut in range(10 if resends else 4):
                batch = [ask_for(f"question {cut}/{number}") for number in range(20)]
                goal = len(pair.answerer.requests) + rng.randrange(1, len(batch))
                # An answer that is lost on its way between servers that do not resend ends as a timeout.
                timeout_s = TIMEOUT_S if resends else 5
                asking = [asyncio.create_task(pair.ask(request, timeout=timeout_s)) for request in batch]
                await eventually(partial(has_run, pair.answerer, goal))
                rng.choice([to_west, to_east]).cut()
                found += await asyncio.gather(*asking)
                asked += batch
            await assert_ends(pair, asked, found)
            ends = Counter(type(end).__name__ for end in found)
            print(ends)
            if resends:
                assert set(ends) == {"PeerAnswer"}
