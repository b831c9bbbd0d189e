"""An agent whose queries are the names of harmful functions; anything else is answered."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, Response, Session


def block_in_a_loop() -> None:
    while True:
        pass


def sleep_without_await() -> None:
    time.sleep(1e6)


def backtrack_with_the_lock() -> None:
    import re

    re.match(r"(a+)+$", "a" * 40 + "b")  # holds the interpreter's lock for ages


def exit_the_process() -> None:
    os._exit(0)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def read_a_null_pointer() -> None:
    ctypes.string_at(0)


def recurse_without_end() -> None:
    sys.setrecursionlimit(10**9)

    def recurse(number: int) -> int:
        return recurse(number + 1) + 1

    recurse(0)


def close_all_descriptors() -> None:
    os.closerange(0, 1024)


def allocate_at_once() -> None:
    bytearray(10 << 30)


async def leak() -> None:
    kept = []
    while True:
        kept.append(b"\1" * 10_000_000)
        await asyncio.sleep(0.005)


async def print_without_end() -> None:
    while True:
        print("x" * 1000)
        await asyncio.sleep(0)


async def log_without_end() -> None:
    while True:
        for _ in range(100):
            logging.getLogger("spade_coreason.agent").warning("x" * 1000)
        await asyncio.sleep(0)


def find_connection() -> int:
    """Return the descriptor of the socket to the platform: the only Unix socket that does not lead to this process."""
    for descriptor in range(3, 100):
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
        except OSError:
            continue
        with socket.socket(fileno=os.dup(descriptor)) as found:
            pid, *_ = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if pid != os.getpid():
            return descriptor
    raise AssertionError("there is no connection")


def write_raw(data: bytes) -> None:
    os.set_blocking(find_connection(), True)
    os.write(find_connection(), data)


def frame(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()


def send_no_json() -> None:
    write_raw(frame("{no json"))


def send_a_huge_length() -> None:
    write_raw(b"\xff\xff\xff\xff")


def send_an_unknown_message() -> None:
    write_raw(frame('[["surprise", 1, 2]]'))


def send_what_is_out_of_turn() -> None:
    write_raw(frame('[["do", 99999, "markdown", ["hello"]]]'))


def schedule_out_of_turn() -> None:
    write_raw(frame('[["ask", 1000000, 0, "remind", [["cron", "0 8 * * *"], "x", "once"]]]'))


def notify_with_too_few_arguments() -> None:
    write_raw(frame('[["ask", 1000000, 0, "people.notify", ["x"]]]'))


def send_deep_json() -> None:
    write_raw(frame("[" * 100_000))


def send_frames_without_end() -> None:
    data = frame("[" + ",".join(['["log", "spade_coreason.agent", 30, "x"]'] * 1000) + "]")
    while True:
        write_raw(data)


def leave_programs_behind() -> None:
    for options in ({}, {"process_group": 0}):
        program = subprocess.Popen(["sleep", "1000"], **options)  # type: ignore[call-overload]
        Path(f"left-{program.pid}").touch()
    os._exit(1)


def leave_a_fork_behind() -> None:
    """Exit, while a copy of this process holds the connection."""
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(1)


async def swallow_cancellations(response: Response) -> None:
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await response.thought("never mind")


async def flood_with_texts(response: Response) -> None:
    while True:
        await response.markdown("x" * 10_000)


async def stream_without_end(response: Response) -> None:
    stream = await response.create_stream()
    while True:
        await stream.write("x" * 10_000)


async def store_without_end(session: Session) -> None:
    number = 0
    while True:
        number += 1
        await session.store(f"key {number}", "x" * 10_000)


async def flood_past_the_window() -> None:
    data = frame("[" + ",".join(['["do", 1, "thought", ["' + "x" * 1000 + '", "IN_PROGRESS"]]'] * 1000) + "]")
    while True:
        write_raw(data)


def start_endless_threads() -> None:
    for _ in range(5):
        threading.Thread(target=time.sleep, args=(1e6,)).start()


FUNCTIONS: dict[str, Callable[..., Awaitable[None] | None]] = {
    name: function for name, function in list(globals().items()) if getattr(function, "__module__", "") == __name__
}


class HostileAgent:
    """Run the function that the query names."""

    manifest = AgentDefinition.simple("hostile")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = str(request.payload["query"])
        function = FUNCTIONS.get(query)
        if function is None:
            await response.markdown(f"{query}, from {os.getpid()}")
            return
        gc.disable()
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        result = function(*(response if name == "response" else session for name in names))
        if result is not None:
            await result
        await response.markdown("done")
