"""Many timeouts on one timer, and the deadline of a turn that is made of them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

import pytest

from spade_coreason.concurrency import Deadline, DeadlineTimers, TimerGroup
from tests.support.clock import LoopClock
from tests.support.wait import TIMEOUT_S, eventually


async def wait_for_calls(timers: TimerGroup, expected: int, calls: list[str]) -> list[str]:
    await eventually(lambda: len(calls) >= expected)
    return calls


async def test_timers_fire_in_order_and_not_before_their_time() -> None:
    timers, calls = TimerGroup(0.02), list[str]()
    began = asyncio.get_running_loop().time()
    for name in "abc":
        timers.schedule(lambda name=name: calls.append(name))  # type: ignore[misc]  # mypy knows no type of a lambda with a default
    assert await wait_for_calls(timers, 3, calls) == ["a", "b", "c"]
    assert asyncio.get_running_loop().time() - began >= 0.02


async def test_a_cancelled_timer_does_not_fire_and_a_later_one_does() -> None:
    timers, calls = TimerGroup(0.02), list[str]()

    def first() -> None:
        calls.append("first")

    timers.schedule(first)
    timers.cancel(first)
    timers.cancel(first)
    timers.schedule(lambda: calls.append("second"))
    assert await wait_for_calls(timers, 1, calls) == ["second"]
    timers.schedule(lambda: calls.append("third"))
    assert await wait_for_calls(timers, 2, calls) == ["second", "third"]


async def test_a_timer_that_raises_does_not_stop_the_others() -> None:
    timers, calls, problems = TimerGroup(0.01), list[str](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context["exception"]))

    def raises() -> None:
        raise ZeroDivisionError

    timers.schedule(raises)
    timers.schedule(lambda: calls.append("after it"))
    assert await wait_for_calls(timers, 1, calls) == ["after it"]
    assert [type(problem) for problem in problems] == [ZeroDivisionError]


async def test_a_timer_that_schedules_itself_again_delays_no_other() -> None:
    timers, calls = TimerGroup(1.0), list[str]()

    def repeat() -> None:
        calls.append("repeated")
        timers.schedule(repeat)

    with LoopClock() as clock:
        timers.schedule(repeat)
        await clock.advance(0.5)
        timers.schedule(lambda: calls.append("other"))
        await clock.advance(0.5)
        assert calls == ["repeated"]
        await clock.advance(0.5)
        assert calls == ["repeated", "other"]
        await clock.advance(0.5)
        assert calls == ["repeated", "other", "repeated"]
        timers.cancel_all()


async def test_after_cancel_all_no_timer_fires() -> None:
    timers, calls = TimerGroup(0.01), list[str]()
    timers.schedule(lambda: calls.append("x"))
    timers.cancel_all()
    other = TimerGroup(0.03)
    other.schedule(lambda: calls.append("later"))
    assert await wait_for_calls(other, 1, calls) == ["later"]


class CountedTimers(DeadlineTimers):
    """Timers that count how many deadlines they were asked for."""

    scheduled = 0

    def schedule(self, callback: Callable[[], None]) -> None:
        self.scheduled += 1
        super().schedule(callback)


async def test_work_that_waits_for_nothing_starts_no_timer() -> None:
    async def answer(waits: int) -> int:
        for _ in range(waits):
            await asyncio.sleep(0)
        return waits

    timers = CountedTimers(60.0)
    assert await Deadline(timers).run(answer(0)) == 0
    assert timers.scheduled == 0
    assert await Deadline(timers).run(answer(3)) == 3
    assert timers.scheduled == 1


async def test_an_expired_deadline_raises_a_timeout_error() -> None:
    deadline = Deadline(DeadlineTimers(0.01))
    with pytest.raises(TimeoutError):
        await deadline.run(asyncio.Event().wait())
    assert deadline.has_expired
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # is not cancelled any more


async def test_a_value_that_cannot_be_awaited_leaves_no_timer() -> None:
    timers = TimerGroup(0.01)
    with pytest.raises(AttributeError):
        await Deadline(timers).run(None)  # type: ignore[arg-type]  # the point of the test
    await asyncio.sleep(0.05)  # is not cancelled


async def test_work_within_the_deadline_is_not_cancelled_and_zero_means_no_deadline() -> None:
    for timers in (DeadlineTimers(5), DeadlineTimers(0)):
        deadline = Deadline(timers)
        await deadline.run(asyncio.sleep(0.01))
        assert not deadline.has_expired
        timers.cancel_all()


async def test_a_cancellation_from_outside_passes_through_a_deadline() -> None:
    timers = DeadlineTimers(5)

    async def wait() -> None:
        await Deadline(timers).run(asyncio.Event().wait())

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    timers.cancel_all()


async def test_an_error_raised_after_the_deadline_replaces_the_timeout_error() -> None:
    async def raises() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ZeroDivisionError from None

    with pytest.raises(ZeroDivisionError):
        await Deadline(DeadlineTimers(0.01)).run(raises())


async def test_work_that_swallows_its_cancellation_is_abandoned() -> None:
    cancelled, closed = list[str](), list[str]()

    async def stubborn() -> None:
        while not closed:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append("cancelled")
            except GeneratorExit:
                closed.append("closed")

    deadline = Deadline(DeadlineTimers(0.01), cancel_grace_s=0.03)
    with pytest.raises(TimeoutError):
        await deadline.run(stubborn())
    assert (cancelled, closed) == (["cancelled"], ["closed"])
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0.05)  # is not cancelled any more


async def test_cancelled_work_has_a_grace_period_to_clean_up() -> None:
    cleaned_up = asyncio.Event()

    async def clean_up() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)
            cleaned_up.set()
            raise
        return "never"

    deadline = Deadline(DeadlineTimers(0.01), cancel_grace_s=5)
    with pytest.raises(TimeoutError):
        await deadline.run(clean_up())
    assert cleaned_up.is_set()


async def test_work_under_a_deadline_returns_its_value_or_raises_its_error() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def work() -> str:
        with pytest.raises(ZeroDivisionError):
            await asyncio.create_task(fails())
        async with asyncio.timeout(TIMEOUT_S):
            return await asyncio.to_thread(lambda: "done")

    timers = DeadlineTimers(5)
    assert await Deadline(timers).run(work()) == "done"
    with pytest.raises(ZeroDivisionError):
        await Deadline(timers).run(fails())
    timers.cancel_all()


async def test_work_that_blocks_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def blocks() -> None:
        await asyncio.sleep(0)
        time.sleep(1.05)  # noqa: ASYNC251 - what agents should not do

    await Deadline(DeadlineTimers(0)).run(blocks())
    [said] = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(
        r"test_work.*blocks blocked the event loop for \d\.\d s; run blocking code with asyncio\.to_thread", said
    )
