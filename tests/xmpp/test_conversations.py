"""Every row of the table of conversations, and both lifecycles, driven by messages over a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import ResponseHandler
from spade_coreason.contracts import AgentDefinition, AgentRequest, ConversationState, MemoryConfig
from spade_coreason.domain.conversation import Rules
from spade_coreason.exceptions import PeerRefusedError
from spade_coreason.memory.session import Session
from spade_coreason.runtime.policy import Policy
from tests.support.clock import Clock, LoopClock
from tests.support.errors import ExpectedErrors
from tests.support.hosting import OnlineAgent, envelope, receive_events, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

SECOND = timedelta(seconds=1)


class Driven:
    """Does what the message says; writes down its lifecycle."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("driven")
        self.life: list[str] = []
        self.fails_at_startup = 0

    def startup(self) -> None:
        if self.fails_at_startup:
            self.fails_at_startup -= 1
            raise OSError("the model is not there")
        self.life.append("startup")

    async def shutdown(self) -> None:
        self.life.append("shutdown")

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        query = request.payload["query"]
        self.life.append(query)
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
    [row] = await agent.store.list_conversations(owner=client.jid)
    return str(row.status.state), row.status.interaction_count


def _rules(**changed: Any) -> Policy:
    rules = {"max_interactions": 3, "cooldown": 60 * SECOND, "timeout": 60 * SECOND, "max_failures": 2, **changed}
    return Policy(rules=Rules(**rules))


async def _silence(clock: Clock, ended: Callable[[], bool]) -> None:
    """Nothing is said for more than ten seconds, until something has ended by that."""
    clock.move(seconds=11)
    with LoopClock() as time:
        await time.move(11)
        await time.until(ended)


