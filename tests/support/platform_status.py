"""The status of a platform, asked for as commands do, and served as a running platform does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spade_coreason.app.stored_host import open_stored_host
from spade_coreason.config import Settings, is_platform_running
from spade_coreason.operations.definition import Call, NoArguments, operation
from spade_coreason.operations.platform import show_status
from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.rpc.endpoint import serve_operations
from spade_coreason.operations.status import PlatformStatus
from spade_coreason.storage.backends.lock import lock_directory


def read_status(data_dir: Path) -> PlatformStatus | None:
    """Return the status of the platform on a data directory; None if none runs. Raise ServerError if it does not answer."""
    return call_platform(data_dir, show_status, NoArguments())[0] if is_platform_running(data_dir) else None


@contextmanager
def serve_status(data_dir: Path, status: PlatformStatus) -> Iterator[None]:
    """Answer `status` and `agents` with a status, while the data directory is locked."""

    @operation("status")
    async def show(call: Call, arguments: NoArguments) -> PlatformStatus:
        """Show the status."""
        return status

    is_ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with (
            open_stored_host(Settings(data_dir=data_dir), []) as host,
            serve_operations(data_dir, host, {show.name: show}),
        ):
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
