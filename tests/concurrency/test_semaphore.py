"""The semaphore: a limited number of slots, given in the order of arrival, also when a waiting task is cancelled."""

from __future__ import annotations

import asyncio

from spade_coreason.concurrency import Semaphore


async def hold_slot(name: str, semaphore: Semaphore, done: list[str], end: asyncio.Event) -> None:
    async with semaphore:
        done.append(name)
        await end.wait()


class Workers:
    """Tasks that take a slot, record it, and release it when the test says so."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, name: str, semaphore: Semaphore) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(hold_slot(name, semaphore, self.started, self._ends[name]))
        await asyncio.sleep(0)

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self._tasks.pop(name)
        for _ in range(3):
            await asyncio.sleep(0)

    def cancel(self, name: str) -> None:
        self._tasks[name].cancel()

    async def cancelled(self, name: str) -> bool:
        await asyncio.wait([self._tasks[name]])
        return self._tasks.pop(name).cancelled()


async def test_tasks_wait_for_a_free_slot_in_the_order_of_arrival() -> None:
    semaphore, workers = Semaphore(2), Workers()
    for name in "abcd":
        await workers.begin(name, semaphore)
    assert workers.started == ["a", "b"]
    await workers.end("b")
    await workers.begin("e", semaphore)
    assert workers.started == ["a", "b", "c"]
    await workers.end("a", "c", "d", "e")
    assert workers.started == ["a", "b", "c", "d", "e"]
    assert [semaphore.acquire_nowait() for _ in range(3)] == [True, True, False]


async def test_a_released_slot_goes_to_the_task_that_waited_longest() -> None:
    semaphore, workers = Semaphore(1), Workers()
    assert semaphore.acquire_nowait()
    await workers.begin("a", semaphore)
    semaphore.release()
    assert not semaphore.acquire_nowait()
    await asyncio.sleep(0)
    assert workers.started == ["a"]
    await workers.end("a")


async def test_a_cancelled_task_stops_waiting_and_keeps_no_slot() -> None:
    semaphore, workers = Semaphore(1), Workers()
    assert semaphore.acquire_nowait()
    for name in "abc":
        await workers.begin(name, semaphore)
    workers.cancel("a")
    assert await workers.cancelled("a")
    semaphore.release()
    workers.cancel("b")  # it has been handed the slot, and does not know it yet
    assert await workers.cancelled("b")
    await asyncio.sleep(0)
    assert workers.started == ["c"]
    await workers.end("c")
    assert [semaphore.acquire_nowait(), semaphore.acquire_nowait()] == [True, False]


async def test_a_slot_of_a_child_needs_a_slot_of_its_parent() -> None:
    parent, workers = Semaphore(3), Workers()
    alice, bob = Semaphore(2, parent=parent), Semaphore(2, parent=parent)
    for name in ("a1", "a2", "a3"):
        await workers.begin(name, alice)
    for name in ("b1", "b2"):
        await workers.begin(name, bob)
    assert workers.started == ["a1", "a2", "b1"]
    await workers.end("a1")  # its place in the whole was waited for by b2 before a3 could
    assert workers.started == ["a1", "a2", "b1", "b2"]
    await workers.end("b1")
    assert workers.started == ["a1", "a2", "b1", "b2", "a3"]
    await workers.end("a2", "a3", "b2")
    assert [
        alice.acquire_nowait(),
        alice.acquire_nowait(),
        alice.acquire_nowait(),
        bob.acquire_nowait(),
        bob.acquire_nowait(),
    ] == [True, True, False, True, False]


async def test_a_task_cancelled_while_it_waits_for_the_parent_releases_its_own_slot() -> None:
    parent, workers = Semaphore(1), Workers()
    alice = Semaphore(1, parent=parent)
    assert parent.acquire_nowait()
    await workers.begin("a", alice)
    await workers.begin("b", alice)
    workers.cancel("a")
    assert await workers.cancelled("a")
    parent.release()
    for _ in range(3):
        await asyncio.sleep(0)
    assert workers.started == ["b"]
    await workers.end("b")
    assert alice.acquire_nowait()
