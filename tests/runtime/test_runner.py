"""The turns of the runner: in order, each once, and bounded."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta

from spade_coreason import AgentRequest, AgentTester, ResponseHandler, SessionHandle, agent
from spade_coreason.runtime.replies.output import TurnOutput
from spade_coreason.testing import PlatformLimits, Policy, RunnerTimings
from tests.support.clock import Clock
from tests.support.stanzas import collect_replies, message
from tests.support.wait import eventually

ALICE = "alice@localhost"
BOB = "bob@localhost"


@agent
async def echo(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    await response.markdown(request.payload["query"])


# Order


async def test_a_conversation_is_in_order_one_turn_at_a_time() -> None:
    running = 0

    @agent
    async def alone(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.001 * (int(request.payload["query"]) % 3))
        await response.markdown(request.payload["query"])
        running -= 1

    async with AgentTester(alone) as t:
        texts = [str(number) for number in range(30)]
        assert await collect_replies(t, *map(message, texts)) == texts


async def test_a_slow_conversation_delays_no_other() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
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
    running = peak = 0

    @agent
    async def counting(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        if running == 3:
            full.set()
        await full.wait()
        running -= 1

    async with AgentTester(counting, policy=Policy(limits=PlatformLimits(concurrency=3))) as t:
        await asyncio.gather(*(t.ask("x", user=f"u{number}@localhost") for number in range(20)))
        assert peak == 3


async def test_one_person_with_many_threads_leaves_room_for_others() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "slow":
            await release.wait()
        await response.markdown(request.payload["query"])

    async with AgentTester(slow, policy=Policy(limits=PlatformLimits(concurrency=8))) as t:
        waiting = [asyncio.create_task(t.say("slow", user=ALICE, thread=str(number))) for number in range(50)]
        assert await t.say("quick", user=BOB) == ["quick"]
        assert not any(task.done() for task in waiting)
        release.set()
        assert await asyncio.gather(*waiting) == [["slow"]] * 50


async def test_a_conversation_with_a_full_queue_is_told_so_and_others_are_not_delayed() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown(request.payload["query"])

    async with AgentTester(slow, policy=Policy(limits=PlatformLimits(queue=3))) as t:
        for number in range(6):
            t.send_stanza(message(f"no {number}"), user=ALICE)
        other = asyncio.create_task(t.say("bob's", user=BOB))
        while not (refused := t.unread(ALICE)):  # noqa: ASYNC110 - it comes within the next steps of the loop
            await asyncio.sleep(0)
        assert [text.partition(".")[0] for text in refused] == ["This conversation already has 3 messages waiting"]
        release.set()
        assert await other == ["bob's"]
        await t.settled()
        answered = [text for text in t.unread(ALICE) if text.startswith("no ")]
        assert answered == ["no 0", "no 1", "no 2"]


async def test_the_queued_messages_of_one_person_are_limited() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown("done")

    async with AgentTester(slow, policy=Policy(limits=PlatformLimits(queue=3, concurrency=4))) as t:
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
            "You already have 30 messages waiting. New ones are not accepted until some are answered."
        ]


# Each once


async def test_the_same_message_twice_is_answered_once_also_after_a_restart() -> None:
    async with AgentTester(echo) as t:
        assert await collect_replies(t, message("hi", "1", is_unique=True), message("hi", "1", is_unique=True)) == ["hi"]
        assert await collect_replies(t, message("hi", "1", is_unique=True)) == []
        await t.restart()
        assert await collect_replies(t, message("hi", "1", is_unique=True)) == []


async def test_another_content_thread_or_sender_with_the_same_id_is_another_message() -> None:
    async with AgentTester(echo) as t:
        assert await collect_replies(t, message("hi", "1"), message("ho", "1")) == ["hi", "ho"]
        assert await collect_replies(t, message("hi", "1", thread="t")) == ["hi"]
        assert await collect_replies(t, message("hi", "1"), user=BOB) == ["hi"]


async def test_a_message_without_an_id_is_never_a_duplicate() -> None:
    async with AgentTester(echo) as t:
        assert await collect_replies(t, message("hi"), message("hi")) == ["hi", "hi"]


async def test_after_seven_days_the_same_message_is_new() -> None:
    clock = Clock()
    async with AgentTester(echo, clock=clock) as t:
        assert await collect_replies(t, message("hi", "1", is_unique=True)) == ["hi"]
        for days, answers in ((6, []), (2, ["hi"])):
            clock.advance(days=days)
            await t.restart()
            assert await collect_replies(t, message("hi", "1", is_unique=True)) == answers


async def test_the_clock_of_a_turn_is_the_platforms() -> None:
    clock = Clock()
    async with AgentTester(echo, clock=clock) as t:
        await t.ask("x")
        (only,) = await t.conversations()
        assert only.last_interaction == clock.now
        clock.advance(seconds=1)
        await t.ask("x")
        (only,) = await t.conversations()
        assert only.last_interaction - only.created_at == timedelta(seconds=1)


# Memory


def find_outputs() -> list[TurnOutput]:
    gc.collect()
    return [item for item in gc.get_objects() if isinstance(item, TurnOutput)]


async def test_no_timer_keeps_a_finished_turn_in_memory() -> None:
    of_other_tests = find_outputs()  # such as a turn that one of them has abandoned
    async with AgentTester(echo, policy=Policy(timings=RunnerTimings(buffer_s=600.0))) as t:
        assert await t.say("hello") == ["hello"]
        await eventually(lambda: all(output in of_other_tests for output in find_outputs()))
