"""A call of an operation of the running platform, from another process of the machine. It blocks until the result."""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote
from uuid import uuid4

from ...exceptions import ConfigError, ServerError
from ..definition import Arguments, Operation
from .form import OtherFormError
from .unix_socket import socket_address

A = TypeVar("A", bound=Arguments)
R = TypeVar("R")

_CONNECT_S = 5.0
_BUSY_S = 10.0
"""The time for which a call is tried again while too many others are answered. None of it has begun then."""
_BUSY_POLL_S = 0.2


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over the socket of a data directory."""

    def __init__(self, data_dir: Path, timeout_s: float | None) -> None:
        super().__init__("platform")
        self._data_dir = data_dir
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_CONNECT_S)
        with socket_address(self._data_dir) as address:
            self.sock.connect(address)
        self.sock.settimeout(self._timeout_s)


def call_platform(
    data_dir: Path,
    operation: Operation[A, R],
    arguments: A,
    *,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[R, bool]:
    """Call an operation of the platform that runs on `data_dir`. Return its result, and True if Ctrl-C was pressed.

    The first Ctrl-C asks for an early end, so that the result says what was done; the second raises KeyboardInterrupt.
    Raise the error of the operation, ConfigError for arguments that are too long, or ServerError if the platform does not
    answer.
    """
    body = json.dumps(operation.dump_arguments(arguments), ensure_ascii=False).encode(errors="surrogatepass")
    if len(body) > operation.max_request_bytes:
        problem = (
            f"the request has {len(body):,} bytes, more than the limit of {operation.max_request_bytes:,}; send less at once"
        )
        raise ConfigError("", problem)
    call_id = str(uuid4())
    has_ended = f"the platform on {data_dir} has ended; run the same command again to continue"
    try:
        with (
            _ending_early(data_dir, call_id) as was_interrupted,
            ExitStack() as stack,
        ):
            deadline = time.monotonic() + _BUSY_S
            while True:
                connection = stack.enter_context(closing(_SocketConnection(data_dir, operation.timeout_s)))
                connection.connect()
                # If it refuses a call before it has read all, it says why.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request("POST", f"/v1/{quote(operation.name)}", body, {"Call-Id": call_id})
                response = connection.getresponse()
                if response.status != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline or was_interrupted():
                    break
                stack.close()
                time.sleep(random.uniform(0, _BUSY_POLL_S))
            for line in response:
                found = operation.answer.load(line)
                if "result" in found:
                    return found["result"], was_interrupted()
                on_progress(found["progress"]["done"], found["progress"]["total"])
    except TimeoutError as error:
        problem = f"does not answer within {operation.timeout_s or _CONNECT_S:g} s; something blocks its event loop"
        raise ServerError(f"the platform on {data_dir} is running, but {problem}") from error
    except OtherFormError as error:
        raise ServerError(
            f"the platform on {data_dir} has another version, and its answer cannot be read; use the command of its version"
        ) from error
    except ConnectionResetError as error:
        raise ServerError(has_ended) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServerError(
            f"{data_dir} is in use, but its platform does not answer: it is starting or stopping; try again"
        ) from error
    raise ServerError(has_ended)


@contextmanager
def _ending_early(data_dir: Path, call_id: str) -> Iterator[Callable[[], bool]]:
    """Ask the platform for an early end of a call at the first Ctrl-C in the block. Only a main thread receives that.

    Yield a function that tells whether it has come.
    """
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def on_interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        interrupts.append(number)
        with suppress(OSError, http.client.HTTPException), closing(_SocketConnection(data_dir, _CONNECT_S)) as connection:
            connection.request("DELETE", f"/v1/calls/{call_id}")
            connection.getresponse()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: bool(interrupts)
    finally:
        signal.signal(signal.SIGINT, before)
