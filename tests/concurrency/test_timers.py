"""Many waits on one timer, and the limit of a turn made of them."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from spade_coreason.concurrency import Deadline, TimerGroup
from tests.support.wait import PATIENCE_S, eventually


async def rung(alarms: TimerGroup, expected: int, heard: list[str]) -> list[str]:
    await eventually(lambda: len(heard) >= expected)
    return heard


async def test_waits_end_in_the_order_in_which_they_began_and_not_before_their_time() -> None:
    alarms, heard = TimerGroup(0.02), list[str]()
    began = asyncio.get_running_loop().time()
    for name in "abc":
        alarms.schedule(lambda name=name: heard.append(name))  # type: ignore[misc]  # mypy knows no type of a lambda with a default
    assert await rung(alarms, 3, heard) == ["a", "b", "c"]
    assert asyncio.get_running_loop().time() - began >= 0.02


async def test_what_was_taken_back_is_not_called_and_what_was_set_later_is() -> None:
    alarms, heard = TimerGroup(0.02), list[str]()

    def first() -> None:
        heard.append("first")

    alarms.schedule(first)
    alarms.cancel(first)
    alarms.cancel(first)
    alarms.schedule(lambda: heard.append("second"))
    assert await rung(alarms, 1, heard) == ["second"]
    alarms.schedule(lambda: heard.append("third"))
    assert await rung(alarms, 2, heard) == ["second", "third"]


async def test_one_that_raises_hinders_no_other() -> None:
    alarms, heard, problems = TimerGroup(0.01), list[str](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context["exception"]))

    def raises() -> None:
        raise ZeroDivisionError

    alarms.schedule(raises)
    alarms.schedule(lambda: heard.append("after it"))
    assert await rung(alarms, 1, heard) == ["after it"]
    assert [type(problem) for problem in problems] == [ZeroDivisionError]


async def test_after_stop_nothing_rings() -> None:
    alarms, heard = TimerGroup(0.01), list[str]()
    alarms.schedule(lambda: heard.append("x"))
    alarms.cancel_all()
    other = TimerGroup(0.03)
    other.schedule(lambda: heard.append("later"))
    assert await rung(other, 1, heard) == ["later"]


async def test_a_limit_is_a_timeout_error() -> None:
    limit = Deadline(TimerGroup(0.01))
    with pytest.raises(TimeoutError):
        await limit.run(asyncio.Event().wait())
    assert limit.has_expired
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # is not cancelled any more


async def test_what_cannot_be_awaited_leaves_no_alarm_behind() -> None:
    alarms = TimerGroup(0.01)
    with pytest.raises(AttributeError):
        await Deadline(alarms).run(None)  # type: ignore[arg-type]  # the point of the test
    await asyncio.sleep(0.05)  # is not cancelled


async def test_within_the_limit_nothing_happens_and_a_delay_of_nought_is_no_limit() -> None:
    for alarms in (TimerGroup(5), TimerGroup(0)):
        limit = Deadline(alarms)
        await limit.run(asyncio.sleep(0.01))
        assert not limit.has_expired
        alarms.cancel_all()


async def test_a_cancel_from_outside_travels_on_through_a_limit() -> None:
    alarms = TimerGroup(5)

    async def waits() -> None:
        await Deadline(alarms).run(asyncio.Event().wait())

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    alarms.cancel_all()


async def test_what_is_raised_within_a_limit_that_expired_is_what_is_raised() -> None:
    async def raises() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ZeroDivisionError from None

    with pytest.raises(ZeroDivisionError):
        await Deadline(TimerGroup(0.01)).run(raises())


async def test_what_swallows_its_cancellation_is_left_where_it_stands() -> None:
    cancelled, closed = list[str](), list[str]()

    async def stubborn() -> None:
        while not closed:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append("cancelled")
            except GeneratorExit:
                closed.append("closed")

    limit = Deadline(TimerGroup(0.01), cancel_grace_s=0.03)
    with pytest.raises(TimeoutError):
        await limit.run(stubborn())
    assert (cancelled, closed) == (["cancelled"], ["closed"])
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0.05)  # is not cancelled any more


async def test_what_puts_things_in_order_after_its_cancellation_has_the_time_for_it() -> None:
    ordered = asyncio.Event()

    async def tidy() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)
            ordered.set()
            raise
        return "never"

    limit = Deadline(TimerGroup(0.01), cancel_grace_s=5)
    with pytest.raises(TimeoutError):
        await limit.run(tidy())
    assert ordered.is_set()


async def test_work_that_is_held_gives_its_value_and_hears_what_it_waits_for() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def work() -> str:
        with pytest.raises(ZeroDivisionError):
            await asyncio.create_task(fails())
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.to_thread(lambda: "done")

    alarms = TimerGroup(5)
    assert await Deadline(alarms).run(work()) == "done"
    with pytest.raises(ZeroDivisionError):
        await Deadline(alarms).run(fails())
    alarms.cancel_all()


async def test_work_that_blocks_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def blocks() -> None:
        await asyncio.sleep(0)
        time.sleep(1.05)  # noqa: ASYNC251 - what agents should not do

    await Deadline(TimerGroup(0)).run(blocks())
    [said] = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"test_work.*blocks held up everybody else for \d\.\d s; give what blocks to asyncio\.to_thread", said)