class Ends:
    """Hears of the ends of conversations."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    async def __call__(self, conversation_id: str, reason: str) -> None:
        self.heard.append((conversation_id, reason))


async def test_active_counts_and_over_the_limit_there_is_one_notice_then_silence_until_the_cooldown_has_passed(
    our_server: XmppServer, tmp_path: Path
) -> None:
    ends = Ends()
    clock = Clock()
    policy = _rules(cooldown=1.5 * SECOND)
    async with (
        run_agent(Driven(), our_server, tmp_path, policy=policy, on_end=(ends,), clock=clock) as agent,
        StockClient(*await our_server.account(), our_server) as alice,
    ):
        for number in range(3):
            assert await alice.ask(f"m{number}.", agent.jid) == f"m{number}. after {number}"
            assert await _state(agent, alice) == ("active", number + 1)
        notice = await alice.ask("one too many", agent.jid)
        assert "3 messages are the limit of a conversation" in notice
        assert "Write again in 2 s, or begin another thread" in notice
        assert await _state(agent, alice) == ("max_interactions_reached", 3)
        alice.send("silence", agent.jid)
        clock.move(seconds=1.4)
        alice.send("silence again", agent.jid)
        # Another thread is another conversation.
        assert await alice.ask("elsewhere", agent.jid, thread="t") == "elsewhere after 0"
        assert alice.messages.empty()
        assert ends.heard == [(f"{alice.jid}_{agent.jid}", "max_interactions_reached")]
        clock.move(seconds=0.2)
        assert await alice.ask("again", agent.jid) == "again after 3"  # a new episode with the same memory
        rows = {row.conversation_id: row.status for row in await agent.store.list_conversations(owner=alice.jid)}
        life = rows[f"{alice.jid}_{agent.jid}"]
        assert (life.state, life.interaction_count) == (ConversationState.ACTIVE, 1)


async def test_a_program_over_the_limit_hears_when_to_try_again(prosody: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Driven(), prosody, tmp_path, policy=_rules(max_interactions=1)) as agent,
        StockClient(*await prosody.account(), prosody) as program,
        run_agent(Driven(), prosody, tmp_path) as other,
    ):
        for ending in ("completed", "refused"):
            program.send(None, agent.jid, extra_xml=envelope({"query": ending}))
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


async def test_completed_by_the_agent_and_opened_again_with_the_same_memory(our_server: XmppServer, tmp_path: Path) -> None:
    ends = Ends()
    async with (
        run_agent(Driven(), our_server, tmp_path, policy=_rules(), on_end=(ends,)) as agent,
        StockClient(*await our_server.account(), our_server) as alice,
    ):
        await alice.ask("hello", agent.jid)
        assert await alice.ask("end", agent.jid) == "end after 1"
        assert await _state(agent, alice) == ("completed", 2)
        assert ends.heard == [(f"{alice.jid}_{agent.jid}", "completed")]
        assert await alice.ask("kept", agent.jid) == "kept 1"  # its variables too
        assert await alice.ask("hello", agent.jid) == "hello after 3"
        assert await _state(agent, alice) == ("active", 2)


async def test_failures_in_a_row_end_it_in_error_and_a_success_between_does_not(
    our_server: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("ValueError: fail")
    ends = Ends()
    async with (
        run_agent(Driven(), our_server, tmp_path, policy=_rules(max_interactions=10), on_end=(ends,)) as agent,
        StockClient(*await our_server.account(), our_server) as alice,
    ):
        for query in ("fail", "well", "fail"):
            await alice.ask(query, agent.jid)
            assert (await _state(agent, alice))[0] == "active"
        await alice.ask("fail", agent.jid)
        assert await _state(agent, alice) == ("error", 4)
        assert ends.heard == [(f"{alice.jid}_{agent.jid}", "error")]
        assert await alice.ask("kept", agent.jid) == "kept 1"
        assert await alice.ask("well", agent.jid) == "well after 5"
        assert await _state(agent, alice) == ("active", 2)


async def test_idle_for_the_timeout_ends_it_and_the_next_message_opens_it_again(our_server: XmppServer, tmp_path: Path) -> None:
    ends, clock, policy = Ends(), Clock(), _rules(timeout=10 * SECOND)
    async with (
        run_agent(lambda peers: Driven(), our_server, tmp_path, policy=policy, on_end=(ends,), clock=clock) as agent,
        StockClient(*await our_server.account(), our_server) as alice,
    ):
        await alice.ask("hello", agent.jid)
        await _silence(clock, lambda: bool(ends.heard))  # nobody had to say anything
        assert ends.heard == [(f"{alice.jid}_{agent.jid}", "timeout")]
        assert await _state(agent, alice) == ("timeout", 1)
        assert await alice.ask("hello", agent.jid) == "hello after 1"
        assert await _state(agent, alice) == ("active", 1)
        # It ends over a restart too.
        await agent.restart()
        await _silence(clock, lambda: len(ends.heard) == 2)
        assert await _state(agent, alice) == ("timeout", 1)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (["end"], ("completed", 1)),
        (["fail", "fail"], ("error", 2)),
        (["one", "two", "three", "too many"], ("max_interactions_reached", 3)),
        (["hello"], ("timeout", 1)),
    ],
)
async def test_what_has_ended_does_not_time_out(
    our_server: XmppServer, tmp_path: Path, said: list[str], state: tuple[str, int], expected_errors: ExpectedErrors
) -> None:
    if "fail" in said:
        expected_errors("ValueError: fail")
    ends, clock, policy = Ends(), Clock(), _rules(timeout=10 * SECOND)
    async with (
        run_agent(Driven(), our_server, tmp_path, policy=policy, on_end=(ends,), clock=clock) as agent,
        StockClient(*await our_server.account(), our_server) as alice,
        StockClient(*await our_server.account(), our_server) as bob,
    ):
        for query in said:
            await alice.ask(query, agent.jid)
        if state[0] == "timeout":
            await _silence(clock, lambda: bool(ends.heard))
        await eventually(lambda: bool(ends.heard))
        assert await _state(agent, alice) == state
        await bob.ask("hello", agent.jid)
        await _silence(clock, lambda: (f"{bob.jid}_{agent.jid}", "timeout") in ends.heard)  # for longer than the timeout
        assert await _state(agent, alice) == state
        assert [reason for name, reason in ends.heard if name.startswith(alice.jid)] == [state[0]]


async def test_at_the_limit_a_reset_opens_it_with_the_same_memory(our_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Driven(), our_server, tmp_path, policy=_rules(max_interactions=1)) as agent,
        StockClient(*await our_server.account(), our_server) as alice,
    ):
        await alice.ask("hello", agent.jid)
        assert "1 message is the limit" in await alice.ask("too many", agent.jid)
        assert await agent.runner.reset_conversation(f"{alice.jid}_{agent.jid}")
        assert await _state(agent, alice) == ("active", 0)
        assert await alice.ask("kept", agent.jid) == "kept 0"


@pytest.mark.parametrize(
    ("rules", "said", "state", "turns"),
    [
        ({"timeout": 0.2 * SECOND}, [], "timeout", 6),
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
    said: list[str],
    state: str,
    turns: int,
    expected_errors: ExpectedErrors,
) -> None:
    if "fail" in said:
        expected_errors("ValueError: fail")
    policy = _rules(max_interactions=0)
    async with (
        run_agent(lambda peers: Driven(), prosody, tmp_path, policy=policy) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        for number in range(6):
            await alice.ask(f"m{number}.", agent.jid)
        agent.policy = Policy(rules=Rules(**{"max_interactions": 0, **rules}), memory=MemoryConfig(limit=2))
        await agent.restart()
        for query in said:
            await alice.ask(query, agent.jid)
        await eventually(lambda: agent.runner._expiry._active == {})
        [row] = await agent.store.list_conversations(owner=alice.jid)
        assert (str(row.status.state), row.turns, row.window_start) == (state, turns, turns - 1)


async def test_states_last_over_a_restart(prosody: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(lambda peers: Driven(), prosody, tmp_path, policy=_rules(max_interactions=1)) as agent,
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
        [row] = await agent.store.list_conversations(owner=alice.jid)
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
        run_agent(lambda peers: Driven(), prosody, tmp_path, policy=policy) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        for number in range(6):
            assert await alice.ask(f"m{number}.", agent.jid) == f"m{number}. after {number}"
        [row] = await agent.store.list_conversations(owner=alice.jid)
        assert (row.turns, row.window_start) == (6, 4)
        await agent.restart()
        assert await alice.ask("m6.", agent.jid) == "m6. after 6"


async def test_eager_starts_before_the_agent_is_online_and_shuts_down_at_the_end(
    our_server: XmppServer, tmp_path: Path
) -> None:
    agent = Driven()
    async with run_agent(agent, our_server, tmp_path) as online, StockClient(*await our_server.account(), our_server) as alice:
        assert agent.life == ["startup"]
        await alice.ask("end", online.jid)
        await alice.ask("hello", online.jid)
    assert agent.life == ["startup", "end", "hello", "shutdown"]


async def test_on_demand_starts_with_the_first_conversation_and_shuts_down_when_none_is_active(
    our_server: XmppServer, tmp_path: Path
) -> None:
    agent = Driven()
    policy = Policy(rules=Rules(max_interactions=0), lifecycle="on_demand", idle_shutdown_s=0.2)
    async with (
        run_agent(agent, our_server, tmp_path, policy=policy) as online,
        StockClient(*await our_server.account(), our_server) as alice,
        StockClient(*await our_server.account(), our_server) as bob,
    ):
        assert agent.life == []
        await asyncio.gather(alice.ask("hello", online.jid), bob.ask("hello", online.jid))
        assert agent.life == ["startup", "hello", "hello"]
        await alice.ask("end", online.jid)
        await asyncio.sleep(0.3)  # longer than it waits, and bob's conversation is still active
        assert agent.life[-1] == "end"
        await bob.ask("end", online.jid)
        await eventually(lambda: agent.life[-1] == "shutdown")
        assert agent.life.count("shutdown") == 1
        assert await bob.ask("hello", online.jid) == "hello after 2"
        assert agent.life[-2:] == ["startup", "hello"]
    assert agent.life[-1] == "shutdown"
    assert agent.life.count("shutdown") == 2


async def test_a_startup_that_fails_is_an_answer_with_an_error_and_is_tried_again(
    our_server: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("OSError: the model is not there")
    agent = Driven()
    agent.fails_at_startup = 1
    policy = Policy(lifecycle="on_demand")
    async with (
        run_agent(agent, our_server, tmp_path, policy=policy) as online,
        StockClient(*await our_server.account(), our_server) as alice,
    ):
        assert "Something went wrong" in await alice.ask("hello", online.jid)
        assert await alice.ask("hello", online.jid) == "hello after 1"
        assert agent.life == ["startup", "hello"]


async def test_stopping_without_a_conversation_calls_no_shutdown_without_startup(prosody: XmppServer, tmp_path: Path) -> None:
    agent = Driven()
    async with run_agent(agent, prosody, tmp_path, policy=Policy(lifecycle="on_demand")):
        pass
    assert agent.life == []
