"""Which local server to run: Prosody where it is installed, else the embedded one, which says what it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...exceptions import ServerError
from .embedded import embedded_server
from .process import START_TIMEOUT_S
from .prosody import prosody_program, prosody_server
from .server import Kind, LocalServer

Mode = Literal["auto", "embedded", "prosody"]

LIMITS = "for demonstrations: senders can be forged, and what is sent to somebody who is away can be lost"
REMEDY = "`apt install prosody` gives you a real one"


@dataclass(frozen=True, slots=True)
class Choice:
    """`notice` is a line for the user where the embedded server was chosen."""

    kind: Kind
    notice: str | None = None


def choose(mode: Mode = "auto") -> Choice:
    """The server for a mode. Raises ServerError where it has to be Prosody and is not installed."""
    if mode == "embedded":
        return Choice("embedded", f"embedded server, {LIMITS}")
    if prosody_program() is not None:
        return Choice("prosody")
    if mode == "prosody":
        raise ServerError("the program `prosody` is not on the PATH: `apt install prosody`, or choose another server")
    return Choice("embedded", f"Prosody is not installed: embedded server, {LIMITS}; {REMEDY}")


@asynccontextmanager
async def local_server(
    kind: Kind, directory: Path, *, port: int | None = None, timeout_s: float = START_TIMEOUT_S
) -> AsyncIterator[LocalServer]:
    """Runs the server of that kind while the block runs; each kind has its own folder in `directory`."""
    run = prosody_server if kind == "prosody" else embedded_server
    async with run(directory / kind, port=port, timeout_s=timeout_s) as server:
        yield server
