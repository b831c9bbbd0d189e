"""The choice of the local server: Prosody if it is installed, otherwise the embedded server with a notice of its limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...exceptions import ServerError
from .embedded import EmbeddedServer, run_embedded_server
from .process import START_TIMEOUT_S
from .prosody import ProsodyServer, find_prosody, run_prosody_server
from .server import LocalServer, ServerKind

ServerMode = Literal["auto", "embedded", "prosody"]

EMBEDDED_LIMITS = "for demonstrations only: senders can be forged, and stored messages are lost when the server stops"
PROSODY_REMEDY = "`apt install prosody` installs a full server"


@dataclass(frozen=True, slots=True)
class ServerSelection:
    """The chosen kind of server. `notice` is a line for the user if it is the embedded server."""

    kind: ServerKind
    notice: str | None = None


def select_server(mode: ServerMode = "auto") -> ServerSelection:
    """Choose the server for a mode. Raise ServerError if the mode requires Prosody and it is not installed."""
    if mode == "embedded":
        return ServerSelection("embedded", f"embedded server, {EMBEDDED_LIMITS}")
    if find_prosody() is not None:
        return ServerSelection("prosody")
    if mode == "prosody":
        raise ServerError("the program `prosody` is not on the PATH: `apt install prosody`, or choose another server")
    return ServerSelection("embedded", f"Prosody is not installed: embedded server, {EMBEDDED_LIMITS}; {PROSODY_REMEDY}")


@asynccontextmanager
async def run_local_server(
    kind: ServerKind, directory: Path, *, port: int | None = None, timeout_s: float = START_TIMEOUT_S
) -> AsyncIterator[LocalServer]:
    """Run a server of the kind `kind` while the block runs. Each kind has its own folder in `directory`."""
    run = run_prosody_server if kind == "prosody" else run_embedded_server
    async with run(directory / kind, port=port, timeout_s=timeout_s) as server:
        yield server


def dump_local_server(server: LocalServer) -> dict[str, str | int]:
    """Return a running server as values for JSON, for a child process that uses it."""
    fields: dict[str, str | int] = {"kind": server.kind, "port": server.port, "ca_file": str(server.ca_file)}
    if isinstance(server, ProsodyServer):
        fields |= {"data_dir": str(server.data_dir), "websocket_url": server.websocket_url, "files_url": server.files_url}
    return fields


def load_local_server(fields: Mapping[str, Any]) -> LocalServer:
    """Return the server of the parent process from the values of `dump_local_server`."""
    port, ca_file = fields["port"], Path(fields["ca_file"])
    if fields["kind"] == "embedded":
        return EmbeddedServer(port, ca_file, None)
    urls = {name: fields[name] for name in ("websocket_url", "files_url")}
    return ProsodyServer(port, ca_file, None, data_dir=Path(fields["data_dir"]), **urls)
