"""Every row of the table of conversations, and both lifecycles, driven by messages over a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import ResponseHandler, Session
from spade_coreason.contracts import AgentDefinition, AgentRequest, ConversationState, MemoryConfig
from spade_coreason.exceptions import PeerRefusedError
from spade_coreason.testing import Policy, Rules
from tests.support.clock import Clock, LoopClock
from tests.support.errors import ExpectedErrors
from tests.support.hosting import OnlineAgent, envelope, receive_events, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually


class LifecycleAgent:
    """Does what the query says; records its lifecycle and queries."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("driven")
        self.calls: list[str] = []
        self.fails_at_startup = 0

    def startup(self) -> None:
        if self.fails_at_startup:
            self.fails_at_startup -= 1
            raise OSError("the model is not there")
        self.calls.append("startup")

    async def shutdown(self) -> None:
        self.calls.append("shutdown")

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        query = request.payload["query"]
        self.calls.append(query)
        if query == "fail":
            raise ValueError(query)
        if query == "kept":
            await response.markdown(f"kept {await session.get('turns')}")
            return
        turns = len(await session.history(100))
        if query == "end":
            session.end()
        await session.store("turns", turns)
        await response.markdown(f"{query} after {turns}")


async def _state(agent: OnlineAgent, client: StockClient) -> tuple[str, int]:
    [row] = await agent.repository.list_conversations(owner=client.jid)
    return str(row.status.state), row.status.interaction_count


def _rules(**changed: Any) -> Policy:
    rules = {"max_interactions": 3, "cooldown_s": 60, "timeout_s": 60, "max_failures": 2, **changed}
    return Policy(rules=Rules(**rules))


async def _pass_idle_time(clock: Clock, ended: Callable[[], bool]) -> None:
    """Let more than ten silent seconds pass; return when `ended` holds."""
    clock.advance(seconds=11)
    with LoopClock() as time:
        await time.advance(11)
        await time.wait_for(ended)


