"""Work of foreign code in limited time: nothing that it does delays or ends its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spade_coreason.concurrency import DeadlineExceededError, run_with_timeout
from tests.support.wait import TIMEOUT_S


class StubbornWork:
    """Work that swallows its cancellations until it is released."""

    def __init__(self) -> None:
        self.started, self.released = asyncio.Event(), asyncio.Event()
        self.ended = asyncio.Event()
        self.cancel_count = 0

    async def run(self) -> None:
        self.started.set()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.cancel_count += 1
        self.ended.set()


async def test_work_in_time_returns_its_value_or_raises_its_error() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    assert await run_with_timeout(asyncio.sleep(0, "value"), TIMEOUT_S) == "value"
    with pytest.raises(ZeroDivisionError):
        await run_with_timeout(fails(), TIMEOUT_S)


async def test_late_work_is_cancelled_and_may_clean_up() -> None:
    cleaned_up = asyncio.Event()

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            cleaned_up.set()

    with pytest.raises(DeadlineExceededError):
        await run_with_timeout(clean_up(), 0.01)
    assert cleaned_up.is_set()


async def test_a_timeout_error_of_the_work_is_not_a_late_one() -> None:
    async def times_out() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own") as raised:
        await run_with_timeout(times_out(), TIMEOUT_S)
    assert not isinstance(raised.value, DeadlineExceededError)


async def test_late_work_that_swallows_its_cancellation_is_abandoned() -> None:
    work = StubbornWork()
    with pytest.raises(DeadlineExceededError):
        await run_with_timeout(work.run(), 0.01)
    assert (work.cancel_count, work.ended.is_set()) == (1, False)
    work.released.set()
    await asyncio.wait_for(work.ended.wait(), TIMEOUT_S)


async def test_work_that_swallows_its_cancellation_does_not_keep_a_cancelled_caller() -> None:
    work = StubbornWork()
    caller = asyncio.create_task(run_with_timeout(work.run(), 3600))
    await work.started.wait()
    caller.cancel()
    done, _ = await asyncio.wait([caller], timeout=TIMEOUT_S)
    assert done == {caller}
    assert caller.cancelled()
    assert (work.cancel_count, work.ended.is_set()) == (1, False)
    work.released.set()
    await asyncio.wait_for(work.ended.wait(), TIMEOUT_S)


async def exits() -> None:
    raise SystemExit(3)


async def interrupts() -> None:
    raise KeyboardInterrupt


async def raises_cancelled_error() -> None:
    raise asyncio.CancelledError("told to")


async def cancels_its_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (exits, "SystemExit"),
        (interrupts, "KeyboardInterrupt"),
        (raises_cancelled_error, "CancelledError"),
        (cancels_its_task, "CancelledError"),
    ],
)
async def test_work_can_neither_end_the_process_nor_cancel_its_caller(work: Callable[[], Awaitable[None]], name: str) -> None:
    with pytest.raises(RuntimeError, match=name):
        await run_with_timeout(work(), TIMEOUT_S)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_error_of_late_work_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails_late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    with pytest.raises(DeadlineExceededError):
        await run_with_timeout(fails_late(), 0.01)
    assert caplog.records == []
