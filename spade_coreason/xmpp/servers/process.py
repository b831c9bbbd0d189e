"""The process of a local server: started with a lifeline, awaited until it serves, stopped, and its end reported."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...domain.environment.private_files import open_private
from ...exceptions import ServerError
from . import lifeline
from .bare_stream import StreamError, open_bare_stream
from .certificate import CertificateFiles

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 20.0
PROBE_TIMEOUT_S = 2.0
PROBE_EVERY_S = 0.03
STOP_TIMEOUT_S = 5.0
MAX_LOG_BYTES = 1_000_000
_SERVER_PORTS = range(10_000, 32_768)
_PORT_ATTEMPTS = 1_000
_TAKEN_PORT = ("in use", "using this port", "is not already")
"""Words in the log of a server whose port another program has. Prosody has a text for each kind of port (core/portmanager)."""


def find_free_ports(count: int) -> list[int]:
    """Find `count` different free ports. ServerError if there are none.

    They lie below the ports of outgoing connections, so that no connection takes the port of a server that restarts.
    """
    choice = random.SystemRandom().choice
    ports: list[int] = []
    with ExitStack() as stack:
        for _ in range(_PORT_ATTEMPTS):
            if len(ports) == count:
                return ports
            port, sock = choice(_SERVER_PORTS), socket.socket()
            try:
                sock.bind((LOOPBACK, port))
            except OSError:
                sock.close()
            else:
                stack.enter_context(sock)
                ports.append(port)
    raise ServerError(f"no port between {_SERVER_PORTS[0]} and {_SERVER_PORTS[-1]} is free on {LOOPBACK}; set server.port")


def is_port_free(port: int) -> bool:
    """Return True if a server could listen on the port now."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # servers set it too: TIME_WAIT does not block the port
        try:
            sock.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


class AddressInUseError(ServerError):
    """Another program listens on the port of the server."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """The command of a server and the address where it will serve. `log` is the file for its output."""

    name: str
    command: Sequence[str]
    directory: Path
    log: Path
    port: int
    domain: str
    certificate: CertificateFiles


class ServerProcess:
    """A running server. `pid` is the leader of its process group."""

    def __init__(self, spec: LaunchSpec, process: asyncio.subprocess.Process, pid: int, log_offset: int) -> None:
        self.pid = pid
        self._spec = spec
        self._process = process
        self._log_offset = log_offset

    async def wait_until_ended(self) -> str:
        """Wait until the server has ended, and return a sentence that says how. Any number of tasks may wait."""
        code = await self._process.wait()
        outcome = f"by signal {code - 128}" if code > 128 else f"with status {code}: {self.last_log_line()}"
        return f"{self._spec.name} ended {outcome}; its log is {self._spec.log}"

    def last_log_line(self) -> str:
        """Return the line of this run's log that most likely states the reason: the last error, else the last line."""
        with suppress(FileNotFoundError), self._spec.log.open("rb") as file:
            file.seek(self._log_offset)
            text = file.read()[-20_000:].decode(errors="replace")
            lines = [line for line in text.splitlines() if any(map(str.isalnum, line))]
            errors = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
            for line in reversed(errors or lines):
                return " ".join(line.split())
        return "its log is empty"


@asynccontextmanager
async def run_server_process(spec: LaunchSpec, timeout_s: float = START_TIMEOUT_S) -> AsyncIterator[ServerProcess]:
    """Run a server while the block runs. The block begins when the server presents its own certificate on its port.

    Raise AddressInUseError, or ServerError with the line of its log that says why it does not serve.
    """
    try:
        log_offset = _rotate_log(spec.log)
    except OSError as error:
        raise ServerError(f"{spec.log}: cannot be written: {error.strerror}") from error
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", lifeline.__file__, str(spec.log), *spec.command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=spec.directory,
        start_new_session=True,  # Ctrl-C in the terminal must reach this process only: it stops the server after its clients
    )
    server = ServerProcess(spec, process, 0, log_offset)
    try:
        try:
            async with asyncio.timeout(timeout_s):
                assert process.stdout is not None
                server.pid = int(await process.stdout.readline() or 0)
                await _wait_until_serving(spec, server, process)
        except TimeoutError:
            problem = (
                f"did not answer on {LOOPBACK}:{spec.port} within {timeout_s:g} s: {server.last_log_line()}"
                if server.pid
                else f"waited {timeout_s:g} s for an earlier server that still runs in {spec.directory}; stop that first"
            )
            raise ServerError(f"{spec.name} {problem}; its log is {spec.log}") from None
        yield server
    finally:
        await _stop(process, server.pid)


async def _wait_until_serving(spec: LaunchSpec, server: ServerProcess, process: asyncio.subprocess.Process) -> None:
    context = ssl.create_default_context(cafile=spec.certificate.ca_file)
    ended = asyncio.create_task(server.wait_until_ended())
    try:
        while not await _is_serving(spec, context):
            # No event reports that a port begins to listen, so it is polled. The end of the process interrupts the wait.
            await asyncio.wait({ended}, timeout=PROBE_EVERY_S)
            log_line = server.last_log_line()
            if any(word in log_line for word in _TAKEN_PORT):  # Prosody runs on without listening
                raise AddressInUseError(f"{spec.name} cannot start: {log_line}")
            if ended.done():
                raise ServerError(ended.result())
    finally:
        ended.cancel()


async def _is_serving(spec: LaunchSpec, context: ssl.SSLContext) -> bool:
    """Return True if the server that this process started answers on the port."""
    try:
        async with (
            asyncio.timeout(PROBE_TIMEOUT_S),
            open_bare_stream(LOOPBACK, spec.port, spec.domain, context) as stream,
        ):
            return stream.certificate_der == spec.certificate.der
    except ssl.SSLError as error:
        raise AddressInUseError(f"{spec.name} cannot start: another server answers on port {spec.port} ({error})") from None
    except (OSError, StreamError):  # a TimeoutError is an OSError
        return False


async def _stop(process: asyncio.subprocess.Process, pid: int) -> None:
    """Close the lifeline's pipe, which stops the server. If the lifeline was killed or hangs, kill the server's group."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
    if pid and process.returncode is not None and process.returncode < 0:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _rotate_log(log: Path) -> int:
    """Copy a long log to a second file and empty it. Return its size after that. A missing log is created.

    Only one old log is stored, so that many runs do not fill the disk.
    """
    with open(open_private(log, os.O_RDWR | os.O_CREAT), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= MAX_LOG_BYTES:
            return size
        with open(open_private(log.with_name(f"{log.name}.old"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as old:
            shutil.copyfileobj(file, old)
        os.truncate(file.fileno(), 0)  # the file itself must stay: it is the lock too
        return 0
