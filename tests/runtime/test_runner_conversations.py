"""Conversations in the runner: every transition, echoes, threads, and the lifecycle of the agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, PeerEvent, ResponseHandler, Session, SessionHandle, agent
from spade_coreason.contracts import ConversationState
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError
from spade_coreason.testing import Policy, Rules
from tests.support.clock import Clock, LoopClock
from tests.support.errors import ExpectedErrors
from tests.support.records import query_of
from tests.support.wait import TIMEOUT_S

ALICE = "alice@localhost"
BOB = "bob@localhost"
AGENT = "agent@localhost"
RULES = Rules(max_interactions=2, cooldown_s=300, timeout_s=3600, max_failures=2)
POLICY = Policy(rules=RULES)


@agent
async def counter(request: AgentRequest, session: Session, response: ResponseHandler) -> None:
    """Count the messages of a conversation, and end, raise or fail on request."""
    told = await session.get("told", 0) + 1
    await session.store("told", told, scope="conversation")
    match request.payload["query"]:
        case "end":
            session.end()
        case "raise":
            raise RuntimeError("as told")
        case "error":
            await response.error("as told")
    await response.markdown(f"message {told}")


class EndRecorder:
    """Record the calls of `on_conversation_end`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __call__(self, conversation_id: str, reason: str) -> None:
        self.calls.append((conversation_id, reason))


def counting_tester(clock: Clock, policy: Policy = POLICY, **options: Any) -> AgentTester:
    return AgentTester(counter, policy=policy, clock=clock, user=ALICE, **options)


async def newest_record(t: AgentTester) -> tuple[str, int]:
    newest = (await t.conversations())[0]
    return newest.state.value, newest.interaction_count


# The table


async def test_a_message_counts_and_moves_the_last_interaction() -> None:
    clock = Clock()
    async with counting_tester(clock) as t:
        began = clock.now
        await t.say("x")
        clock.advance(minutes=1)
        await t.say("x")
        (only,) = await t.conversations()
        assert only.model_dump() == {
            "conversation_id": f"{ALICE}_{AGENT}",
            "state": ConversationState.ACTIVE,
            "interaction_count": 2,
            "max_interactions": 2,
            "created_at": began,
            "last_interaction": clock.now,
        }


async def test_programs_that_name_no_thread_have_no_limit() -> None:
    async with counting_tester(Clock()) as t:
        assert [(await t.ask("x")).text for _ in range(5)] == [f"message {number}" for number in range(1, 6)]
        for _ in range(2):
            await t.ask("x", thread="named")
        with pytest.raises(PeerRefusedError, match="limited to 2 messages"):
            await t.ask("x", thread="named")


async def test_over_the_limit_there_is_one_notice_and_then_silence_until_the_cooldown_has_passed() -> None:
    clock, ends = Clock(), EndRecorder()
    async with counting_tester(clock, on_conversation_end=(ends,)) as t:
        assert [await t.say("x") for _ in range(2)] == [["message 1"], ["message 2"]]
        (notice,) = await t.say("x")
        assert "limited to 2 messages" in notice
        assert "Write again in 5 min, or start a new conversation with /new." in notice
        assert await newest_record(t) == ("max_interactions_reached", 2)
        assert ends.calls == [(f"{ALICE}_{AGENT}", "max_interactions_reached")]
        clock.advance(seconds=299)
        assert [await t.say("x") for _ in range(3)] == [[], [], []]
        await t.restart()
        assert await t.say("x") == []
        assert await t.say("x", thread="another") == ["message 1"]
        assert await t.say("x", user=BOB) == ["message 1"]
        clock.advance(seconds=1)
        assert await t.say("x") == ["message 3"]
        assert await newest_record(t) == ("active", 1)


