"""Slots: so many at once, in the order of coming, also where who waits is cancelled."""

from __future__ import annotations

import asyncio

from spade_coreason.concurrency import Semaphore


async def works(name: str, slots: Semaphore, done: list[str], end: asyncio.Event) -> None:
    if not slots.acquire_nowait():
        await slots.acquire()
    try:
        done.append(name)
        await end.wait()
    finally:
        slots.release()


class Workers:
    """Tasks that take a slot, say so, and give it back when they are told to."""

    def __init__(self) -> None:
        self.at_work: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, name: str, slots: Semaphore) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(works(name, slots, self.at_work, self._ends[name]))
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


async def test_who_finds_none_free_waits_and_who_came_first_is_first() -> None:
    slots, workers = Semaphore(2), Workers()
    for name in "abcd":
        await workers.begin(name, slots)
    assert workers.at_work == ["a", "b"]
    await workers.end("b")
    await workers.begin("e", slots)
    assert workers.at_work == ["a", "b", "c"]
    await workers.end("a", "c", "d", "e")
    assert workers.at_work == ["a", "b", "c", "d", "e"]
    assert [slots.acquire_nowait() for _ in range(3)] == [True, True, False]


async def test_one_that_is_given_back_is_nobody_elses_than_of_who_waits_longest() -> None:
    slots, workers = Semaphore(1), Workers()
    assert slots.acquire_nowait()
    await workers.begin("a", slots)
    slots.release()
    assert not slots.acquire_nowait()
    await asyncio.sleep(0)
    assert workers.at_work == ["a"]
    await workers.end("a")


async def test_who_is_cancelled_waits_no_longer_and_takes_no_slot_along() -> None:
    slots, workers = Semaphore(1), Workers()
    assert slots.acquire_nowait()
    for name in "abc":
        await workers.begin(name, slots)
    workers.cancel("a")
    assert await workers.cancelled("a")
    slots.release()
    workers.cancel("b")  # it has been handed the slot, and does not know it yet
    assert await workers.cancelled("b")
    await asyncio.sleep(0)
    assert workers.at_work == ["c"]
    await workers.end("c")
    assert [slots.acquire_nowait(), slots.acquire_nowait()] == [True, False]


async def test_slots_within_others_need_one_there_as_well() -> None:
    whole, workers = Semaphore(3), Workers()
    alice, bob = Semaphore(2, parent=whole), Semaphore(2, parent=whole)
    for name in ("a1", "a2", "a3"):
        await workers.begin(name, alice)
    for name in ("b1", "b2"):
        await workers.begin(name, bob)
    assert workers.at_work == ["a1", "a2", "b1"]
    await workers.end("a1")  # its place in the whole was waited for by b2 before a3 could
    assert workers.at_work == ["a1", "a2", "b1", "b2"]
    await workers.end("b1")
    assert workers.at_work == ["a1", "a2", "b1", "b2", "a3"]
    await workers.end("a2", "a3", "b2")
    assert [
        alice.acquire_nowait(),
        alice.acquire_nowait(),
        alice.acquire_nowait(),
        bob.acquire_nowait(),
        bob.acquire_nowait(),
    ] == [True, True, False, True, False]


async def test_who_is_cancelled_while_the_others_are_waited_for_gives_its_own_back() -> None:
    whole, workers = Semaphore(1), Workers()
    alice = Semaphore(1, parent=whole)
    assert whole.acquire_nowait()
    await workers.begin("a", alice)
    await workers.begin("b", alice)
    workers.cancel("a")
    assert await workers.cancelled("a")
    whole.release()
    for _ in range(3):
        await asyncio.sleep(0)
    assert workers.at_work == ["b"]
    await workers.end("b")
    assert alice.acquire_nowait()
