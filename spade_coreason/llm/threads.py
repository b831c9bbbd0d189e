"""Plain functions off the event loop, in threads that neither keep a process from ending nor others from working."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

_MOST = 32
"""Functions of one holder at work at once; one that never returns keeps its place."""


class Threads:
    """A thread of its own for each call: those of `asyncio.to_thread` are waited for at the end of the process, and few."""

    def __init__(self, most: int = _MOST) -> None:
        self._free = most

    async def run(self, call: Callable[[], Any]) -> Any:
        """What `call` returns or raises. Cancelled, it goes on unheard; RuntimeError where too many do."""
        if not self._free:
            raise RuntimeError("too many functions that were called before have not returned")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = copy_context()
        self._free -= 1

        def settle(result: Any, error: BaseException | None) -> None:
            self._free += 1
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                done.set_exception(error)
            else:  # a sys.exit() there ends nothing here, and no future can hold the others
                done.set_exception(RuntimeError(repr(error)))

        def work() -> None:
            result, problem = None, None
            try:
                result = context.run(call)
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                problem = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, problem)

        threading.Thread(target=work, name="tool", daemon=True).start()
        return await done