async def test_a_program_over_the_limit_is_refused_each_time_with_a_code_and_a_time() -> None:
    clock = Clock()
    async with counting_tester(clock) as t:
        await t.ask("x", thread="one")
        await t.ask("x", thread="one")
        events: list[PeerEvent] = []

        async def ask() -> None:
            async for event in t.stream("x", thread="one"):
                events.append(event)

        for rest_s, rest in ((300, "5 min"), (299, "5 min"), (99, "99 s")):
            with pytest.raises(
                PeerRefusedError, match=f"a conversation is limited to 2 messages. Write again in {rest}, or start"
            ):
                await ask()
            assert events[-1].data["code"] == 429
            assert events[-1].data["retry_after_s"] == rest_s
            clock.advance(seconds=1 if rest_s == 300 else 200)
        assert (await t.ask("x", thread="one")).text == "message 3"


async def test_without_a_limit_nothing_is_refused() -> None:
    async with counting_tester(Clock(), Policy(rules=Rules(max_interactions=0))) as t:
        assert [(await t.say("x"))[0] for _ in range(120)][-1] == "message 120"


@pytest.mark.parametrize(("told", "state"), [("end", "completed"), ("raise", "error")])
async def test_a_message_after_the_end_opens_a_new_episode_with_the_same_variables(
    told: str, state: str, expected_errors: ExpectedErrors
) -> None:
    if told == "raise":
        expected_errors("RuntimeError: as told")
    clock, ends = Clock(), EndRecorder()
    policy = Policy(rules=Rules(max_failures=1))
    async with counting_tester(clock, policy, on_conversation_end=(ends,)) as t:
        await t.say("x")
        await t.say(told)
        assert await newest_record(t) == (state, 2)
        assert ends.calls == [(f"{ALICE}_{AGENT}", state)]
        clock.advance(days=30)
        await t.runners[AGENT].conversations.expiry.expire_idle()
        assert await newest_record(t) == (state, 2)  # idle is only who is active
        assert await t.say("x") == ["message 3"]
        assert await newest_record(t) == ("active", 1)


async def test_a_program_is_told_that_the_conversation_is_completed() -> None:
    async with counting_tester(Clock()) as t:
        assert (await t.ask("x")).events[-1].data["state"] == "active"
        assert (await t.ask("end")).events[-1].data["state"] == "completed"


async def test_an_idle_conversation_times_out_and_a_message_opens_the_next_episode() -> None:
    clock, ends = Clock(), EndRecorder()
    async with counting_tester(clock, on_conversation_end=(ends,)) as t:
        await t.say("x")
        clock.advance(minutes=59)
        await t.runners[AGENT].conversations.expiry.expire_idle()
        assert await newest_record(t) == ("active", 1)
        clock.advance(minutes=1)
        await t.runners[AGENT].conversations.expiry.expire_idle()
        assert await newest_record(t) == ("timeout", 1)
        assert ends.calls == [(f"{ALICE}_{AGENT}", "timeout")]
        assert await t.say("x") == ["message 2"]
        assert await newest_record(t) == ("active", 1)


async def test_a_message_that_comes_before_the_timeout_is_noticed_ends_the_old_episode_first() -> None:
    clock, ends = Clock(), EndRecorder()
    async with counting_tester(clock, on_conversation_end=(ends,)) as t:
        await t.say("x")
        await t.say("x")
        clock.advance(hours=2)
        assert await t.say("x") == ["message 3"]
        assert ends.calls == [(f"{ALICE}_{AGENT}", "timeout")]
        assert await newest_record(t) == ("active", 1)


async def test_a_conversation_times_out_by_itself() -> None:
    done = asyncio.Event()
    policy = Policy(rules=Rules(timeout_s=0.1))
    async with AgentTester(counter, policy=policy, on_conversation_end=(lambda *_: done.set(),)) as t:
        await t.say("x")
        async with asyncio.timeout(TIMEOUT_S):
            await done.wait()
        assert await newest_record(t) == ("timeout", 1)


async def test_a_conversation_that_was_idle_before_a_restart_times_out_after_it() -> None:
    clock, done = Clock(), asyncio.Event()
    async with counting_tester(clock, on_conversation_end=(lambda *_: done.set(),)) as t:
        await t.say("x")
        clock.advance(hours=2)
        await t.restart()
        async with asyncio.timeout(TIMEOUT_S):
            await done.wait()
        assert await newest_record(t) == ("timeout", 1)


