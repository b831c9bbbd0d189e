"""The watch on the event loop. If it was blocked when the process was killed, the next start knows that, and where."""

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

    A thread that needs no Python lock writes them: while `re` searches, no other Python code runs. The file is emptied as soon
    as the loop runs again. A process has one such thread, so only its last watch works. Raise StoreError if the file cannot be
    written.
    """
    path = data_dir / _FILE
    try:
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written; correct this, and start the platform again: {error.strerror}") from error
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
