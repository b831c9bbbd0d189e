"""The lock of objects that outlive an event loop, or that loops in several threads share."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

from spade_coreason.concurrency import LoopLock
from tests.support.wait import TIMEOUT_S


async def take_twice(lock: LoopLock, order: list[str]) -> None:
    async def take(name: str) -> None:
        async with lock:
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(take("a"), take("b"))


def test_one_task_of_a_loop_at_a_time_and_one_loop_after_another() -> None:
    lock, order = LoopLock(), list[str]()
    for _ in range(2):
        asyncio.run(take_twice(lock, order))
    assert order == ["a begins", "a ends", "b begins", "b ends"] * 2


def test_loops_in_several_threads_share_a_lock() -> None:
    lock, results, both_hold = LoopLock(), list[list[str]](), threading.Barrier(2, timeout=TIMEOUT_S)

    async def hold_and_take() -> None:
        async with lock:
            both_hold.wait()  # the other loop has a lock of its own
        order: list[str] = []
        await take_twice(lock, order)
        results.append(order)

    threads = [threading.Thread(target=asyncio.run, args=(hold_and_take(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert results == [["a begins", "a ends", "b begins", "b ends"]] * 2


def test_a_cancelled_task_leaves_the_lock_to_the_next() -> None:
    async def cancel_the_second() -> list[str]:
        lock, order, may_end = LoopLock(), list[str](), asyncio.Event()

        async def take(name: str) -> None:
            async with lock:
                order.append(name)
                await may_end.wait()

        tasks = [asyncio.create_task(take(name)) for name in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        may_end.set()
        await asyncio.wait(tasks)
        return order

    assert asyncio.run(cancel_the_second()) == ["a", "c"]


def test_a_closed_loop_is_not_kept_once_another_uses_the_lock() -> None:
    lock, loops = LoopLock(), list[weakref.ref[asyncio.AbstractEventLoop]]()

    async def use() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await take_twice(lock, [])

    for _ in range(3):
        asyncio.run(use())
    gc.collect()
    assert [loop() is None for loop in loops[:2]] == [True, True]