async def test_several_failures_in_a_row_end_in_error(expected_errors: ExpectedErrors) -> None:
    expected_errors("RuntimeError: as told")
    async with counting_tester(Clock(), Policy(rules=Rules(max_failures=3))) as t:
        for told in ("raise", "raise", "x", "raise", "raise"):
            await t.say(told)
        assert await newest_record(t) == ("active", 5)
        await t.say("raise")
        assert await newest_record(t) == ("error", 6)


async def test_an_error_that_the_agent_reports_is_no_failed_turn() -> None:
    async with counting_tester(Clock(), Policy(rules=Rules(max_failures=1))) as t:
        with pytest.raises(PeerFailedError, match="as told"):
            await t.ask("error")
        assert await newest_record(t) == ("active", 1)


async def test_every_callback_of_an_end_is_called_also_if_one_raises(expected_errors: ExpectedErrors) -> None:
    expected_errors("RuntimeError: a callback of somebody")
    calls = []

    class Listening:
        manifest = AgentDefinition.simple("listening")

        async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
            session.end()

        async def on_conversation_end(self, conversation_id: str, reason: str) -> None:
            calls.append("the agent")

    def raising(conversation_id: str, reason: str) -> None:
        calls.append("raising")
        raise RuntimeError("a callback of somebody")

    async def coroutine(conversation_id: str, reason: str) -> None:
        calls.append("coroutine")

    async with AgentTester(Listening, on_conversation_end=(raising, coroutine)) as t:
        await t.ask("x")
        await t.ask("x")
    assert calls == ["raising", "coroutine", "the agent"] * 2


# Echoes


