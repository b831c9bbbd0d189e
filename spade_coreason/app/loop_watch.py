"""The watch on the event loop: the next start knows that it was blocked until the process was killed, and where."""

from __future__ import annotations

import asyncio
import faulthandler
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..domain.private_files import open_private
from ..exceptions import StoreError

BLOCKED_S = 60.0
"""Seconds after which a blocked event loop counts as a crash, if the process is killed before it goes on."""
_BEATS = 4
_FILE, _LAST_FILE = "blocked.txt", "last-blocked.txt"


def take_block(data_dir: Path) -> Path | None:
    """Return the file with the stacks of the last process, if its event loop was blocked when it was killed, else None.

    It stays for people, and is told once.
    """
    path, last_path = data_dir / _FILE, data_dir / _LAST_FILE
    if path.is_symlink() or not path.exists():  # `watch_loop` refuses a link
        return None
    was_blocked = path.stat().st_size > 0
    if was_blocked:
        path.replace(last_path)
    else:
        path.unlink()
    return last_path if was_blocked else None


@asynccontextmanager
async def watch_loop(data_dir: Path, blocked_s: float = BLOCKED_S) -> AsyncIterator[None]:
    """While the block runs, write the stacks of all threads into a file when the event loop has not run for `blocked_s`.

    A thread without Python's lock does that: while `re` searches, no other Python code runs. The file is emptied as soon as the
    loop goes on. A process has only one such thread, so the last watch of it counts. Raise StoreError if it cannot be written.
    """
    path = data_dir / _FILE
    try:
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}; then start the platform again") from error
    beats = asyncio.create_task(_beat(descriptor, blocked_s))
    try:
        yield
    finally:
        beats.cancel()
        await asyncio.wait({beats})
        faulthandler.cancel_dump_traceback_later()
        os.close(descriptor)
        path.unlink(missing_ok=True)


async def _beat(descriptor: int, blocked_s: float) -> None:
    beat_s = blocked_s / _BEATS
    while True:
        if os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, 0)
        faulthandler.dump_traceback_later(blocked_s + beat_s, file=descriptor)
        await asyncio.sleep(beat_s)
