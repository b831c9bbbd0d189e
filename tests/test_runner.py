"""Turns as the runner runs them: in order, each once, bounded, and alone in their failures."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentTester,
    ConversationState,
    PeerFailed,
    Policy,
    ResponseHandler,
    StreamHandle,
    agent,
)
from tests.clock import Clock

ALICE = "alice@localhost"
BOB = "bob@localhost"
AGENT = "agent@localhost"


@agent
async def echo(request: Any, session: Any, response: Any) -> None:
    await response.markdown(request.payload["query"])


def message(text: str, stanza_id: str | None = None, thread: str | None = None) -> str:
    named = f" id='{stanza_id}'" if stanza_id else ""
    said = f"<thread>{thread}</thread>" if thread else ""
    return f"<message to='{AGENT}' type='chat'{named}><body>{text}</body>{said}</message>"


async def answers_to(t: AgentTester, *stanzas: str, user: str = ALICE) -> list[str]:
    for stanza in stanzas:
        t.send_stanza(stanza, user=user)
    await t.settled()
    return t.unread(user)


# Order


async def test_a_conversation_is_in_order_one_turn_at_a_time() -> None:
    running = 0

    @agent
    async def alone(request: Any, session: Any, response: Any) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.001 * (int(request.payload["query"]) % 3))
        await response.markdown(request.payload["query"])
        running -= 1

    async with AgentTester(alone) as t:
        texts = [str(number) for number in range(30)]
        assert await answers_to(t, *map(message, texts)) == texts


async def test_a_slow_conversation_delays_no_other() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: Any, session: Any, response: Any) -> None:
        if request.payload["query"] == "slow":
            await release.wait()
        await response.markdown(request.payload["query"])

    async with AgentTester(slow) as t:
        waiting = asyncio.create_task(t.say("slow", user=ALICE))
        assert await t.say("quick", user=BOB) == ["quick"]
        assert await t.say("quick", user=ALICE, thread="other") == ["quick"]
        assert not waiting.done()
        release.set()
        assert await waiting == ["slow"]


async def test_no_more_turns_at_once_than_allowed() -> None:
    full = asyncio.Event()
    running = most = 0

    @agent
    async def counting(request: Any, session: Any, response: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        running -= 1

    async with AgentTester(counting, policy=Policy(concurrency=3)) as t:
        await asyncio.gather(*(t.ask("x", user=f"u{number}@localhost") for number in range(20)))
        assert most == 3


async def test_one_person_with_many_threads_leaves_room_for_others() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: Any, session: Any, response: Any) -> None:
        if request.payload["query"] == "slow":
            await release.wait()
        await response.markdown(request.payload["query"])

    async with AgentTester(slow, policy=Policy(concurrency=8)) as t:
        waiting = [asyncio.create_task(t.say("slow", user=ALICE, thread=str(number))) for number in range(50)]
        assert await t.say("quick", user=BOB) == ["quick"]
        assert not any(task.done() for task in waiting)
        release.set()
        assert await asyncio.gather(*waiting) == [["slow"]] * 50


async def test_a_conversation_with_too_many_waiting_is_told_so_and_others_are_not_hindered() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: Any, session: Any, response: Any) -> None:
        await release.wait()
        await response.markdown(request.payload["query"])

    async with AgentTester(slow, policy=Policy(queue=3)) as t:
        for number in range(6):
            t.send_stanza(message(f"no {number}"), user=ALICE)
        other = asyncio.create_task(t.say("bob's", user=BOB))
        while not (refused := t.unread(ALICE)):  # noqa: ASYNC110 - it comes within the next steps of the loop
            await asyncio.sleep(0)
        assert [text.partition(";")[0] for text in refused] == ["3 messages of this conversation wait already"]
        release.set()
        assert await other == ["bob's"]
        await t.settled()
        answered = [text for text in t.unread(ALICE) if text.startswith("no ")]
        assert answered == ["no 0", "no 1", "no 2"]


async def test_one_person_cannot_let_any_number_of_messages_wait() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: Any, session: Any, response: Any) -> None:
        await release.wait()
        await response.markdown("done")

    async with AgentTester(slow, policy=Policy(queue=3, concurrency=4)) as t:
        for number in range(60):
            t.send_stanza(message("x", str(number), thread=str(number)), user=ALICE)
        other = asyncio.create_task(t.say("bob's", user=BOB))
        await asyncio.sleep(0)
        release.set()
        assert await other == ["done"]
        await t.settled()
        texts = t.unread(ALICE)
        assert 30 <= texts.count("done") < 40
        assert [text for text in texts if text != "done"] == [
            "30 messages of yours wait already; until some are answered no more are kept."
        ]


# Each once


async def test_the_same_message_twice_is_answered_once_also_after_a_restart() -> None:
    async with AgentTester(echo) as t:
        assert await answers_to(t, message("hi", "1"), message("hi", "1")) == ["hi"]
        assert await answers_to(t, message("hi", "1")) == []
        await t.restart()
        assert await answers_to(t, message("hi", "1")) == []


async def test_another_content_thread_or_sender_with_the_same_id_is_another_message() -> None:
    async with AgentTester(echo) as t:
        assert await answers_to(t, message("hi", "1"), message("ho", "1")) == ["hi", "ho"]
        assert await answers_to(t, message("hi", "1", thread="t")) == ["hi"]
        assert await answers_to(t, message("hi", "1"), user=BOB) == ["hi"]


async def test_a_message_without_an_id_is_never_a_duplicate() -> None:
    async with AgentTester(echo) as t:
        assert await answers_to(t, message("hi"), message("hi")) == ["hi", "hi"]


async def test_after_seven_days_the_same_message_is_new() -> None:
    clock = Clock()
    async with AgentTester(echo, clock=clock) as t:
        assert await answers_to(t, message("hi", "1")) == ["hi"]
        for days, answers in ((6, []), (2, ["hi"])):
            clock.move(days=days)
            await t.restart()
            assert await answers_to(t, message("hi", "1")) == answers


# What an agent may do to itself

Assist = Callable[[ResponseHandler], Awaitable[None]]


async def raises(response: ResponseHandler) -> None:
    await response.markdown("begun")
    raise ZeroDivisionError("a secret")


async def exits(response: ResponseHandler) -> None:
    sys.exit("a secret")


async def is_cancelled(response: ResponseHandler) -> None:
    raise asyncio.CancelledError("a secret")


class Private(BaseException):
    """What no `except Exception` catches."""


async def raises_no_exception(response: ResponseHandler) -> None:
    raise Private("a secret")


async def leaves_its_coroutine(response: ResponseHandler) -> None:
    raise GeneratorExit("a secret")


async def raises_a_group_of_no_exceptions(response: ResponseHandler) -> None:
    raise BaseExceptionGroup("secrets", [Private("a secret")])


def cancel_oneself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel("a secret")


async def cancels_itself(response: ResponseHandler) -> None:
    cancel_oneself()
    await asyncio.Event().wait()


async def cancels_itself_and_raises(response: ResponseHandler) -> None:
    cancel_oneself()
    raise ValueError("a secret")


async def raises_a_timeout(response: ResponseHandler) -> None:
    raise TimeoutError("a secret")


async def raises_a_group(response: ResponseHandler) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises(response))


async def says_no_text(response: ResponseHandler) -> None:
    await response.markdown(7)  # type: ignore[arg-type]


async def shows_no_json(response: ResponseHandler) -> None:
    await response.data({"a": object()})


def misbehaving(assist: Assist) -> Any:
    @agent(name="misbehaving")
    async def made(request: Any, session: Any, response: Any) -> None:
        if request.payload["query"] == "go":
            await assist(response)
        else:
            await response.markdown("still here")

    return made


FAILING: list[Assist] = [
    raises,
    exits,
    is_cancelled,
    raises_no_exception,
    leaves_its_coroutine,
    raises_a_group_of_no_exceptions,
    cancels_itself,
    cancels_itself_and_raises,
    raises_a_timeout,
    raises_a_group,
    says_no_text,
    shows_no_json,
]


@pytest.mark.parametrize("assist", FAILING)
async def test_an_agent_that_fails_fails_alone_with_one_incident(assist: Assist, caplog: pytest.LogCaptureFixture) -> None:
    async with AgentTester(misbehaving(assist)) as t:
        with caplog.at_level(logging.CRITICAL), pytest.raises(PeerFailed, match=r"went wrong on my side \(incident") as error:
            await t.ask("go")
        assert error.value.code == 500
        assert "secret" not in str(error.value)
        texts = await t.say("go")
        assert texts[-1].startswith("Something went wrong on my side (incident ")
        assert sum("incident" in text for text in texts) == 1
        assert await t.say("hello") == ["still here"]
        assert (await t.ask("hello")).text == "still here"
        # Nothing of it waits for the next start.
        await t.restart()
        await t.settled()
        assert t.unread() == []


async def test_an_agent_that_cancels_its_own_task_and_returns_has_answered() -> None:
    async def cancels_itself_at_the_end(response: ResponseHandler) -> None:
        await response.markdown("an answer")
        cancel_oneself()

    async with AgentTester(misbehaving(cancels_itself_at_the_end)) as t:
        assert (await t.ask("go")).text == "an answer"
        assert await t.say("go") == ["an answer"]
        assert await t.say("hello") == ["still here"]


async def test_hanging_ends_with_the_assist_timeout() -> None:
    async def hangs(response: ResponseHandler) -> None:
        await asyncio.Event().wait()

    async with AgentTester(misbehaving(hangs), policy=Policy(assist_timeout_s=0.05)) as t:
        with pytest.raises(PeerFailed, match=r"could not finish this within 0\.05 s") as error:
            await t.ask("go")
        assert error.value.code == 504
        assert await t.say("hello") == ["still here"]


async def test_an_agent_that_swallows_its_cancellation_does_not_hold_its_conversation() -> None:
    async def never_ends(response: ResponseHandler) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async with AgentTester(misbehaving(never_ends), policy=Policy(assist_timeout_s=0.05)) as t:
        with pytest.raises(PeerFailed, match=r"could not finish this within 0\.05 s"):
            await t.ask("go")
        assert await t.say("hello") == ["still here"]


async def test_what_is_emitted_after_the_turn_is_an_error_of_the_agent() -> None:
    late: asyncio.Queue[type[BaseException] | None] = asyncio.Queue()
    over = asyncio.Event()
    tasks = []

    async def emits_late(response: ResponseHandler) -> None:
        stream = await response.create_stream()
        await stream.write("in time")

        async def emit() -> None:
            await over.wait()
            assert not stream.is_active
            calls = (
                response.markdown("late"),
                response.thought("late"),
                response.data({}),
                response.error("late"),
                response.create_stream(),
                stream.write("late"),
                response.log("INFO", "late"),
            )
            for call in calls:
                try:
                    await call
                except RuntimeError:
                    late.put_nowait(RuntimeError)
                else:
                    late.put_nowait(None)
            await stream.close()
            await stream.abort("late")

        tasks.append(asyncio.create_task(emit()))

    async with AgentTester(misbehaving(emits_late)) as t:
        assert (await t.ask("go")).text == "in time"
        over.set()
        assert [await late.get() for _ in range(7)] == [RuntimeError] * 7
        await asyncio.gather(*tasks)
        assert await t.say("hello") == ["still here"]


@pytest.mark.parametrize("how", ["a block", "a stream"])
async def test_an_answer_of_5_mb_arrives_whole(how: str) -> None:
    text = 'é<&>"\\ ' * (5_000_000 // 12)

    async def floods(response: ResponseHandler) -> None:
        if how == "a block":
            await response.markdown(text)
            return
        stream = await response.create_stream()
        await stream.write(text)

    async with AgentTester(misbehaving(floods), policy=Policy(file_over_bytes=0)) as t:
        assert (await t.ask("go")).text == text.strip()
        parts = await t.say("go")
        assert len(parts) > 50
        assert "".join(parts).replace(" ", "") == text.replace(" ", "")
        assert await t.say("hello") == ["still here"]


async def test_characters_that_xml_forbids_are_removed() -> None:
    async def speaks_control(response: ResponseHandler) -> None:
        await response.markdown("a\x00\x1bb\ud800c")

    async with AgentTester(misbehaving(speaks_control)) as t:
        assert await t.say("go") == ["abc"]
        assert (await t.ask("go")).text.startswith("a\x00\x1bb")  # JSON can say what XML cannot
        assert await t.say("hello") == ["still here"]


# Streams


async def test_a_stream_that_is_never_closed_is_closed() -> None:
    async def forgets(response: ResponseHandler) -> None:
        await (await response.create_stream()).write("text")

    async with AgentTester(misbehaving(forgets)) as t:
        answer = await t.ask("go")
        assert [event.type for event in answer.events][-2:] == ["stream.end", "request.completed"]
        assert await t.say("go") == ["text"]


async def test_a_stream_of_a_turn_that_raises_is_aborted() -> None:
    async def raises_in_a_stream(response: ResponseHandler) -> None:
        await (await response.create_stream()).write("text ")
        raise RuntimeError("as told")

    async with AgentTester(misbehaving(raises_in_a_stream)) as t:
        events = []
        try:
            async for event in t.stream("go"):
                events.append(event.type)
        except PeerFailed:
            events.append("raised")
        assert events == ["stream.start", "stream.chunk", "stream.abort", "block.error", "request.failed", "raised"]
        said = await t.say("go")
        assert said[0] == "text… (interrupted: the turn failed)"
        assert "incident" in said[1]


async def test_streams_interleave_and_an_aborted_one_concerns_itself_only() -> None:
    async def interleaves(response: ResponseHandler) -> None:
        one, two = await response.create_stream("one"), await response.create_stream("two")
        assert isinstance(one, StreamHandle)
        await one.write("a ")
        await two.write("b ")
        await one.write("c")
        await one.abort("enough")
        for ended in (one.close(), one.abort("twice")):
            await ended
        with pytest.raises(RuntimeError):
            await one.write("late")
        await two.write("d")
        await two.close()

    async with AgentTester(misbehaving(interleaves)) as t:
        answer = await t.ask("go")
        assert answer.text == "a c\n\nb d"
        assert answer.events[-1].type == "request.completed"
        assert await t.say("go") == ["a c… (interrupted: enough)", "b d"]


async def test_ids_of_one_answer_are_all_different_and_the_sequence_counts() -> None:
    async def speaks(response: ResponseHandler) -> None:
        stream = await response.create_stream()
        for number in range(5):
            await stream.write(str(number))
        await response.markdown("block")

    async with AgentTester(misbehaving(speaks)) as t:
        events = (await t.ask("go")).events
        assert [event.data["seq"] for event in events if event.type == "stream.chunk"] == list(range(5))
        ids = [
            event.data.get("id") or event.data["stream_id"]
            for event in events
            if event.type in ("stream.start", "block.markdown")
        ]
        assert len(set(ids)) == 2


# What stays of a turn that failed


async def test_a_failed_turn_is_in_the_history_and_what_it_stored_is_kept() -> None:
    @agent
    async def failing(request: Any, session: Any, response: Any) -> None:
        if past := await session.history():
            assert past[0].output["error"]["user_message"].startswith("Something went wrong")
            await response.markdown(await session.get("v"))
            return
        await session.store("v", "stored before it failed")
        raise RuntimeError("as told")

    async with AgentTester(failing) as t:
        with pytest.raises(PeerFailed):
            await t.ask("x")
        await t.restart()
        assert (await t.ask("y")).text == "stored before it failed"


async def test_the_details_of_an_error_stay_in_the_process_and_in_the_history() -> None:
    async def reports(response: ResponseHandler) -> None:
        await response.error("out of order", {"secret": "s3cret"}, recoverable=True)

    async with AgentTester(misbehaving(reports)) as t:
        with pytest.raises(PeerFailed) as error:
            await t.ask("go")
        assert error.value.problem == "reports: out of order"
        assert "s3cret" not in str(error.value)
        assert await t.say("go") == ["out of order"]
        (turn, _) = await t.runners[AGENT].store.history((await t.runners[AGENT].store.conversations())[0].id, 2)
        assert "s3cret" in turn


# Restart


class Working:
    """Hangs the first time."""

    manifest = AgentDefinition.simple("working")

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        if not request.metadata.get("redelivered"):
            await response.thought("begun")
            self.begun.set()
            await asyncio.Event().wait()
        await response.markdown(f"{request.payload['query']}, redelivered; {len(await session.history())} before")


async def test_what_was_not_finished_runs_again_in_order_after_a_restart_marked_as_redelivered() -> None:
    working = Working()
    async with AgentTester(working, user=ALICE) as t:
        t.send_stanza(message("one", "1"))
        t.send_stanza(message("two", "2"))
        await working.begun.wait()
        await t.restart(grace_s=0)
        await t.settled()
        assert t.unread() == ["one, redelivered; 0 before", "two, redelivered; 1 before"]
        await t.restart()
        assert await answers_to(t, message("two", "2")) == []


async def test_a_program_gets_its_answer_from_the_second_run_which_counts_once() -> None:
    working = Working()
    async with AgentTester(working) as t:
        asking = asyncio.create_task(t.ask("one"))
        await working.begun.wait()
        await t.restart(grace_s=0)
        assert (await asking).text == "one, redelivered; 0 before"
        (only,) = await t.conversations()
        assert only.interaction_count == 1


@pytest.mark.parametrize("how", ["blocks", "a stream"])
async def test_what_the_second_run_says_differently_counts(how: str) -> None:
    class Fickle(Working):
        async def assist(self, request: Any, session: Any, response: Any) -> None:
            again = bool(request.metadata.get("redelivered"))
            words = ["the same, ", "but better"] if again else ["the same, ", "worse, ", "and worse"]
            if how == "blocks":
                for word in words:
                    await response.markdown(word)
                await response.thought("done")  # with which the last block leaves
            else:
                stream = await response.create_stream()
                for word in words:
                    await stream.write(word)
            if not again:
                self.begun.set()
                await asyncio.Event().wait()

    fickle = Fickle()
    async with AgentTester(fickle) as t:
        asking = asyncio.create_task(t.ask("one"))
        await fickle.begun.wait()
        await t.restart(grace_s=0)
        answer = await asking
        assert sum("the same, " in event.data.values() for event in answer.events) == 1
        if how == "a stream":
            assert answer.text == "the same, but better"
        else:
            assert answer.text == "the same,\n\nbut better\n\nand worse"  # a block that left cannot be taken back


async def test_what_was_interrupted_is_reported_where_so_configured() -> None:
    working = Working()
    async with AgentTester(working, policy=Policy(on_restart="report")) as t:
        t.send_stanza(message("one", "1"), user=ALICE)
        asking = asyncio.create_task(t.ask("one", user=BOB))
        await working.begun.wait()
        await t.restart(grace_s=0)
        with pytest.raises(PeerFailed, match="interrupted before I could answer this"):
            await asking
        await t.settled()
        assert t.unread(ALICE) == ["I was interrupted before I could answer this. Please ask again."]
        assert [record.interaction_count for record in await t.conversations()] == [0, 0]
        await t.restart()
        await t.settled()
        assert t.unread(ALICE) == []


async def test_within_the_grace_period_a_turn_is_finished() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @agent
    async def slow(request: Any, session: Any, response: Any) -> None:
        begun.set()
        await release.wait()
        await response.markdown(f"finished {request.metadata.get('redelivered')}")

    async with AgentTester(slow) as t:
        asking = asyncio.create_task(t.ask("x"))
        await begun.wait()
        restarting = asyncio.create_task(t.restart(grace_s=5))
        await asyncio.sleep(0)
        release.set()
        await restarting
        assert (await asking).text == "finished None"
        (only,) = await t.conversations()
        assert (only.state, only.interaction_count) == (ConversationState.ACTIVE, 1)


async def test_the_clock_of_a_turn_is_the_platforms() -> None:
    clock = Clock()
    async with AgentTester(echo, clock=clock) as t:
        await t.ask("x")
        (only,) = await t.conversations()
        assert only.last_interaction == clock.now
        clock.move(seconds=1)
        await t.ask("x")
        (only,) = await t.conversations()
        assert only.last_interaction - only.created_at == timedelta(seconds=1)
