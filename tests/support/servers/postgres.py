"""A PostgreSQL for tests: a private cluster on a free loopback port, in a temporary directory; no fsync unless asked."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from tests.support.databases import execute

USER = "platform"
PASSWORD = "s%3Acr@t"  # must be escaped in a URL
_numbers = itertools.count(1)


def installed() -> bool:
    """Return True if PostgreSQL's programs and the driver are installed."""
    from importlib.util import find_spec

    return _programs() is not None and find_spec("asyncpg") is not None


@dataclass(slots=True)
class Postgres:
    """A running cluster. `start`, `stop` and `kill` block for less than a second."""

    directory: Path
    programs: Path
    port: int
    durable: bool = False
    _process: subprocess.Popen[bytes] | None = field(default=None)

    def url(self) -> str:
        """Create a schema with a user who owns it; return their URL."""
        user = f"test_{next(_numbers)}"
        execute(self._owner, f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'; CREATE SCHEMA AUTHORIZATION {user}")
        return f"postgresql+asyncpg://{user}:{quote(PASSWORD, safe='')}@{self.host}:{self.port}/postgres"

    @property
    def host(self) -> str:
        """The address at which it listens."""
        return "127.0.0.1"

    def second_url(self, url: str) -> str:
        """Create a database beside that of `url`, for the same user; return its URL."""
        user, name = url.removeprefix("postgresql+asyncpg://").partition(":")[0], f"second_{next(_numbers)}"
        execute(self._owner, f"CREATE DATABASE {name} OWNER {user}")
        return f"{url.removesuffix('/postgres')}/{name}"

    @property
    def _owner(self) -> str:
        # The user who runs the tests connects by the socket, which no other user can reach; the port requires a password.
        return f"postgresql+asyncpg://{USER}@/postgres?host={self.directory}&port={self.port}"

    @property
    def pid(self) -> int:
        """The process of the server itself, not of a program that started it."""
        return int((self.directory / "data" / "postmaster.pid").read_text().splitlines()[0])

    def start(self) -> None:
        """Start the cluster; return when it answers."""
        fsync = "on" if self.durable else "off"
        settings = [
            f"unix_socket_directories={self.directory}",
            f"listen_addresses={self.host}",
            f"port={self.port}",
            f"fsync={fsync}",
            f"password_encryption={_login_method(self.durable)}",
        ]
        settings += [f"full_page_writes={fsync}", "max_connections=60", "shared_buffers=16MB", "autovacuum=off"]
        options = [part for setting in settings for part in ("-c", setting)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_unprivileged(), str(self.programs / "postgres"), "-D", str(self.directory / "data"), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        ready = [str(self.programs / "pg_isready"), "-q", "-h", self.host, "-p", str(self.port)]
        for _ in range(600):
            if self._process.poll() is not None:
                raise AssertionError((self.directory / "log").read_text()[-2000:])
            if subprocess.run(ready, check=False).returncode == 0:
                return
            threading.Event().wait(0.02)
        raise AssertionError("PostgreSQL does not answer")

    def stop(self) -> None:
        """Stop the cluster without waiting for clients (fast shutdown)."""
        self._end("INT")

    def kill(self) -> None:
        """Stop the cluster at once, without a checkpoint, as a crash does."""
        self._end("QUIT")

    def _end(self, signal: str) -> None:
        if self._process is None:
            return
        subprocess.run([*_unprivileged(), "kill", f"-{signal}", str(self.pid)], check=True)
        self._process.wait(20)
        self._process = None


@contextmanager
def postgres(durable: bool = False) -> Iterator[Postgres]:
    """Start a private cluster and delete it afterwards."""
    programs = _programs()
    assert programs is not None
    # Not pytest's directory: if we are root, the user of PostgreSQL may not read it. The path of a socket must be short, too.
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        directory = Path(name)
        if os.geteuid() == 0:
            owner = pwd.getpwnam(_user())
            os.chown(directory, owner.pw_uid, owner.pw_gid)
        initdb = [
            str(programs / "initdb"),
            "-D",
            str(directory / "data"),
            "-U",
            USER,
            "--auth-local=trust",
            f"--auth-host={_login_method(durable)}",
            "--no-sync",
        ]
        subprocess.run(
            [*_unprivileged(), *initdb, "-E", "UTF8", "--locale=C"], check=True, stdout=subprocess.DEVNULL, cwd=directory
        )
        server = Postgres(directory, programs, _free_port(), durable)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _login_method(durable: bool) -> str:
    """Return how users log in. The key of SCRAM takes milliseconds of each connection, so most tests do without."""
    return "scram-sha-256" if durable else "md5"


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return int(taken.getsockname()[1])


def _programs() -> Path | None:
    """Find the directory of PostgreSQL's programs, the newest version first: Debian keeps them out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    elsewhere = shutil.which("initdb")
    return Path(elsewhere).resolve().parent if elsewhere else None


def _user() -> str:
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


def _unprivileged() -> list[str]:
    """Return the prefix of a command that drops root, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={_user()}", f"--regid={pwd.getpwnam(_user()).pw_gid}", "--clear-groups", "--"]
