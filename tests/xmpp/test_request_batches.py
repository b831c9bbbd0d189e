"""Several requests in one message: each is received, refused, stored and answered as if it had come alone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentRequest, Response, Session
from spade_coreason.domain.quotas import Quota, Quotas
from spade_coreason.exceptions import PeerUnavailableError
from spade_coreason.testing import PlatformLimits, Policy, RunnerTimings
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.errors import ExpectedErrors
from tests.support.hosting import UNLIMITED, Echo, FunctionAgent, OnlineAgent, Tunnel, container, record_sent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import GetServer, kinds_ejabberd_in_release
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.connection.test_stream_management import locked_database, record_counts, wait_for_unstored_message
from tests.xmpp.test_archive import connect_client, wait_until_caught_up, wait_until_sent
from tests.xmpp.test_local_exchange import set_max_pages

JSON = "{urn:xmpp:json:0}json"
STORE = "<store xmlns='urn:xmpp:hints'/>"


@pytest.fixture(params=kinds_ejabberd_in_release)
def archive_only(request: pytest.FixtureRequest, get_server: GetServer) -> XmppServer:
    """A server without offline storage: messages for an account that is offline are in the archive only."""
    return get_server(request.param, archive=True, offline=False)


def entry(text: str, thread: str = "t", **data: Any) -> dict[str, Any]:
    """Build a request of a batch. Its reply comes as single events."""
    return {
        "type": "ai.coreason.request",
        "id": f"id of {text}"[:100],
        "thread": thread,
        "data": {"request_id": str(uuid4()), "payload": {"query": text}, **data},
    }


def send_batch(client: StockClient, to: str, entries: Sequence[Any], extra_xml: str = "") -> None:
    client.send(None, to, type="normal", extra_xml=container(list(entries)) + extra_xml)


class Replies:
    """The replies to requests of a client, by request id."""

    def __init__(self, client: StockClient) -> None:
        self._client = client
        self.texts: dict[str, list[str]] = {}
        self.ends: dict[str, list[str]] = {}
        self.problems: list[str] = []

    async def receive_until(self, count: int) -> None:
        """Receive events until so many requests have ended."""
        async with asyncio.timeout(TIMEOUT_S):
            while sum(map(len, self.ends.values())) < count:
                message = await self._client.messages.get()
                event = json.loads(message.xml.findtext(JSON) or "{}")
                kind, data, request_id = event.get("type", ""), event.get("data", {}), event.get("requestid", "")
                if kind == "ai.coreason.request.repeated":  # the stored answer follows, and replaces the earlier one
                    self.texts.pop(request_id, None)
                    self.ends.pop(request_id, None)
                elif kind == "ai.coreason.block.markdown":
                    self.texts.setdefault(request_id, []).append(data["content"])
                elif kind.startswith("ai.coreason.request."):
                    self.ends.setdefault(request_id, []).append(kind.removeprefix("ai.coreason.request."))
                    self.problems += [data["message"]] if "message" in data else []

    def of(self, entries: Sequence[dict[str, Any]]) -> list[tuple[list[str], list[str]]]:
        """Return the texts and the ends of each of these requests."""
        ids = [one["data"]["request_id"] for one in entries]
        return [(self.texts.get(one, []), self.ends.get(one, [])) for one in ids]


def answered(entries: Sequence[dict[str, Any]]) -> list[tuple[list[str], list[str]]]:
    """Return what `Replies.of` returns if each request was answered once by an echo."""
    return [([one["data"]["payload"]["query"]], ["completed"]) for one in entries]


def queries_of(agent: OnlineAgent) -> list[str]:
    return [request.payload["query"] for request in agent.agent.requests]


async def test_requests_of_one_moment_travel_as_few_messages_once_the_peer_is_known(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as asker,
        run_agent(Echo(), real_server, tmp_path) as peer,
    ):
        assert (await asker.peers.ask(peer.jid, "first", timeout=TIMEOUT_S)).text == "first"
        sent, answers = record_sent(asker), record_sent(peer)
        session = uuid4()
        asks: list[tuple[str, AgentRequest]] = [
            (peer.jid, AgentRequest(session_id=session if number % 2 else uuid4(), payload={"query": f"{number}"}))
            for number in range(64)
        ]
        results = await asker.peers.gather(asks, TIMEOUT_S, limit=64)
        assert [str(result) for result in results] == [f"{number}" for number in range(64)]
        assert "".join(sent).count("<message ") <= 8
        assert "".join(answers).count("<message ") < 64
        assert sorted(queries_of(peer), key=str) == sorted(["first", *(f"{number}" for number in range(64))], key=str)
        in_one_conversation = [int(query) for query in queries_of(peer)[1:] if int(query) % 2]
        assert in_one_conversation == sorted(in_one_conversation)
        assert asker.requests.dropped == 0


async def test_each_request_of_a_batch_is_answered_in_its_conversation(real_server: XmppServer, tmp_path: Path) -> None:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        history = [turn.input["query"] for turn in await session.history(10) if isinstance(turn.input, dict)]
        await response.markdown(f"{request.payload['query']} after {history}")

    async with (
        run_agent(FunctionAgent(assist), real_server, tmp_path) as agent,
        connect_client(real_server) as alice,
    ):
        entries = [entry("a", "one"), entry("b", "two"), entry("c", "one"), entry("d", "two")]
        malformed = [7, {**entry("no thread"), "thread": ""}, {**entry("no payload"), "data": {"request_id": "odd"}}]
        send_batch(alice, agent.jid, [*entries[:2], *malformed, *entries[2:]])
        replies = Replies(alice)
        await replies.receive_until(7)
        texts = [texts for texts, _ in replies.of(entries)]
        assert texts == [["a after []"], ["b after []"], ["c after ['a']"], ["d after ['b']"]]
        assert replies.ends["odd"] == ["failed"]
        assert Counter(end for ends in replies.ends.values() for end in ends) == {"completed": 4, "failed": 3}
        assert all(problem.startswith("not a request: ") for problem in replies.problems)


async def test_a_request_of_a_batch_is_retracted_by_its_own_id(real_server: XmppServer, tmp_path: Path) -> None:
    running, cancelled, release = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] == "taken back":
            running.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        await release.wait()
        await response.markdown(request.payload["query"])

    async with run_agent(FunctionAgent(assist), real_server, tmp_path) as agent, connect_client(real_server) as alice:
        entries = [entry("stays", "one"), entry("taken back", "two")]
        send_batch(alice, agent.jid, entries)
        await running.wait()
        retract = f"<retract xmlns='urn:xmpp:message-retract:1' id='{entries[1]['id']}'/>"
        async with connect_client(real_server) as mallory:
            mallory.send(None, agent.jid, extra_xml=retract)
            await wait_until_sent(mallory)
            mallory.send("/help", agent.jid)
            await mallory.answer()
        assert not cancelled.is_set()
        alice.send(None, agent.jid, extra_xml=retract)
        await cancelled.wait()
        release.set()
        replies = Replies(alice)
        await replies.receive_until(1)
        assert replies.of(entries[:1]) == answered(entries[:1])


@pytest.mark.parametrize("kind", ["prosody", "ejabberd", "prosody_archive"])
async def test_a_batch_that_came_while_the_agent_was_away_is_answered_once(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: XmppServer = request.getfixturevalue(kind)
    async with run_agent(Echo(), server, tmp_path) as agent, connect_client(server) as alice:
        replies, late = Replies(alice), [entry(f"late {number}", f"t{number % 2}") for number in range(12)]
        if server.kind == "prosody" and kind != "prosody":
            await wait_until_caught_up(agent)
        await agent.stop()
        send_batch(alice, agent.jid, late[:5], STORE)
        alice.send(None, agent.jid, type="normal", extra_xml=container({**late[5], "thread": None}) + STORE)
        send_batch(alice, agent.jid, late[6:], STORE)
        await wait_until_sent(alice)
        await agent.start()
        await replies.receive_until(12)
        for end in (agent.stop, agent.crash):
            await end()
            await agent.start()
        if kind == "prosody_archive":
            await wait_until_caught_up(agent)
        last = [entry("last")]
        send_batch(alice, agent.jid, last)
        await replies.receive_until(13)
        assert replies.of([*late, *last]) == answered([*late, *last])
        assert sorted(queries_of(agent)) == sorted(one["data"]["payload"]["query"] for one in [*late, *last])


async def test_a_batch_only_in_the_archive_is_answered_once(archive_only: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), archive_only, tmp_path) as agent, connect_client(archive_only) as alice:
        await wait_until_caught_up(agent)
        await agent.stop()
        late = [entry(f"late {number}", f"t{number % 2}") for number in range(20)]
        send_batch(alice, agent.jid, [*late[:10], 7], STORE)
        send_batch(alice, agent.jid, late[10:], STORE)
        await wait_until_sent(alice)
        replies = Replies(alice)
        for end in (agent.stop, agent.crash):
            await agent.start()
            await wait_until_caught_up(agent)
            await eventually(lambda: len(agent.agent.requests) == 20)
            await agent.runner.mailboxes.wait_until_idle()
            await end()
        assert sorted(queries_of(agent)) == sorted(one["data"]["payload"]["query"] for one in late)
        await agent.start()
        await replies.receive_until(20)
        assert replies.of(late) == answered(late)


async def test_a_stranger_is_refused_31_times_a_minute_however_many_requests_a_batch_has(
    real_server: XmppServer, tmp_path: Path
) -> None:
    stranger = await real_server.account(domain=OTHER_DOMAIN)
    async with (
        run_agent(Echo(), real_server, tmp_path) as agent,
        StockClient(*stranger, real_server) as mallory,
        connect_client(real_server) as alice,
    ):
        send_batch(mallory, agent.jid, [entry(f"{number}") for number in range(64)])
        send_batch(mallory, agent.jid, [entry("again"), 7])
        replies = Replies(mallory)
        await replies.receive_until(31)
        await eventually(lambda: agent.gateway.dropped["not admitted"] == 65)
        last = [entry("last")]
        send_batch(alice, agent.jid, last)
        await Replies(alice).receive_until(1)
        assert list(replies.ends.values()) == [["refused"]] * 31
        assert mallory.messages.empty()
        assert queries_of(agent) == ["last"]


async def test_a_batch_that_bounces_fails_each_of_its_asks(real_server: XmppServer, tmp_path: Path) -> None:
    nobody = f"nobody-here@{real_server.domain}"
    async with run_agent(Echo(), real_server, tmp_path) as asker, run_agent(Echo(), real_server, tmp_path) as peer:
        assert (await asker.peers.ask(peer.jid, "first", timeout=TIMEOUT_S)).text == "first"
        asker.requests._batch_readers.add(nobody)  # as if it had answered before
        sent = record_sent(asker)
        asks = [(nobody if number % 2 else peer.jid, f"{number}") for number in range(14)]
        results = await asker.peers.gather(asks, TIMEOUT_S, limit=14)
        assert [str(result) for result in results[::2]] == [f"{number}" for number in range(0, 14, 2)]
        assert all(isinstance(result, PeerUnavailableError) and result.jid == nobody for result in results[1::2])
        assert any(f"to='{nobody}' id='" in data and data.count(" ") > 6 for data in sent)
        assert "".join(sent).count(f"to='{nobody}'") == 1
        assert asker.requests.open_count == 0


# Storage


async def test_a_batch_is_acknowledged_when_all_of_it_is_durable_and_comes_again_after_a_cut(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        Tunnel(real_server) as tunnel,
        run_agent(Echo(), real_server, tmp_path, port=tunnel.port, timings=ConnectionTimings(resumption_wait_s=0.1)) as agent,
        connect_client(real_server) as alice,
    ):
        replies, before = Replies(alice), [entry("before")]
        send_batch(alice, agent.jid, before)
        await replies.receive_until(1)
        await agent.settled()
        resumed = record_counts(agent.host, "resume")
        entries = [entry(f"{number}", f"t{number % 3}") for number in range(9)]
        with locked_database(agent):
            send_batch(alice, agent.jid, entries)
            number = await wait_for_unstored_message(agent)
            tunnel.cut()
            await eventually(lambda: agent.host.connection.resumption_count == 1)
            assert await wait_for_unstored_message(agent) == number  # it came again
        assert resumed == [number - 1]
        await replies.receive_until(10)
        last = [entry("last")]
        send_batch(alice, agent.jid, last)
        await replies.receive_until(11)
        assert replies.of([*before, *entries, *last]) == answered([*before, *entries, *last])
        assert Counter(queries_of(agent)) == Counter(["before", *(f"{number}" for number in range(9)), "last"])


async def test_a_batch_of_which_one_request_cannot_be_stored_comes_again(
    real_server: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("database or disk is full", "cannot store received messages")
    policy = replace(Policy(), timings=RunnerTimings(retry_s=0.3))
    timings = ConnectionTimings(renewal_delay_s=0.3)
    async with (
        run_agent(Echo(), real_server, tmp_path, policy=policy, timings=timings) as agent,
        connect_client(real_server) as alice,
    ):
        replies = Replies(alice)
        entries = [entry("long " + "x" * 40_000, "one"), entry("long " + "y" * 40_000, "two"), entry("short", "three")]
        counts = record_counts(agent.host, "a")
        await agent.settled()
        await set_max_pages(agent, 1)  # no smaller than it is
        sm, unstored = agent.host.connection.client.stream_management, list[int]()
        report = sm.on_store_failed

        def on_store_failed() -> None:
            unstored.append(sm._pending[0][0])
            report()

        sm.on_store_failed = on_store_failed
        send_batch(alice, agent.jid, entries)
        await eventually(lambda: agent.host.connection.session_count >= 2)
        of_session = next((i for i, (one, next_one) in enumerate(pairwise(counts), 1) if next_one < one), len(counts))
        assert max(counts[:of_session], default=0) < unstored[0]
        await set_max_pages(agent, 100_000)
        await eventually(lambda: len(set(queries_of(agent))) == 3)
        await replies.receive_until(3)
        assert Counter(queries_of(agent)) == Counter(one["data"]["payload"]["query"] for one in entries)


# Limits


async def test_a_batch_passes_no_limit_of_the_mailbox_and_a_flooding_sender_is_named(
    real_server: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()
    runs = Counter[str]()

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        runs[session.identity.id] += 1
        if request.payload["query"] != "neighbour":
            await release.wait()
        await response.markdown(request.payload["query"])

    policy = replace(UNLIMITED, limits=PlatformLimits(queue=3))
    async with (
        run_agent(FunctionAgent(assist), real_server, tmp_path, policy=policy) as agent,
        connect_client(real_server) as alice,
        connect_client(real_server) as bob,
    ):
        replies = Replies(alice)
        entries = [entry(f"{number}") for number in range(64)]
        send_batch(alice, agent.jid, entries)
        await replies.receive_until(60)
        assert Counter(end for ends in replies.ends.values() for end in ends) == {"refused": 60}
        assert all("already has 3 messages waiting" in problem for problem in replies.problems)
        for _ in range(50):
            send_batch(alice, agent.jid, [entry("more") for _ in range(64)])
        await eventually(lambda: agent.gateway.dropped["too many refused"] > 0)
        neighbour = [entry("neighbour")]
        send_batch(bob, agent.jid, neighbour)
        answers = Replies(bob)
        await answers.receive_until(1)
        assert answers.of(neighbour) == answered(neighbour)
        release.set()
        await agent.runner.mailboxes.wait_until_idle()
        assert runs == {alice.jid: 4, bob.jid: 1}
    named = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert named == [f"{agent.jid}: ignores {alice.jid} for a minute: it had to refuse too many of its requests"]


async def test_each_request_of_a_batch_counts_for_the_quota(prosody: XmppServer, tmp_path: Path) -> None:
    policy = replace(UNLIMITED, quotas=replace(Quotas(), user=Quota(messages_per_minute=5)))
    async with run_agent(Echo(), prosody, tmp_path, policy=policy) as agent, connect_client(prosody) as alice:
        replies, entries = Replies(alice), [entry(f"{number}") for number in range(20)]
        send_batch(alice, agent.jid, entries)
        await replies.receive_until(20)
        assert Counter(end for ends in replies.ends.values() for end in ends) == {"completed": 5, "refused": 15}
        assert len(agent.agent.requests) == 5


async def test_more_than_64_requests_or_malformed_ones_without_end_cost_the_sender_only(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as agent,
        connect_client(real_server) as mallory,
        connect_client(real_server) as alice,
    ):
        replies = Replies(mallory)
        send_batch(mallory, agent.jid, [entry(f"{number}") for number in range(65)])
        await replies.receive_until(1)
        assert replies.problems == ["not a request: the JSON container holds more than 64 requests"]
        for _ in range(20):
            send_batch(mallory, agent.jid, [entry("first"), *[7] * 63])
        await eventually(lambda: agent.gateway.dropped["malformed"] == 1 + 20 * 63)
        last = [entry("last")]
        send_batch(alice, agent.jid, last)
        answers = Replies(alice)
        await answers.receive_until(1)
        assert answers.of(last) == answered(last)
        await replies.receive_until(1 + 20 + 29)
        send_batch(mallory, agent.jid, last)
        await replies.receive_until(1 + 20 + 29 + 1)
        assert sum(problem.startswith("not a request") for problem in replies.problems) == 30


async def test_requests_of_a_batch_with_one_id_are_one_request(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), real_server, tmp_path) as agent, connect_client(real_server) as alice:
        request_id = str(uuid4())
        same, other = entry("same", request_id=request_id), entry("other", request_id=request_id)
        unnamed = entry("unnamed")
        del unnamed["data"]["request_id"]
        send_batch(alice, agent.jid, [same, same, other, unnamed])
        replies = Replies(alice)
        await eventually(lambda: len(agent.agent.requests) == 2)
        await replies.receive_until(3)
        assert sorted(queries_of(agent)) == ["same", "unnamed"]
        assert sorted(replies.ends[request_id]) == ["completed", "refused"]
        assert replies.texts.pop(request_id) == ["same"]
        assert list(replies.texts.values()) == [["unnamed"]]
