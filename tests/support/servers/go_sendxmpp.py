"""The command-line client go-sendxmpp, Debian's program, as a person at a shell uses it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S


class GoSendxmpp:
    """A go-sendxmpp with one account on `server`; it stores its data in `home`."""

    def __init__(self, program: str, account: tuple[str, str], server: XmppServer, home: Path) -> None:
        self._jid, self._server = account[0], server
        self._command = (program, "-u", account[0], "-p", account[1], "-j", f"{server.host}:{server.port}")
        self._environment = {**os.environ, "SSL_CERT_FILE": str(server.ca_file), "HOME": str(home)}

    async def send(self, *arguments: str, text: str = "") -> None:
        """Run it to its end, with `text` as its input."""
        process = await self._start(*arguments)
        await asyncio.wait_for(process.communicate(text.encode()), TIMEOUT_S)
        assert process.returncode == 0, arguments

    @asynccontextmanager
    async def listen(self, *arguments: str) -> AsyncIterator[Listener]:
        """Run it during the block as a printer of received messages; with arguments, only of these senders."""
        process = await self._start("-l", *arguments)
        assert process.stdout is not None
        listener = Listener(process.stdout)
        try:
            if not arguments:
                async with StockClient(*await self._server.account(), self._server) as other:
                    heard = asyncio.create_task(listener.wait_for_line("are you there?"))
                    while not heard.done():
                        # A server stores this until it is online. At the moment in which it comes online ejabberd may lose it.
                        other.send("are you there?", self._jid)
                        await asyncio.wait({heard}, timeout=1)
                    await heard
            yield listener
        finally:
            process.terminate()
            await process.wait()

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*self._command, *arguments, env=self._environment, stdin=pipe, stdout=pipe)


class Listener:
    """The lines that it prints: time, sender and text."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines

    async def wait_for_line(self, end: str) -> str:
        """Return the next line with this end."""
        async with asyncio.timeout(TIMEOUT_S):
            while not (line := (await self._lines.readline()).decode()).endswith(f"{end}\n"):
                assert line, "it has ended"
            return line
