from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from ..config import is_owned
from ..exceptions import ServerError
from ..runtime import PlatformStatus
from .unix_socket import address_of, answering

SOCKET = "status.sock"


@asynccontextmanager
async def answer_status(data_dir: Path, ask: Callable[[], Awaitable[PlatformStatus]]) -> AsyncIterator[None]:
    """Tells whoever connects to the socket in `data_dir` (0600) what `ask` says, for the time of the block.

    To be called by the process that owns the directory.
    """

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await ask()).to_json().encode())

    async with answering(data_dir, SOCKET, answer):
        yield


def read_status(data_dir: Path, answer_within_s: float = 5.0) -> PlatformStatus | None:
    """How the platform is that runs on `data_dir`; None where none does. ServerError where it does not say."""
    if not is_owned(data_dir):
        return None
    try:
        with address_of(data_dir, SOCKET) as address, socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(answer_within_s)
            asking.connect(address)
            with asking.makefile("rb") as answer:
                text = answer.read()
        return PlatformStatus.from_json(text)
    except TimeoutError as error:
        problem = f"does not answer within {answer_within_s:g} s; something blocks its event loop"
        raise ServerError(f"the platform on {data_dir} runs, and {problem}") from error
    except TypeError as error:
        raise ServerError(f"the platform on {data_dir} is of another version; ask it with that one") from error
    except (OSError, ValueError) as error:
        raise ServerError(f"{data_dir} is in use, and nobody there says how it is: it is just starting or stopping") from error
