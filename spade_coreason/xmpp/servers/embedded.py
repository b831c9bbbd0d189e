"""The embedded server: pyjabber in a process of its own, for a first run without Prosody.

It serves our own client only. It loses all data when it ends, and clients can forge their sender address.
docs/tutorial/1-first-agent.md lists its other limits.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ...exceptions import ServerError
from .bare_stream import AccountExistsError, StreamError, open_bare_stream
from .process import START_TIMEOUT_S, LaunchSpec
from .server import DOMAIN, LocalServer, prepare_directory, run_server, saslprep

EMBEDDED_PROGRAM = Path(__file__).with_name("embedded_main.py")
REGISTRATION_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class EmbeddedServer(LocalServer):
    """A pyjabber. Anyone on this machine may register accounts in-band (XEP-0077); they last as long as the server."""

    kind = "embedded"
    registers_in_band = True

    async def create_account(self, jid: str, password: str) -> None:
        """Register the account in-band. An existing account stays as it is: its password cannot be changed."""
        user = self.parse_user(jid)
        context = ssl.create_default_context(cafile=self.ca_file)
        try:
            async with (
                asyncio.timeout(REGISTRATION_TIMEOUT_S),
                open_bare_stream(self.host, self.port, self.domain, context) as stream,
            ):
                await stream.register(user, saslprep(password))
        except AccountExistsError:
            return
        except (OSError, StreamError) as error:
            raise ServerError(f"the embedded server did not create the account {jid}: {error or 'no answer'}") from error


@asynccontextmanager
async def run_embedded_server(
    directory: Path, *, port: int | None = None, timeout_s: float = START_TIMEOUT_S
) -> AsyncIterator[EmbeddedServer]:
    """Run the embedded server while the block runs. Its certificate and log are in `directory`.

    Without a `port` it uses the port of the last run, if that is still free. Raise ServerError with the reason if it does not
    start. Each attempt takes at most `timeout_s` seconds.
    """
    directory, certificate = await asyncio.to_thread(prepare_directory, directory, (DOMAIN,))

    def start(ports: dict[str, int]) -> LaunchSpec:
        return LaunchSpec(
            name="the embedded server",
            command=(sys.executable, "-P", str(EMBEDDED_PROGRAM), str(directory / "certs"), DOMAIN, str(ports["c2s"])),
            directory=directory,
            log=directory / "embedded.log",
            port=ports["c2s"],
            domain=DOMAIN,
            certificate=certificate,
        )

    async with run_server(start, directory, ("c2s",), port, timeout_s) as (process, ports):
        yield EmbeddedServer(port=ports["c2s"], ca_file=certificate.ca_file, process=process)
