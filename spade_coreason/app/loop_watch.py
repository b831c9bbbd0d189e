"""The watch on the event loop. If it was blocked when the process was killed, the next start knows that, and where."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..domain.environment.private_files import open_private
from ..exceptions import StoreError

BLOCKED_S = 60.0
"""Seconds after which a blocked event loop counts as a crash, if the process is killed before it goes on."""
_BEATS = 4
_STARVED_S = 1.0
"""The least time in which a thread that waits for Python's lock surely gets it, unless code in C keeps it."""
_FILE, _LAST_FILE = "blocked.txt", "last-blocked.txt"


def take_block(data_dir: Path) -> Path | None:
    """Return the file with the stacks of the last process, if its event loop was blocked when it was killed, else None.

    It is returned once, and stays in the data directory for people.
    """
    path, last_path = data_dir / _FILE, data_dir / _LAST_FILE
    if path.is_symlink() or not path.exists():  # `watch_loop` refuses a link
        return None
    if path.stat().st_size == 0:
        path.unlink()
        return None
    return path.replace(last_path)


@asynccontextmanager
async def watch_loop(data_dir: Path, blocked_s: float = BLOCKED_S) -> AsyncIterator[None]:
    """While the block runs, write the stacks of all threads into a file when the event loop has not run for `blocked_s`.

    The file is emptied as soon as the loop runs again. A process has one such watch: of several, only the last works. Raise
    StoreError if the file cannot be written.
    """
    path = data_dir / _FILE
    try:
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written; correct this, and start the platform again: {error.strerror}") from error
    watch = _Watch(descriptor, blocked_s)
    beats = asyncio.create_task(watch.beat())
    thread = threading.Thread(target=watch.run, name="loop-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        beats.cancel()
        watch.is_over.set()
        await asyncio.to_thread(thread.join)
        faulthandler.cancel_dump_traceback_later()
        os.close(descriptor)
        path.unlink(missing_ok=True)


class _Watch:
    """A thread that looks for the beats of the loop.

    Where Python code blocks the loop, this thread runs too, and writes the stacks: while it does, no other Python code runs.
    Code in C, such as a search of `re`, may let no Python code run. Then a thread of `faulthandler` writes them, which needs
    no lock. Beside Python code that runs it would read frames that change, and end the process.
    """

    def __init__(self, descriptor: int, blocked_s: float) -> None:
        self.is_over = threading.Event()
        self._descriptor = descriptor
        self._blocked_s = blocked_s
        self._beat_s = blocked_s / _BEATS
        self._last_beat = time.monotonic()

    async def beat(self) -> None:
        """Beat in the loop, until cancelled."""
        while True:
            if os.fstat(self._descriptor).st_size:
                os.ftruncate(self._descriptor, 0)
            self._last_beat = time.monotonic()  # last: stacks that are written before it are of the beat before it
            await asyncio.sleep(self._beat_s)

    def run(self) -> None:
        """Watch from a thread, until `is_over`."""
        reported_beat = 0.0
        starved_s = self._blocked_s + max(self._beat_s, _STARVED_S)
        faulthandler.dump_traceback_later(starved_s, file=self._descriptor)
        while not self.is_over.wait(self._beat_s):
            faulthandler.dump_traceback_later(starved_s, file=self._descriptor)
            last_beat = self._last_beat
            if time.monotonic() - last_beat > self._blocked_s and last_beat != reported_beat:
                faulthandler.dump_traceback(self._descriptor)
                reported_beat = last_beat
