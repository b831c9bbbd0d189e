"""A local server as its users see it: an address, a certificate, accounts, and a report of its end."""

from __future__ import annotations

import asyncio
import json
import stringprep
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from ...domain.environment.private_files import replace_file
from ...exceptions import ServerError
from .certificate import CertificateFiles, ensure_certificate
from .process import LOOPBACK, AddressInUseError, LaunchSpec, ServerProcess, find_free_ports, is_port_free, run_server_process

ServerKind = Literal["embedded", "prosody"]

DOMAIN = "localhost"
MAX_PORT_ATTEMPTS = 3
"""More than one, because another program may take a port between the search for it and the start of the server."""


@dataclass(frozen=True, slots=True)
class LocalServer(ABC):
    """A server on loopback that this process started and that ends with it; without `process` its parent did so.

    `ca_file` verifies its certificate for `domain`.
    """

    kind: ClassVar[ServerKind]
    registers_in_band: ClassVar[bool]

    port: int
    ca_file: Path
    process: ServerProcess | None = field(repr=False)
    host: str = LOOPBACK
    domain: str = DOMAIN
    files_url: str = ""
    """The address below which it keeps files, on loopback; empty if it keeps none."""

    @abstractmethod
    async def create_account(self, jid: str, password: str) -> None:
        """Create the account. Raise ServerError if the server cannot have it."""

    async def wait_until_ended(self) -> str:
        """Wait until the server has ended unexpectedly, and return one sentence that says how."""
        if self.process is None:  # the parent waits for its end, and ends this process then
            await asyncio.get_running_loop().create_future()
            raise AssertionError
        return await self.process.wait_until_ended()

    def parse_user(self, jid: str) -> str:
        """Return the local part of a JID. Raise ServerError if it has another domain or is not a possible account."""
        user, at, domain = jid.partition("/")[0].rpartition("@")
        if not at or domain.lower() != self.domain:
            raise ServerError(f"{jid}: the local server has accounts of {self.domain} only; use a JID …@{self.domain}")
        user = user.lower()
        if not user or any(character in "\"&'/:<>@" or character.isspace() or ord(character) < 32 for character in user):
            raise ServerError(f"{jid}: not a valid JID for an account")
        return user


@asynccontextmanager
async def run_server(
    build_spec: Callable[[dict[str, int]], LaunchSpec],
    directory: Path,
    port_names: tuple[str, ...],
    port: int | None,
    timeout_s: float,
) -> AsyncIterator[tuple[ServerProcess, dict[str, int]]]:
    """Run the server that `build_spec` describes for a set of ports.

    If another program takes one of them in between, try other ports, unless the caller gave a `port`.
    """
    async with AsyncExitStack() as stack:
        choices = list(_port_choices(directory, port_names, port))
        for ports in choices:
            try:
                process = await stack.enter_async_context(run_server_process(build_spec(ports), timeout_s))
                break
            except AddressInUseError:
                if ports is choices[-1]:
                    raise
        # The next run uses the same ports, so that clients keep their settings.
        replace_file(_ports_file(directory), json.dumps(ports).encode())
        yield process, ports


def prepare_directory(directory: Path, domains: Sequence[str]) -> tuple[Path, CertificateFiles]:
    """Create the directory if it is missing, closed to other users. Return its absolute path and the certificate in it."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory, ensure_certificate(directory / "certs", domains)


def saslprep(password: str) -> str:
    """Prepare a password as clients do (SASLprep, RFC 4013). Raise ServerError if no client could log in with it."""
    mapped = (" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", "".join(mapped))
    if not prepared or any(stringprep.in_table_c21_c22(c) for c in prepared):
        raise ServerError("a password cannot be empty or contain control characters")
    return prepared


def require_free_port(port: int) -> None:
    """Raise AddressInUseError if another program listens on that port of the loopback interface."""
    if not is_port_free(port):
        raise AddressInUseError(
            f"port {port} on {LOOPBACK} is in use; stop the program that listens there, or choose another port"
        )


def _port_choices(directory: Path, names: tuple[str, ...], port: int | None) -> Iterator[dict[str, int]]:
    """Yield sets of ports to try, by name: first those of the last run, if they are free. `port` sets the first name's port."""
    if port is not None:
        require_free_port(port)
        yield dict(zip(names, (port, *find_free_ports(len(names) - 1)), strict=True))
        return
    last = _read_last_ports(directory, names)
    if last and all(map(is_port_free, last.values())):
        yield last
    for _ in range(MAX_PORT_ATTEMPTS):
        yield dict(zip(names, find_free_ports(len(names)), strict=True))


def _read_last_ports(directory: Path, names: tuple[str, ...]) -> dict[str, int]:
    try:
        ports = json.loads(_ports_file(directory).read_text())
        return {name: int(ports[name]) for name in names}
    except (OSError, ValueError, TypeError, KeyError):  # missing, or not written by this program: any free port will do
        return {}


def _ports_file(directory: Path) -> Path:
    return directory / "ports.json"
