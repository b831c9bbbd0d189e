"""A local server's process: started on a lifeline, awaited until it serves, stopped, and its death reported."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...exceptions import ServerError
from . import lifeline
from .certificate import Certificate
from .stream import StreamError, bare_stream

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens on; bound together and released, so that they are not the same."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a connection in TIME_WAIT is no obstacle
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


START_TIMEOUT_S = 20.0

PROBE_TIMEOUT_S = 2.0

PROBE_EVERY_S = 0.03

STOP_TIMEOUT_S = 5.0

LOG_KEPT_BYTES = 1_000_000


class AddressInUse(ServerError):
    """Something else listens where the server was to."""


@dataclass(frozen=True, slots=True)
class Start:
    """What is to be started, and where it will serve. `log` takes all that it says."""

    name: str
    command: Sequence[str]
    directory: Path
    log: Path
    port: int
    domain: str
    certificate: Certificate


class ServerProcess:
    """A running server. `pid` is the leader of its process group."""

    def __init__(self, start: Start, process: asyncio.subprocess.Process, pid: int, log_begin: int) -> None:
        self.pid = pid
        self._start = start
        self._process = process
        self._log_begin = log_begin

    async def died(self) -> str:
        """Returns when the server has ended, with a sentence that says how. Any number may wait."""
        code = await self._process.wait()
        how = f"by signal {code - 128}" if code > 128 else f"with status {code}: {self.last_words()}"
        return f"{self._start.name} ended {how}; its log is {self._start.log}"

    def last_words(self) -> str:
        """The line of this run's log that most likely says why: the last error, else the last line."""
        with suppress(FileNotFoundError), self._start.log.open("rb") as file:
            file.seek(self._log_begin)
            said = file.read()[-20_000:].decode(errors="replace")
            lines = [line for line in said.splitlines() if any(map(str.isalnum, line))]
            errors = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
            for line in reversed(errors or lines):
                return " ".join(line.split())
        return "it said nothing"


@asynccontextmanager
async def server_process(start: Start, timeout_s: float = START_TIMEOUT_S) -> AsyncIterator[ServerProcess]:
    """Runs a server for as long as the block does: from when it presents its own certificate on its port.

    Raises AddressInUse, or ServerError with the line of its log that says why it does not serve.
    """
    _keep_short(start.log)
    begin = start.log.stat().st_size if start.log.exists() else 0
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", lifeline.__file__, str(start.log), *start.command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=start.directory,
        start_new_session=True,  # Ctrl-C in the terminal is for us: we end the server, when its clients are done
    )
    server = ServerProcess(start, process, 0, begin)
    try:
        try:
            async with asyncio.timeout(timeout_s):
                assert process.stdout is not None
                server.pid = int(await process.stdout.readline() or 0)
                await _until_it_serves(start, server, process)
        except TimeoutError:
            problem = (
                f"did not answer on {LOOPBACK}:{start.port} within {timeout_s:g} s: {server.last_words()}"
                if server.pid
                else f"waited {timeout_s:g} s for an earlier one that still runs in {start.directory}; end that first"
            )
            raise ServerError(f"{start.name} {problem}; its log is {start.log}") from None
        yield server
    finally:
        await _stop(process, server.pid)


async def _until_it_serves(start: Start, server: ServerProcess, process: asyncio.subprocess.Process) -> None:
    context = ssl.create_default_context(cafile=start.certificate.ca_file)
    ended = asyncio.create_task(server.died())
    try:
        while not await _serves(start, context):
            # Nothing tells when a port begins to listen; the process's end is told.
            await asyncio.wait({ended}, timeout=PROBE_EVERY_S)
            words = server.last_words()
            if "address already in use" in words.lower():  # Prosody says so, and runs on without listening
                raise AddressInUse(f"{start.name} cannot start: {words}")
            if ended.done():
                raise ServerError(ended.result())
    finally:
        ended.cancel()


async def _serves(start: Start, context: ssl.SSLContext) -> bool:
    """Whether the server that we started answers there."""
    try:
        async with (
            asyncio.timeout(PROBE_TIMEOUT_S),
            bare_stream(LOOPBACK, start.port, start.domain, context) as stream,
        ):
            return stream.certificate_der == start.certificate.der
    except ssl.SSLError as error:
        raise AddressInUse(f"{start.name} cannot start: another server answers on port {start.port} ({error})") from None
    except (OSError, StreamError):  # a TimeoutError is an OSError
        return False


async def _stop(process: asyncio.subprocess.Process, pid: int) -> None:
    """Lets go of the lifeline, which ends the server; should the lifeline itself be gone or stuck, ends the group."""
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


def _keep_short(log: Path) -> None:
    """One earlier log is kept, so that many runs do not fill the disk."""
    if log.exists() and log.stat().st_size > LOG_KEPT_BYTES:
        shutil.copyfile(log, log.with_name(log.name + ".old"))
        os.truncate(log, 0)  # the same file, since it is the lock too
