"""The status socket: the running platform sends its status to other processes.

The socket is in the data directory; a process that may read the directory may use it. The platform answers with its status at
that moment. A status file would be wrong after the platform was killed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from ..config import is_platform_running
from ..exceptions import ServerError
from ..runtime import PlatformStatus
from .unix_socket import serve_socket, socket_address

STATUS_SOCKET = "status.sock"


@asynccontextmanager
async def serve_status_socket(data_dir: Path, get_status: Callable[[], Awaitable[PlatformStatus]]) -> AsyncIterator[None]:
    """Send the result of `get_status` to each client of the socket in `data_dir` (0600), until the block ends.

    Only the process that owns the directory may call this.
    """

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await get_status()).to_json().encode())

    async with serve_socket(data_dir, STATUS_SOCKET, answer):
        yield


def read_status(data_dir: Path, timeout_s: float = 5.0) -> PlatformStatus | None:
    """Return the status of the platform that runs on `data_dir`; None if no platform runs.

    Raise ServerError if the platform does not answer, or is of another version. This call blocks, for at most `timeout_s` per
    step.
    """
    if not is_platform_running(data_dir):
        return None
    try:
        with socket_address(data_dir, STATUS_SOCKET) as address, socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout_s)
            client.connect(address)
            with client.makefile("rb") as reply:
                text = reply.read()
        return PlatformStatus.from_json(text)
    except TimeoutError as error:
        problem = f"does not answer within {timeout_s:g} s; something blocks its event loop"
        raise ServerError(f"the platform on {data_dir} is running, but {problem}") from error
    except TypeError as error:
        raise ServerError(f"the platform on {data_dir} has another version; run the command with that version") from error
    except (OSError, ValueError) as error:
        raise ServerError(
            f"{data_dir} is in use, but its platform does not answer: it is starting or stopping; try again"
        ) from error
