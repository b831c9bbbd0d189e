"""A status that is served as a running platform does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spade_coreason.app.status_socket import serve_status_socket
from spade_coreason.runtime.upkeep.status import PlatformStatus
from spade_coreason.storage.backends.lock import lock_directory


@contextmanager
def serve_status(data_dir: Path, status: PlatformStatus) -> Iterator[None]:
    """Answer `status` and `agents` with a status, while the data directory is locked."""

    async def get_status() -> PlatformStatus:
        return status

    is_ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with serve_status_socket(data_dir, get_status):
            is_ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    with lock_directory(data_dir):
        thread.start()
        assert is_ready.wait(60)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()