class EndRecorder:
    """Records the ends of conversations."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []

    async def __call__(self, conversation_id: str, reason: str) -> None:
        self.ended.append((conversation_id, reason))


async def test_active_counts_and_over_the_limit_there_is_one_notice_then_silence_until_the_cooldown_has_passed(
    local_server: XmppServer, tmp_path: Path
) -> None:
    ends = EndRecorder()
    clock = Clock()
    policy = _rules(cooldown_s=1.5)
    async with (
        run_agent(LifecycleAgent(), local_server, tmp_path, policy=policy, on_end=(ends,), clock=clock) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for number in range(3):
            assert await alice.ask(f"m{number}.", agent.jid) == f"m{number}. after {number}"
            assert await _state(agent, alice) == ("active", number + 1)
        notice = await alice.ask("one too many", agent.jid)
        assert "a conversation is limited to 3 messages" in notice
        assert "Write again in 2 s, or start" in notice
        assert await _state(agent, alice) == ("max_interactions_reached", 3)
        alice.send("silence", agent.jid)
        clock.advance(seconds=1.4)
        alice.send("silence again", agent.jid)
        # Another thread is another conversation.
        assert await alice.ask("elsewhere", agent.jid, thread="t") == "elsewhere after 0"
        assert alice.messages.empty()
        assert ends.ended == [(f"{alice.jid}_{agent.jid}", "max_interactions_reached")]
        clock.advance(seconds=0.2)
        assert await alice.ask("again", agent.jid) == "again after 3"  # a new episode with the same memory
        rows = {row.conversation_id: row.status for row in await agent.repository.list_conversations(owner=alice.jid)}
        status = rows[f"{alice.jid}_{agent.jid}"]
        assert (status.state, status.interaction_count) == (ConversationState.ACTIVE, 1)


async def test_a_program_over_the_limit_hears_when_to_try_again(prosody: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(LifecycleAgent(), prosody, tmp_path, policy=_rules(max_interactions=1)) as agent,
        StockClient(*await prosody.account(), prosody) as program,
        run_agent(LifecycleAgent(), prosody, tmp_path) as other,
    ):
        for ending in ("completed", "refused"):
            program.send(None, agent.jid, extra_xml=envelope({"query": ending}), thread="one")
            last = (await receive_events(program))[-1]
            assert last["type"] == f"ai.coreason.request.{ending}"
        assert last["data"]["code"] == 429
        assert last["data"]["retry_after_s"] == 60
        # Requests of one session are one conversation with the peer.
        session = uuid4()
        await other.peers.ask(agent.jid, AgentRequest(session_id=session, payload={"query": "one"}))
        with pytest.raises(PeerRefusedError, match="refuses: That is all for now") as refused:
            await other.peers.ask(agent.jid, AgentRequest(session_id=session, payload={"query": "two"}))
        assert refused.value.retry_after_s == 60


async def test_a_conversation_that_the_agent_completed_is_reopened_with_the_same_memory(
    local_server: XmppServer, tmp_path: Path
) -> None:
    ends = EndRecorder()
    async with (
        run_agent(LifecycleAgent(), local_server, tmp_path, policy=_rules(), on_end=(ends,)) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        await alice.ask("hello", agent.jid)
        assert await alice.ask("end", agent.jid) == "end after 1"
        assert await _state(agent, alice) == ("completed", 2)
        assert ends.ended == [(f"{alice.jid}_{agent.jid}", "completed")]
        assert await alice.ask("kept", agent.jid) == "kept 1"  # its variables too
        assert await alice.ask("hello", agent.jid) == "hello after 3"
        assert await _state(agent, alice) == ("active", 2)


async def test_consecutive_failures_end_a_conversation_in_error_and_a_success_between_prevents_it(
    local_server: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("ValueError: fail")
    ends = EndRecorder()
    async with (
        run_agent(LifecycleAgent(), local_server, tmp_path, policy=_rules(max_interactions=10), on_end=(ends,)) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for query in ("fail", "well", "fail"):
            await alice.ask(query, agent.jid)
            assert (await _state(agent, alice))[0] == "active"
        await alice.ask("fail", agent.jid)
        assert await _state(agent, alice) == ("error", 4)
        assert ends.ended == [(f"{alice.jid}_{agent.jid}", "error")]
        assert await alice.ask("kept", agent.jid) == "kept 1"
        assert await alice.ask("well", agent.jid) == "well after 5"
        assert await _state(agent, alice) == ("active", 2)


async def test_the_idle_timeout_ends_a_conversation_and_the_next_message_reopens_it(
    local_server: XmppServer, tmp_path: Path
) -> None:
    ends, clock, policy = EndRecorder(), Clock(), _rules(timeout_s=10)
    async with (
        run_agent(lambda peers: LifecycleAgent(), local_server, tmp_path, policy=policy, on_end=(ends,), clock=clock) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        await alice.ask("hello", agent.jid)
        await _pass_idle_time(clock, lambda: bool(ends.ended))  # nobody had to say anything
        assert ends.ended == [(f"{alice.jid}_{agent.jid}", "timeout")]
        assert await _state(agent, alice) == ("timeout", 1)
        assert await alice.ask("hello", agent.jid) == "hello after 1"
        assert await _state(agent, alice) == ("active", 1)
        # It ends over a restart too.
        await agent.restart()
        await _pass_idle_time(clock, lambda: len(ends.ended) == 2)
        assert await _state(agent, alice) == ("timeout", 1)


@pytest.mark.parametrize(
    ("queries", "state"),
    [
        (["end"], ("completed", 1)),
        (["fail", "fail"], ("error", 2)),
        (["one", "two", "three", "too many"], ("max_interactions_reached", 3)),
        (["hello"], ("timeout", 1)),
    ],
)
async def test_an_ended_conversation_does_not_time_out(
    local_server: XmppServer, tmp_path: Path, queries: list[str], state: tuple[str, int], expected_errors: ExpectedErrors
) -> None:
    if "fail" in queries:
        expected_errors("ValueError: fail")
    ends, clock, policy = EndRecorder(), Clock(), _rules(timeout_s=10)
    async with (
        run_agent(LifecycleAgent(), local_server, tmp_path, policy=policy, on_end=(ends,), clock=clock) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
        StockClient(*await local_server.account(), local_server) as bob,
    ):
        for query in queries:
            await alice.ask(query, agent.jid)
        if state[0] == "timeout":
            await _pass_idle_time(clock, lambda: bool(ends.ended))
        await eventually(lambda: bool(ends.ended))
        assert await _state(agent, alice) == state
        await bob.ask("hello", agent.jid)
        await _pass_idle_time(clock, lambda: (f"{bob.jid}_{agent.jid}", "timeout") in ends.ended)  # for longer than the timeout
        assert await _state(agent, alice) == state
        assert [reason for name, reason in ends.ended if name.startswith(alice.jid)] == [state[0]]


async def test_a_reset_at_the_limit_reopens_a_conversation_with_the_same_memory(
    local_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_agent(LifecycleAgent(), local_server, tmp_path, policy=_rules(max_interactions=1)) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        await alice.ask("hello", agent.jid)
        assert "a conversation is limited to 1 message" in await alice.ask("too many", agent.jid)
        assert await agent.runner.control.reset(f"{alice.jid}_{agent.jid}")
        assert await _state(agent, alice) == ("active", 0)
        assert await alice.ask("kept", agent.jid) == "kept 0"


@pytest.mark.parametrize(
    ("rules", "queries", "state", "turns"),
    [
        ({"timeout_s": 0.2}, [], "timeout", 6),
        ({}, ["end"], "completed", 7),
        ({}, ["/new"], "completed", 6),
        ({"max_failures": 1}, ["fail"], "error", 7),
        ({"max_interactions": 6}, ["too many"], "max_interactions_reached", 6),
    ],
)
async def test_the_end_of_a_conversation_prunes(
    prosody: XmppServer,
    tmp_path: Path,
    rules: dict[str, Any],
    queries: list[str],
    state: str,
    turns: int,
    expected_errors: ExpectedErrors,
) -> None:
    if "fail" in queries:
        expected_errors("ValueError: fail")
    ends, policy = EndRecorder(), _rules(max_interactions=0)
    async with (
        run_agent(lambda peers: LifecycleAgent(), prosody, tmp_path, policy=policy, on_end=(ends,)) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        for number in range(6):
            await alice.ask(f"m{number}.", agent.jid)
        agent.policy = Policy(rules=Rules(**{"max_interactions": 0, **rules}), memory=MemoryConfig(limit=2))
        await agent.restart()
        for query in queries:
            await alice.ask(query, agent.jid)
        await eventually(lambda: bool(ends.ended))
        [row] = await agent.repository.list_conversations(owner=alice.jid)
        assert (str(row.status.state), row.turns, row.window_start) == (state, turns, turns - 1)


async def test_states_last_over_a_restart(prosody: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(lambda peers: LifecycleAgent(), prosody, tmp_path, policy=_rules(max_interactions=1)) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
        StockClient(*await prosody.account(), prosody) as bob,
    ):
        await alice.ask("hello", agent.jid)
        await alice.ask("one too many", agent.jid)
        await agent.restart()
        alice.send("silence", agent.jid)
        assert await bob.ask("hello", agent.jid) == "hello after 0"
        assert await _state(agent, alice) == ("max_interactions_reached", 1)
        assert alice.messages.empty()
        [row] = await agent.repository.list_conversations(owner=alice.jid)
        record = row.contract_record.dump()
        assert set(record) == {
            "conversation_id",
            "state",
            "interaction_count",
            "max_interactions",
            "created_at",
            "last_interaction",
        }
        assert datetime.fromisoformat(record["last_interaction"]) <= datetime.now(UTC)


async def test_the_window_slides_and_everything_stays_in_the_history(prosody: XmppServer, tmp_path: Path) -> None:
    policy = Policy(rules=Rules(max_interactions=0), memory=MemoryConfig(limit=3))
    async with (
        run_agent(lambda peers: LifecycleAgent(), prosody, tmp_path, policy=policy) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        for number in range(6):
            assert await alice.ask(f"m{number}.", agent.jid) == f"m{number}. after {number}"
        [row] = await agent.repository.list_conversations(owner=alice.jid)
        assert (row.turns, row.window_start) == (6, 4)
        await agent.restart()
        assert await alice.ask("m6.", agent.jid) == "m6. after 6"


async def test_an_eager_agent_starts_before_it_is_online_and_shuts_down_at_the_end(
    local_server: XmppServer, tmp_path: Path
) -> None:
    agent = LifecycleAgent()
    async with (
        run_agent(agent, local_server, tmp_path) as online,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        assert agent.calls == ["startup"]
        await alice.ask("end", online.jid)
        await alice.ask("hello", online.jid)
    assert agent.calls == ["startup", "end", "hello", "shutdown"]


async def test_an_on_demand_agent_starts_with_the_first_conversation_and_shuts_down_when_none_is_active(
    local_server: XmppServer, tmp_path: Path
) -> None:
    agent = LifecycleAgent()
    policy = Policy(rules=Rules(max_interactions=0, lifecycle="on_demand", idle_shutdown_s=0.2))
    async with (
        run_agent(agent, local_server, tmp_path, policy=policy) as online,
        StockClient(*await local_server.account(), local_server) as alice,
        StockClient(*await local_server.account(), local_server) as bob,
    ):
        assert agent.calls == []
        await asyncio.gather(alice.ask("hello", online.jid), bob.ask("hello", online.jid))
        assert agent.calls == ["startup", "hello", "hello"]
        await alice.ask("end", online.jid)
        await asyncio.sleep(0.3)  # longer than it waits, and bob's conversation is still active
        assert agent.calls[-1] == "end"
        await bob.ask("end", online.jid)
        await eventually(lambda: agent.calls[-1] == "shutdown")
        assert agent.calls.count("shutdown") == 1
        assert await bob.ask("hello", online.jid) == "hello after 2"
        assert agent.calls[-2:] == ["startup", "hello"]
    assert agent.calls[-1] == "shutdown"
    assert agent.calls.count("shutdown") == 2


async def test_a_startup_that_fails_is_an_answer_with_an_error_and_is_tried_again(
    local_server: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("OSError: the model is not there")
    agent = LifecycleAgent()
    agent.fails_at_startup = 1
    policy = Policy(rules=Rules(lifecycle="on_demand"))
    async with (
        run_agent(agent, local_server, tmp_path, policy=policy) as online,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        assert "Something went wrong" in await alice.ask("hello", online.jid)
        assert await alice.ask("hello", online.jid) == "hello after 1"
        assert agent.calls == ["startup", "hello"]


async def test_stopping_without_a_conversation_calls_no_shutdown_without_startup(prosody: XmppServer, tmp_path: Path) -> None:
    agent = LifecycleAgent()
    async with run_agent(agent, prosody, tmp_path, policy=Policy(rules=Rules(lifecycle="on_demand"))):
        pass
    assert agent.calls == []
