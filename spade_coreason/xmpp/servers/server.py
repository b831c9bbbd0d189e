"""What a local server is to those who use it: an address, a certificate, accounts, and news of its death."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from ...exceptions import ServerError
from .certificate import Certificate, certificate_in
from .process import LOOPBACK, AddressInUse, ServerProcess, Start, free_ports, is_free, server_process

Kind = Literal["embedded", "prosody"]

DOMAIN = "localhost"
ATTEMPTS = 3
"""Between finding a free port and listening there, somebody else may take it."""


@dataclass(frozen=True, slots=True)
class LocalServer(ABC):
    """A server that this process started, on loopback, and that ends with it.

    `ca_file` verifies its certificate for `domain`; `verify` says whether clients should (all but the embedded server's).
    """

    kind: ClassVar[Kind]
    verify: ClassVar[bool]
    registers_in_band: ClassVar[bool]

    port: int
    ca_file: Path
    process: ServerProcess = field(repr=False)
    host: str = LOOPBACK
    domain: str = DOMAIN

    @abstractmethod
    async def create_account(self, jid: str, password: str) -> None:
        """Makes the account. Raises ServerError where the server cannot have it."""

    async def died(self) -> str:
        """Returns when the server has ended before its time, with one sentence that says how."""
        return await self.process.died()

    def user_of(self, jid: str) -> str:
        """The local part of a JID of this server; ServerError for one of another domain, or that cannot be a user."""
        user, at, domain = jid.partition("/")[0].rpartition("@")
        if not at or domain.lower() != self.domain:
            raise ServerError(f"{jid}: the local server has accounts of {self.domain} only; use a JID …@{self.domain}")
        user = user.lower()
        if not user or any(character in "\"&'/:<>@" or character.isspace() or ord(character) < 32 for character in user):
            raise ServerError(f"{jid}: not a JID that an account can have")
        return user


@asynccontextmanager
async def started(
    start: Callable[[dict[str, int]], Start],
    directory: Path,
    port_names: tuple[str, ...],
    port: int | None,
    timeout_s: float,
) -> AsyncIterator[tuple[ServerProcess, dict[str, int]]]:
    """Runs what `start` makes of the ports; on others should somebody take one meanwhile, unless `port` was asked for."""
    async with AsyncExitStack() as stack:
        choices = list(_port_choices(directory, port_names, port))
        for ports in choices:
            try:
                process = await stack.enter_async_context(server_process(start(ports), timeout_s))
                break
            except AddressInUse:
                if ports is choices[-1]:
                    raise
        _file(directory).write_text(json.dumps(ports))  # so that clients can keep their settings
        yield process, ports


def prepared(directory: Path, domains: Sequence[str]) -> tuple[Path, Certificate]:
    """The directory, made where it is missing and open to nobody else, and its certificate."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory, certificate_in(directory / "certs", domains)


def require_free(port: int) -> None:
    """AddressInUse where something else listens on that port of this machine."""
    if not is_free(port):
        raise AddressInUse(f"port {port} on {LOOPBACK} is in use; end what listens there, or choose another port")


def _port_choices(directory: Path, names: tuple[str, ...], wanted: int | None) -> Iterator[dict[str, int]]:
    """Ports to try, by name, the first name being the clients' port: those of the last time if they are still free."""
    if wanted is not None:
        require_free(wanted)
        yield dict(zip(names, (wanted, *free_ports(len(names) - 1)), strict=True))
        return
    last = _remembered(directory, names)
    if last and all(map(is_free, last.values())):
        yield last
    for _ in range(ATTEMPTS):
        yield dict(zip(names, free_ports(len(names)), strict=True))


def _remembered(directory: Path, names: tuple[str, ...]) -> dict[str, int]:
    try:
        ports = json.loads(_file(directory).read_text())
        return {name: int(ports[name]) for name in names}
    except (OSError, ValueError, TypeError, KeyError):  # never written, or not by us: any free port will do
        return {}


def _file(directory: Path) -> Path:
    return directory / "ports.json"
