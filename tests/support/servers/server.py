"""A private XMPP server for tests, which can be started, stopped and killed, and creates accounts quickly."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from spade_coreason.xmpp.servers import lifeline
from spade_coreason.xmpp.servers.bare_stream import StreamError, open_bare_stream
from spade_coreason.xmpp.servers.certificate import CertificateFiles
from tests.support.wait import TIMEOUT_S

T = TypeVar("T")
Kind = Literal["prosody", "ejabberd", "embedded"]

LOOPBACK = "127.0.0.1"
DOMAIN = "localhost"
OTHER_DOMAIN = "other.localhost"
"""A second domain of the same server: its accounts are strangers to agents of `localhost`. Not on the embedded server."""

ATTEMPT_S = TIMEOUT_S / 3
"""About one connection in fifty to pyjabber hangs after STARTTLS."""

_numbers = itertools.count(1)


@dataclass(slots=True)
class XmppServer:
    """One server process. Restarts change only `pid`; accounts stay too, except on the embedded server.

    `start`, `stop` and `kill` block for less than two seconds. With clients in the same event loop, call them in
    `asyncio.to_thread`.
    """

    kind: Kind
    port: int
    directory: Path
    certificate: CertificateFiles
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    direct_tls_port: int | None = None
    """The port where a connection begins with TLS (XEP-0368)."""
    http_port: int | None = None
    """The HTTP port. WebSocket paths: `/xmpp-websocket` on Prosody, `/ws` on ejabberd."""
    is_trusted: bool = True
    """False if its certificate cannot be verified."""
    host: str = LOOPBACK
    domain: str = DOMAIN
    pid: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def ca_file(self) -> Path:
        return self.certificate.ca_file

    @property
    def settings(self) -> dict[str, Any]:
        """The section `server` of a platform that uses it."""
        tls = {"ca_file": str(self.ca_file)}
        return {"mode": "external", "domain": self.domain, "host": self.host, "port": self.port, "tls": tls}

    @property
    def log(self) -> Path:
        return self.directory / "output.log"

    def __enter__(self) -> XmppServer:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self, timeout_s: float = TIMEOUT_S) -> None:
        """Start the process; return when it answers with the certificate that was made for it."""
        assert self._process is None, "it is running"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", lifeline.__file__, str(self.log), *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd=self.directory,
            env={**os.environ, **self.environment},
        )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline() or 0)
        try:
            _run_blocking(self._wait(time.monotonic() + timeout_s))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after three seconds. Do nothing if it is not running."""
        if (process := self._process) is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()  # the lifeline ends the server's whole process group
            process.wait(TIMEOUT_S)
            process.stdout.close()
            self._process = None

    def kill(self) -> None:
        """Send SIGKILL, as a crash looks to clients. ejabberd loses the accounts of its last two seconds."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.stop()

    async def account(self, name: str | None = None, *, domain: str | None = None) -> tuple[str, str]:
        """Create an account and return its bare JID and password. Without a name, it is one that no other test has."""
        user = name or f"user{next(_numbers)}-{secrets.token_hex(3)}"
        password = secrets.token_urlsafe(9)
        domain = domain or self.domain
        for attempt in range(3):
            try:
                async with (
                    asyncio.timeout(ATTEMPT_S if self.kind == "embedded" else TIMEOUT_S),
                    open_bare_stream(self.host, self.port, domain, self.tls_context()) as stream,
                ):
                    await stream.register(user, password)
                break
            except TimeoutError:
                if self.kind != "embedded" or attempt == 2:
                    raise
        return f"{user}@{domain}", password

    def tls_context(self) -> ssl.SSLContext:
        """Build a TLS context that accepts this server only."""
        if self.is_trusted:
            return ssl.create_default_context(cafile=self.ca_file)
        return ssl._create_unverified_context()

    async def _wait(self, deadline: float) -> None:
        assert self._process is not None
        problem: Exception | None = None
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.kind} ended with {self._process.returncode}: {self._tail()}")
            try:
                async with (
                    asyncio.timeout(ATTEMPT_S),
                    open_bare_stream(self.host, self.port, self.domain, self.tls_context()) as stream,
                ):
                    if stream.certificate_der == self.certificate.der:
                        return
            except ssl.SSLError as error:
                raise RuntimeError(f"another server answers on port {self.port}: {error}") from error
            except (OSError, StreamError) as error:  # TimeoutError is an OSError
                problem = error
            await asyncio.sleep(0.02)  # there is no event for a port that starts to listen
        raise TimeoutError(f"{self.kind} does not serve: {problem!r}: {self._tail()}")

    def _tail(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.directory.glob("*.log")))


def _run_blocking(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end in another thread, because this one may have a running event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
