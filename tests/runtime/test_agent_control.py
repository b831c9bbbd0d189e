"""Control by operators: end and reset conversations, pause and resume the agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, ResponseHandler, Session, SessionHandle
from spade_coreason.runtime.intake.request_intake import PAUSED_NOTICE
from spade_coreason.testing import PlatformLimits, Policy, Rules
from tests.support.clock import Clock, LoopClock
from tests.support.errors import ExpectedErrors
from tests.support.wait import TIMEOUT_S, eventually

AGENT, ALICE, BOB, CAROL = "agent@localhost", "alice@localhost", "bob@localhost", "carol@example.com"
CONVERSATION = f"{ALICE}_{AGENT}"


class CountingAgent:
    """Count the queries in a variable; `hold` waits for the test, and `fail` waits and raises."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("counter")
        self.release = asyncio.Event()
        self.working = asyncio.Event()
        self.asked: list[str] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        text = request.payload["query"]
        self.asked.append(text)
        if text in ("hold", "fail"):
            self.working.set()
            await self.release.wait()
        if text == "fail":
            raise RuntimeError("as it was told")
        number = await session.get("n", 0) + 1
        await session.store("n", number)
        await response.markdown(f"{text} {number}")


class EndRecorder:
    """Record the calls of `on_conversation_end`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __call__(self, conversation_id: str, reason: str) -> None:
        self.calls.append((conversation_id, reason))


def counting_tester(**options: Any) -> AgentTester:
    return AgentTester(CountingAgent, user=ALICE, **options)


def counting_agent(t: AgentTester) -> CountingAgent:
    assert isinstance(t.agent, CountingAgent)
    return t.agent


async def conversation_record(t: AgentTester) -> tuple[str, int]:
    [found] = [one for one in await t.conversations() if one.conversation_id == CONVERSATION]
    return found.state.value, found.interaction_count


async def pending_requests(t: AgentTester) -> list[str | None]:
    return [row.request for row in await t.runners[AGENT].repository.inbox.load_pending() if row.reply is None]


def send(t: AgentTester, text: str, user: str = ALICE, id: str = "") -> None:
    t.send(text, id=id or text, user=user)


@pytest.mark.parametrize("is_in_memory", [True, False])
async def test_an_operator_ends_a_conversation_and_the_next_message_begins_a_new_episode(is_in_memory: bool) -> None:
    ends = EndRecorder()
    async with counting_tester(on_conversation_end=(ends,)) as t:
        assert await t.say("x") == ["x 1"]
        if not is_in_memory:
            await t.restart()
        runner = t.runners[AGENT]
        assert await runner.control.end(CONVERSATION)
        assert await conversation_record(t) == ("completed", 1)
        assert ends.calls == [(CONVERSATION, "completed")]
        assert runner.mailboxes.conversations.find(CONVERSATION) is None
        assert not await runner.control.end(CONVERSATION)  # it is ended
        assert not await runner.control.end("nobody's")
        assert len(ends.calls) == 1
        assert await t.say("x") == ["x 2"]
        assert await conversation_record(t) == ("active", 1)


@pytest.mark.parametrize("what", ["hold", "fail"])
async def test_an_operator_ends_a_busy_conversation_at_once_and_its_reply_is_sent(
    what: str, expected_errors: ExpectedErrors
) -> None:
    if what == "fail":
        expected_errors("RuntimeError: as it was told")
    ends = EndRecorder()
    policy = Policy(rules=Rules(max_failures=1))
    async with counting_tester(on_conversation_end=(ends,), policy=policy) as t:
        send(t, what)
        await counting_agent(t).working.wait()
        assert await t.runners[AGENT].control.end(CONVERSATION)
        assert await conversation_record(t) == ("completed", 1)
        counting_agent(t).release.set()
        await t.settled()
        [answer] = t.unread()
        assert answer == "hold 1" or "incident" in answer
        assert await conversation_record(t) == ("completed", 1)
        assert ends.calls == [(CONVERSATION, "completed")]
        assert t.runners[AGENT].mailboxes.conversations.find(CONVERSATION) is None


@pytest.mark.parametrize("is_in_memory", [True, False])
async def test_an_operator_resets_a_conversation_that_has_reached_its_limit(is_in_memory: bool) -> None:
    clock = Clock()
    async with counting_tester(policy=Policy(rules=Rules(max_interactions=2)), clock=clock) as t:
        for _ in range(3):
            await t.say("x")
        assert await t.say("x") == []
        assert await conversation_record(t) == ("max_interactions_reached", 2)
        if not is_in_memory:
            await t.restart()
        assert await t.runners[AGENT].control.reset(CONVERSATION)
        assert await conversation_record(t) == ("active", 0)
        assert await t.say("x") == ["x 3"]
        assert await conversation_record(t) == ("active", 1)
        assert await t.runners[AGENT].control.reset(CONVERSATION)  # an active one begins to count anew
        assert [await t.say("x") for _ in range(2)] == [["x 4"], ["x 5"]]
        assert not await t.runners[AGENT].control.reset("nobody's")


async def test_a_conversation_that_was_reset_times_out_like_any_other() -> None:
    clock, ends = Clock(), EndRecorder()
    policy = Policy(rules=Rules(timeout_s=10))
    async with counting_tester(policy=policy, clock=clock, on_conversation_end=(ends,)) as t:
        await t.say("x")
        await t.runners[AGENT].control.end(CONVERSATION)
        await t.runners[AGENT].control.reset(CONVERSATION)
        clock.advance(seconds=11)
        with LoopClock() as time:
            await time.advance(11)
            await time.wait_for(lambda: [reason for _, reason in ends.calls] == ["completed", "timeout"])


async def test_in_a_pause_running_turns_finish_and_new_messages_wait() -> None:
    async with counting_tester() as t:
        runner = t.runners[AGENT]
        send(t, "hold")
        await counting_agent(t).working.wait()
        send(t, "behind", id="1")
        await t.delivered()
        runner.control.set_paused(True)
        assert runner.control.is_paused
        counting_agent(t).release.set()
        for number in range(3):
            send(t, f"{number}")
            send(t, f"bob {number}", user=BOB)
        await eventually(lambda: t.unread(BOB) == [PAUSED_NOTICE])
        await t.settled()
        assert sorted(t.unread()) == sorted(["hold 1", PAUSED_NOTICE])  # once a minute
        assert counting_agent(t).asked == ["hold"]
        assert len(await pending_requests(t)) == 7
        runner.control.set_paused(False)
        assert not runner.control.is_paused
        await t.settled()
        assert t.unread() == ["behind 2", "0 3", "1 4", "2 5"]
        assert t.unread(BOB) == ["bob 0 1", "bob 1 2", "bob 2 3"]
        assert await pending_requests(t) == []


async def test_turns_that_wait_when_the_pause_begins_do_not_start() -> None:
    async with counting_tester(policy=Policy(limits=PlatformLimits(concurrency=1))) as t:
        send(t, "hold")
        await counting_agent(t).working.wait()
        send(t, "bob", user=BOB)
        await eventually(lambda: t.runners[AGENT].mailboxes.busy_count == 2)
        t.runners[AGENT].control.set_paused(True)
        counting_agent(t).release.set()
        await t.settled()
        assert counting_agent(t).asked == ["hold"]
        t.runners[AGENT].control.set_paused(False)
        await t.settled()
        assert t.unread(BOB) == ["bob 1"]


@pytest.mark.parametrize("on_restart", ["rerun", "report"])
async def test_a_pause_and_its_queued_messages_outlast_a_restart(on_restart: Any) -> None:
    async with counting_tester(policy=Policy(rules=Rules(on_restart=on_restart))) as t:
        t.runners[AGENT].control.set_paused(True)
        send(t, "x")
        await eventually(lambda: t.unread() == [PAUSED_NOTICE])
        await t.restart()
        assert t.runners[AGENT].control.is_paused
        send(t, "y")
        await eventually(lambda: t.unread() == [PAUSED_NOTICE])
        assert counting_agent(t).asked == []
        t.runners[AGENT].control.set_paused(False)
        await t.settled()
        assert t.unread() == ["x 1", "y 2"]
        await t.restart()
        assert not t.runners[AGENT].control.is_paused
        assert await t.say("z") == ["z 3"]


@pytest.mark.parametrize("was_paused", [False, True])
async def test_a_decision_during_the_start_counts_more_than_what_was_stored_before_it(was_paused: bool) -> None:
    operator = "boss@localhost"
    async with counting_tester(policy=Policy(operators=frozenset({operator}))) as t:
        runner, access_requests = t.runners[AGENT], t.gateways[AGENT].access_requests
        await runner.control.set_paused(was_paused)
        await runner.control.access_requests.decide(CAROL, was_paused)
        stored = await runner.repository.load_agent()
        # The agent connects now, which may take long.
        await runner.control.set_paused(not was_paused)
        await runner.control.access_requests.decide(CAROL, not was_paused)
        runner.control.load(stored)
        access_requests.load(stored)
        assert runner.control.is_paused is not was_paused
        assert access_requests.access.is_allowed(CAROL) is not was_paused


async def test_a_program_waits_for_the_end_of_a_pause() -> None:
    async with counting_tester() as t:
        t.runners[AGENT].control.set_paused(True)
        asking = asyncio.create_task(t.ask("x"))
        await eventually(lambda: t.runners[AGENT].mailboxes.count_queued(ALICE) == 1)
        t.runners[AGENT].control.set_paused(False)
        assert (await asking).text == "x 1"


async def test_in_a_pause_commands_run_before_queued_messages() -> None:
    async with counting_tester() as t:
        await t.say("x")
        t.runners[AGENT].control.set_paused(True)
        send(t, "y")
        await eventually(lambda: t.unread() == [PAUSED_NOTICE])
        assert await t.say("/status") == [
            "This conversation is active: 1 of 100 messages, 1 answered in all. I am paused at the moment."
            " You have sent 2 of 1,000,000 messages today (at most 60,000 a minute)."
        ]
        assert "Deleted" in (await t.say("/forget me yes"))[0]
        t.runners[AGENT].control.set_paused(False)
        await t.settled()
        assert t.unread() == []  # what was said before is forgotten too
        assert await t.say("x") == ["x 1"]


async def test_a_paused_agent_can_be_stopped_and_its_queue_is_limited() -> None:
    async with counting_tester(policy=Policy(limits=PlatformLimits(queue=2))) as t:
        t.runners[AGENT].control.set_paused(True)
        for number in range(3):
            send(t, f"{number}")
        await eventually(lambda: len(t.messages()) == 2)
        refusal, told = t.unread()
        assert refusal.startswith("This conversation already has 2 messages waiting")
        assert told == PAUSED_NOTICE
        assert await t.runners[AGENT].drain(1.0)


async def test_nothing_runs_for_an_occupant_who_left_during_a_pause() -> None:
    async with counting_tester() as t:
        runner = t.runners[AGENT]
        await t.say("x")
        runner.control.set_paused(True)
        send(t, "y")
        await eventually(lambda: t.unread() == [PAUSED_NOTICE])
        await t.runtimes[AGENT].ephemeral_owners.erase(ALICE)
        runner.control.set_paused(False)
        await t.settled()
        assert counting_agent(t).asked == ["x"]
        assert await runner.repository.list_people() == []


async def test_status_tells_an_operator_what_the_agent_does_now_and_nobody_else() -> None:
    clock = Clock()

    class Baker:
        """Bakes in a durable step, and waits for the test then."""

        def __init__(self, manifest: AgentDefinition) -> None:
            self.manifest = manifest
            self.release = asyncio.Event()
            self.working = asyncio.Event()

        async def knead(self) -> str:
            return "dough"

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            await session.run_once("knead", self.knead)
            self.working.set()
            await self.release.wait()
            await response.markdown("done")

    async with AgentTester(Baker, user=ALICE, policy=Policy(operators=frozenset({BOB})), clock=clock) as t:
        assert isinstance(t.agent, Baker)
        t.send("bread")
        await asyncio.wait_for(t.agent.working.wait(), TIMEOUT_S)
        clock.advance(seconds=90)
        [status] = await t.say("/status", user=BOB)
        assert "\n\nI am working on 1 answer:\n" in status
        [line] = [line for line in status.splitlines() if "knead" in line]
        assert line.startswith(f"- {ALICE}, for 90 s, last step: knead, waits in test_status_tells_")
        assert line.endswith("Event.wait")
        assert "working on" not in (await t.say("/status", user="carol@localhost"))[-1]
        t.agent.release.set()
        assert (await t.message()).text == "done"
        assert (await t.say("/status", user=BOB))[-1].endswith("\n\nI am working on no answer.")
