"""Work beside the agents."""

from __future__ import annotations

import asyncio

from spade_coreason.app.background_tasks import BackgroundTasks


async def test_nothing_begins_after_the_stop() -> None:
    background, began = BackgroundTasks(), list[int]()

    async def work(number: int) -> None:
        began.append(number)
        await asyncio.Event().wait()

    background.start(work(1))
    await asyncio.sleep(0)
    await background.stop()
    background.start(work(2))
    await asyncio.sleep(0)
    assert began == [1]
