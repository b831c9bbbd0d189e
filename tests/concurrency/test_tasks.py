"""The tasks of one owner."""

from __future__ import annotations

import asyncio

from spade_coreason.concurrency import Tasks


async def test_nothing_begins_after_the_stop() -> None:
    background, began = Tasks(), list[int]()

    async def work(number: int) -> None:
        began.append(number)
        await asyncio.Event().wait()

    background.start(work(1))
    await asyncio.sleep(0)
    await background.stop()
    background.start(work(2))
    await asyncio.sleep(0)
    assert began == [1]