async def test_ten_messages_that_echo_the_last_reply_are_paused_with_one_notice() -> None:
    @agent
    async def constant_agent(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("Hello!")

    clock = Clock()
    async with AgentTester(constant_agent, clock=clock) as t:
        assert await t.say("hi") == ["Hello!"]
        answers = [await t.say(f"> Hello! you said, {number}") for number in range(14)]
        assert answers[:9] == [["Hello!"]] * 9
        assert "goes round in circles" in answers[9][0]
        with pytest.raises(PeerRefusedError, match="goes round in circles"):  # the same conversation, by a program
            await t.ask("x")
        assert answers[10:] == [[]] * 4
        assert await newest_record(t) == ("max_interactions_reached", 10)
        clock.advance(seconds=300)
        assert await t.say("hi") == ["Hello!"]


async def test_a_message_without_an_echo_resets_the_count() -> None:
    @agent
    async def constant_agent(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("Hello!")

    async with AgentTester(constant_agent) as t:
        for number in range(30):
            assert await t.say("something else" if number % 9 == 0 else "Hello!") == ["Hello!"]


async def test_a_program_that_repeats_its_question_is_no_echo() -> None:
    @agent
    async def repeating_agent(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(request.payload["query"])

    async with AgentTester(repeating_agent) as t:
        assert {(await t.ask("same")).text for _ in range(30)} == {"same"}


# Whose conversation is which


@agent
async def secret_keeper(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    """Store a secret, and reply with everything that it knows about the sender."""
    if (text := request.payload["query"]).startswith("keep "):
        await session.store("secret", text.removeprefix("keep "))
    past = [query_of(turn) for turn in await session.history()]
    await response.markdown(f"{await session.get('secret')} {past} {await session.recall('keep')}")


async def clear_conversation(t: AgentTester, conversation_id: str) -> None:
    """Delete a conversation as `sessions clear` does: while the platform is stopped."""
    repository = t.runners[AGENT].repository
    (row,) = [row for row in await repository.list_conversations() if row.conversation_id == conversation_id]
    await repository.delete_conversation(row)
    await t.restart()


NO_DATA = ["None [] []"]


async def test_two_people_with_the_same_thread_have_separate_data() -> None:
    async with AgentTester(secret_keeper) as t:
        await t.say("keep alice's", thread="t", user=ALICE)
        assert await t.say("show", thread="t", user=BOB) == NO_DATA
        await t.say("keep bob's", thread="t", user=BOB)
        assert "bob" not in (await t.say("show", thread="t", user=ALICE))[0]
        await t.restart()
        assert "bob" not in (await t.say("show", thread="t", user=ALICE))[0]
        assert "alice" not in (await t.say("show", thread="t", user=BOB))[0]


async def test_nothing_crosses_after_the_first_conversation_was_cleared() -> None:
    async with AgentTester(secret_keeper) as t:
        await t.say("keep alice's", thread="t", user=ALICE)
        await t.say("keep bob's", thread="t", user=BOB)
        await clear_conversation(t, "t")
        assert "bob" not in (await t.say("show", thread="t", user=ALICE))[0]
        shown = (await t.say("show", thread="t", user=BOB))[0]
        assert shown.startswith("bob's ['keep bob's'") or shown.startswith("bob's [\"keep bob")
        await clear_conversation(t, f"t_{BOB}")
        assert await t.say("show", thread="t", user="carol@localhost") == NO_DATA


@pytest.mark.parametrize("thread", [f"{ALICE}_{AGENT}", f"t_{ALICE}"])
async def test_a_thread_named_like_anothers_conversation_id_opens_nothing(thread: str) -> None:
    async with AgentTester(secret_keeper) as t:
        await t.say("keep alice's", user=ALICE)
        await t.say("keep alice's", user=ALICE, thread="t")
        assert await t.say("show", user=BOB, thread=thread) == NO_DATA
        # And the other way round: who comes first with such a thread takes nobody's place.
        await t.say("keep bob's", user=BOB, thread=f"carol@localhost_{AGENT}")
        assert await t.say("show", user="carol@localhost") == NO_DATA


async def test_people_who_begin_the_same_thread_at_once_get_separate_conversations() -> None:
    async with AgentTester(secret_keeper) as t:
        people = [f"person{number}@localhost" for number in range(20)]
        await asyncio.gather(*(t.say(f"keep <{who}>", thread="t", user=who) for who in people))
        for who in people:
            (shown,) = await t.say("show", thread="t", user=who)
            assert shown.count("<person") == shown.count(f"<{who}>") > 0
        assert len(await t.conversations()) == 20


# The lifecycle


class LifecycleAgent:
    """Opens and closes something."""

    manifest = AgentDefinition.simple("resource")

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails = 0
        self.closed = asyncio.Event()

    async def startup(self) -> None:
        self.log.append("startup")
        if self.fails:
            self.fails -= 1
            raise OSError("not yet")

    async def shutdown(self) -> None:
        self.log.append("shutdown")
        self.closed.set()

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        self.log.append(request.payload["query"])
        if request.payload["query"] == "end":
            session.end()


ON_DEMAND = Policy(rules=Rules(lifecycle="on_demand", idle_shutdown_s=0.02))


async def test_eager_starts_before_the_first_message_and_shuts_down_at_the_end() -> None:
    lifecycle_agent = LifecycleAgent()
    async with AgentTester(lifecycle_agent) as t:
        assert lifecycle_agent.log == ["startup"]
        await t.ask("end")
    assert lifecycle_agent.log == ["startup", "end", "shutdown"]


async def test_on_demand_starts_with_the_first_conversation_and_shuts_down_when_none_is_active() -> None:
    lifecycle_agent = LifecycleAgent()
    async with AgentTester(lifecycle_agent, policy=ON_DEMAND) as t:
        assert lifecycle_agent.log == []
        await asyncio.gather(*(t.ask("x", thread=str(number)) for number in range(3)))
        assert lifecycle_agent.log == ["startup", "x", "x", "x"]
        for number in range(3):
            await t.ask("end", thread=str(number))
        async with asyncio.timeout(TIMEOUT_S):
            await lifecycle_agent.closed.wait()
        assert lifecycle_agent.log[4:] == ["end", "end", "end", "shutdown"]
        await t.ask("x")
        assert lifecycle_agent.log[8:] == ["startup", "x"]
    assert lifecycle_agent.log[8:] == ["startup", "x", "shutdown"]


async def test_on_demand_without_a_conversation_starts_nothing() -> None:
    lifecycle_agent = LifecycleAgent()
    async with AgentTester(lifecycle_agent, policy=ON_DEMAND):
        pass
    assert lifecycle_agent.log == []


async def test_a_startup_that_fails_is_an_answer_with_an_error_and_is_tried_again(expected_errors: ExpectedErrors) -> None:
    expected_errors("OSError: not yet")
    lifecycle_agent = LifecycleAgent()
    lifecycle_agent.fails = 1
    async with AgentTester(lifecycle_agent, policy=ON_DEMAND) as t:
        with pytest.raises(PeerFailedError, match="Something went wrong"):
            await t.ask("x")
        assert (await t.ask("x")).events[-1].type == "request.completed"
    assert lifecycle_agent.log == ["startup", "startup", "x", "shutdown"]


async def test_the_startup_does_not_count_for_the_timeout_of_the_first_turn() -> None:
    begun: list[str] = []

    class Slow(LifecycleAgent):
        async def startup(self) -> None:
            begun.append("startup")
            await asyncio.sleep(0.6)

        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            begun.append("assist")
            await asyncio.sleep(0.6)

    async with AgentTester(
        Slow(), policy=Policy(rules=Rules(lifecycle="on_demand", idle_shutdown_s=0.02, assist_timeout_s=1.0))
    ) as t:
        with LoopClock() as clock:
            asking = asyncio.create_task(t.ask("x"))
            for what in ("startup", "assist"):
                await clock.wait_for(lambda what=what: begun[-1:] == [what])  # type: ignore[misc]  # mypy knows no type of a lambda with a default
                await clock.advance(0.6)
            assert (await asking).events[-1].type == "request.completed"


async def test_plain_functions_run_in_a_thread() -> None:
    import threading

    where = []

    class Plain(LifecycleAgent):
        def startup(self) -> None:  # type: ignore[override]  # both are allowed
            where.append(threading.current_thread() is threading.main_thread())

        def shutdown(self) -> None:  # type: ignore[override]  # likewise
            where.append(threading.current_thread() is threading.main_thread())

    async with AgentTester(Plain):
        pass
    assert where == [False, False]


async def test_long_conversations_of_one_sender_do_not_all_stay_in_memory() -> None:
    @agent
    async def length(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        past = [len(query_of(turn)) for turn in await session.history()]
        await response.markdown(f"{len(request.payload['query'])} after {past}")

    text = "x" * 2**20
    async with AgentTester(length) as t:
        mailboxes = t.runners["agent@localhost"].executor.context.mailboxes
        for round_ in range(2):
            for number in range(12):
                await t.say(text, thread=f"t{number}")
            kept = [mailbox.active.turns.characters for mailbox in mailboxes if mailbox.active is not None]
            assert 0 < sum(kept) <= 2 * 2**20, round_
            assert await t.say("short", user="bob@localhost", thread="b") == [f"5 after {[5] * round_}"]
        assert await t.say("x", thread="t11") == ["1 after [1048576, 1048576]"]


async def test_a_thousand_short_conversations_of_one_sender_do_not_all_stay_in_memory() -> None:
    @agent
    async def repeat(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(request.payload["query"])

    text = "x" * 2000
    async with AgentTester(repeat) as t:
        mailboxes = t.runners["agent@localhost"].executor.context.mailboxes
        for number in range(1200):
            assert await t.say(f"{text}{number}", thread=f"t{number}") == [f"{text}{number}"]
        kept = [mailbox.active.turns.characters for mailbox in mailboxes if mailbox.active is not None]
        assert 0 < sum(kept) <= 2 * 2**20
