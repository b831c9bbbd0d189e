"""An agent that prints `SIZE` bytes in the way that it is asked for, and then answers."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading

from spade_coreason import AgentDefinition, AgentRequest, Response, Session

SIZE = 16 * 2**20
_LINE = b"x" * 1023 + b"\n"
_LINES = SIZE // len(_LINE)
_THREADS = 4


def print_lines() -> None:
    for _ in range(_LINES):
        print("x" * 1023)


def print_lines_to_standard_error() -> None:
    for _ in range(_LINES):
        print("x" * 1023, file=sys.stderr)


def print_one_line_without_an_end() -> None:
    print("x" * SIZE, end="", flush=True)


def print_bytes_that_are_no_text() -> None:
    sys.stdout.buffer.write(b"\xff\x00\x1b\x80" * (SIZE // 4))
    sys.stdout.buffer.flush()


def write_below_python() -> None:
    data = memoryview(_LINE * _LINES)
    while data:
        data = data[os.write(1, data) :]


def log_to_standard_error() -> None:
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.Logger("apart")
    logger.addHandler(handler)
    for _ in range(_LINES):
        logger.warning("x" * 1023)


def let_a_program_print() -> None:
    subprocess.run(["head", "-c", str(SIZE), "/dev/zero"], check=True)


def print_from_several_threads() -> None:
    def work() -> None:
        for _ in range(_LINES // _THREADS):
            print("x" * 1023)

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAYS = {
    way.__name__: way
    for way in (
        print_lines,
        print_lines_to_standard_error,
        print_one_line_without_an_end,
        print_bytes_that_are_no_text,
        write_below_python,
        log_to_standard_error,
        let_a_program_print,
        print_from_several_threads,
    )
}


class PrintingAgent:
    """Prints. Asked to `wait`, it answers when another turn has printed."""

    manifest = AgentDefinition.simple("printing")

    def __init__(self, prints_first: bool = False) -> None:
        self._has_printed = asyncio.Event()
        if prints_first:
            print_lines()

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = str(request.payload["query"])
        if query == "wait":
            await response.thought("waiting")
            await self._has_printed.wait()
        elif query == "log":
            for number in range(2000):
                logging.getLogger("isolated.words").warning("word %d", number)
        else:
            WAYS[query]()
            self._has_printed.set()
        await response.markdown(f"done: {query}")
