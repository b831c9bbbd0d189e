"""A process of its own for one side of a pair: `python -m benchmarks.exchange.process DIRECTORY PAIR ROLE`.

It answers `start PLACE` with its address, and `cpu` with the seconds used. An asker answers `round COUNT CONVERSATIONS` with
a JSON object. It asks the questions itself, so that the driver of the benchmark costs nothing while they run.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Any

from ..child_process import cpu_s, serve
from .pair import MODULE_OF, AskInConversation, Place


async def _main(directory: str, pair: str, role: str) -> None:
    enter: Callable[[Place], AbstractAsyncContextManager[Any]]
    enter = getattr(importlib.import_module(f"benchmarks.exchange.{MODULE_OF[pair]}"), role)
    side: Any = None
    begin = 0
    async with AsyncExitStack() as stack:

        async def answer(name: str, arguments: str) -> str:
            nonlocal side, begin
            if name == "start":
                side = await stack.enter_async_context(enter(replace(Place.from_json(arguments), directory=directory)))
                return side if isinstance(side, str) else "ready"
            if name == "round":
                count, conversations = map(int, arguments.split())
                figures = await _run_round(side, begin, count, conversations)
                begin += count
                return json.dumps(figures)
            raise ValueError(f"unknown command: {name}")

        await serve(answer)


async def _run_round(ask: AskInConversation, begin: int, count: int, conversations: int) -> dict[str, Any]:
    """Ask `count` questions, as many in flight as there are conversations. Their numbers begin with `begin`."""
    numbers = [range(begin + number, begin + count, conversations) for number in range(conversations)]
    cpu_before_s, begin_s = cpu_s(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(number, asked)) for number, asked in enumerate(numbers)]
    duration_s, used_s = time.perf_counter() - begin_s, cpu_s() - cpu_before_s
    return {
        "duration_s": duration_s,
        "cpu_s": used_s,
        "latencies_ms": [round(latency_ms, 3) for task in tasks for latency_ms in task.result()],
    }


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
