"""Functions in threads: one that never returns delays neither other threads nor the end of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar

import pytest

from spade_coreason.concurrency import DaemonThreads
from tests.support.wait import TIMEOUT_S, eventually

NAME = ContextVar("NAME", default="")

ENDS_WHILE_A_FUNCTION_RUNS = """
import asyncio, time
from spade_coreason.concurrency import DaemonThreads

async def main():
    call = asyncio.create_task(DaemonThreads().run(time.sleep, 3600))
    await asyncio.wait([call], timeout=0.1)
    print("ends")

asyncio.run(main())
"""


async def test_a_function_gets_its_arguments_and_the_context_of_its_caller() -> None:
    def describe(first: str, *, second: str) -> tuple[str, str, str]:
        return first, second, NAME.get()

    NAME.set("ada")
    assert await DaemonThreads().run(describe, "a", second="b") == ("a", "b", "ada")


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ZeroDivisionError(), ZeroDivisionError), (SystemExit(3), RuntimeError), (StopIteration(), RuntimeError)],
)
async def test_an_error_reaches_the_caller_and_no_other_code(error: BaseException, raised: type[Exception]) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(raised):
        await DaemonThreads().run(fails)


def test_a_function_that_never_returns_does_not_delay_the_end_of_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS_WHILE_A_FUNCTION_RUNS], timeout=TIMEOUT_S, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("ends\n", "")


async def test_functions_that_never_return_leave_the_threads_of_asyncio_free_and_have_a_limit() -> None:
    released, threads = threading.Event(), DaemonThreads()
    calls = [asyncio.create_task(threads.run(released.wait)) for _ in range(32)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), TIMEOUT_S) == "free"
    with pytest.raises(RuntimeError, match="too many earlier calls"):
        await threads.run(lambda: None)
    released.set()
    await asyncio.gather(*calls)
    assert await threads.run(lambda: "free again") == "free again"


async def test_a_function_of_a_cancelled_caller_continues_and_occupies_its_place() -> None:
    started, released, threads = threading.Event(), threading.Event(), DaemonThreads(max_threads=1)

    def work() -> None:
        started.set()
        released.wait(TIMEOUT_S)

    call = asyncio.create_task(threads.run(work))
    await eventually(started.is_set)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    with pytest.raises(RuntimeError, match="too many earlier calls"):
        await threads.run(lambda: None)
    released.set()
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                assert await threads.run(lambda: "free again") == "free again"
                break
            except RuntimeError:
                await asyncio.sleep(0)
