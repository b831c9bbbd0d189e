"""A PostgreSQL for tests: a private cluster on a free loopback port, in a temporary directory; no fsync unless asked."""

from __future__ import annotations

import itertools
import os
import pwd
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.databases import execute
from tests.support.servers.requirements import find_program

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
    _frozen: list[int] = field(default_factory=list)

    def url(self) -> str:
        """Create a schema with a user who owns it; return their URL."""
        user = f"test_{next(_numbers)}"
        execute(self._owner, f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'; CREATE SCHEMA AUTHORIZATION {user}")
        return f"postgresql+asyncpg://{user}:{quote(PASSWORD, safe='')}@{self.host}:{self.port}/postgres"

    @property
    def host(self) -> str:
        """The address at which it listens."""
        return "127.0.0.1"

    def second_url(self, url: str, encoding: str = "UTF8") -> str:
        """Create a database beside that of `url`, for the same user; return its URL."""
        user, name = url.removeprefix("postgresql+asyncpg://").partition(":")[0], f"second_{next(_numbers)}"
        execute(self._owner, f"CREATE DATABASE {name} OWNER {user} ENCODING '{encoding}' TEMPLATE template0")
        return f"{url.removesuffix('/postgres')}/{name}"

    @property
    def _owner(self) -> str:
        # The user who runs the tests connects by the socket, which no other user can reach; the port requires a password.
        return f"postgresql+asyncpg://{USER}@/postgres?host={self.directory}&port={self.port}"

    def promote(self) -> None:
        """Let a standby take writes from now on."""
        execute(self._owner, "SELECT pg_promote()")

    def set(self, name: str, value: str) -> None:
        """Change a setting of the running server, also for open connections."""
        execute(self._owner, f"ALTER SYSTEM SET {name} = {value}")
        execute(self._owner, "SELECT pg_reload_conf()")

    def run(self, sql: str) -> list[dict[str, Any]]:
        """Run a statement as the owner of the cluster, and return its rows."""
        return execute(self._owner, sql)

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
                [*unprivileged(), str(self.programs / "postgres"), "-D", str(self.directory / "data"), *options],
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

    def freeze(self) -> None:
        """Freeze all processes of the cluster until its end. Nothing tells its clients."""
        found = self.run("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        self._frozen = [self.pid, *(int(row["pid"]) for row in found)]
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def _end(self, number: str) -> None:
        if self._process is None:
            return
        subprocess.run([*unprivileged(), "kill", f"-{number}", str(self.pid)], check=True)
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._process.wait(20)
        self._process = None


@contextmanager
def postgres(durable: bool = False) -> Iterator[Postgres]:
    """Start a private cluster and delete it afterwards."""
    programs = _programs()
    assert programs is not None
    with _directory() as directory:
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
        _run([*initdb, "-E", "UTF8", "--locale=C"], directory)
        with _run_server(Postgres(directory, programs, _free_port(), durable)) as server:
            yield server


@contextmanager
def standby_of(primary: Postgres) -> Iterator[Postgres]:
    """Start a standby, for which each commit of its primary waits from then on. Delete it afterwards."""
    with _directory() as directory:
        copy = [str(primary.programs / "pg_basebackup"), "-D", str(directory / "data"), "-h", str(primary.directory)]
        _run([*copy, "-p", str(primary.port), "-U", USER, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"], directory)
        with _run_server(Postgres(directory, primary.programs, _free_port(), primary.durable)) as server:
            primary.set("synchronous_standby_names", "'*'")
            synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            for _ in range(600):
                if primary.run(synchronous):
                    break
                threading.Event().wait(0.02)
            else:
                raise AssertionError("the standby does not follow")
            yield server


@contextmanager
def _directory() -> Iterator[Path]:
    # Not pytest's directory: if we are root, the user of PostgreSQL may not read it. The path of a socket must be short, too.
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        directory = Path(name)
        if os.geteuid() == 0:
            owner = pwd.getpwnam(_user())
            os.chown(directory, owner.pw_uid, owner.pw_gid)
        yield directory


@contextmanager
def _run_server(server: Postgres) -> Iterator[Postgres]:
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _run(command: list[str], directory: Path) -> None:
    subprocess.run([*unprivileged(), *command], check=True, stdout=subprocess.DEVNULL, cwd=directory)


def _login_method(durable: bool) -> str:
    """Return how users log in. The key of SCRAM takes milliseconds of each connection, so most tests do without."""
    return "scram-sha-256" if durable else "md5"


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return int(taken.getsockname()[1])


def _programs() -> Path | None:
    """Return the directory of PostgreSQL's programs."""
    found = find_program("initdb")
    return Path(found).resolve().parent if found else None


def _user() -> str:
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


def unprivileged() -> list[str]:
    """Return the prefix of a command that drops root, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={_user()}", f"--regid={pwd.getpwnam(_user()).pw_gid}", "--clear-groups", "--"]
