"""The client profanity in a terminal of its own (tmux), used as a person does: by keys and screen."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.support.servers.requirements import find_program
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

COLUMNS, LINES = 100, 40

SETTINGS = """\
[ui]
splash=false
beep=false
intype=true
occupants=false
[connection]
correction.allow=true
"""


def installed() -> bool:
    return find_program("profanity") is not None and find_program("tmux") is not None


class Profanity:
    """`async with Profanity(account, server, tmp_path) as screen: await screen.type("/msg echo@localhost hi")`.

    It is logged in and has verified the server's certificate. The user's own profanity and tmux are not touched.
    """

    def __init__(self, account: tuple[str, str], server: XmppServer, directory: Path) -> None:
        self._account = account
        self._server = server
        self._home = directory
        self._tmux = ("tmux", "-S", str(directory / "tmux"), "-f", "/dev/null")

    async def __aenter__(self) -> Profanity:
        settings = self._home / "config" / "profanity" / "profrc"
        settings.parent.mkdir(parents=True)
        settings.write_text(SETTINGS)
        await self._run("new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), "profanity", "-l", "DEBUG")
        try:
            await self.wait_for("This seems to be your first time")
            jid, password = self._account
            await self.type(f"/connect {jid} server {self._server.host} port {self._server.port}")
            await self.wait_for("Enter password:")
            await self.type(password)
            await self.wait_for("logged in successfully")
        except BaseException:
            await self._run("kill-server")
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._run("kill-server")

    async def type(self, line: str) -> None:
        """Type a line and press Enter."""
        await self._run("send-keys", "-l", "--", line)  # a password may begin with a dash
        await self._run("send-keys", "Enter")

    async def screen(self) -> str:
        """Return the current screen: lines without trailing blanks."""
        return await self._run("capture-pane", "-p")

    async def wait_for(self, *texts: str, timeout_s: float = TIMEOUT_S) -> str:
        """Wait for a screen with all of these texts in this order, and return it."""
        screen = ""
        try:
            async with asyncio.timeout(timeout_s):
                while not _in_order(screen := await self.screen(), texts):  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"profanity does not show {texts}:\n{screen}") from None
        return screen

    async def _run(self, *arguments: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "HOME": str(self._home),
            "XDG_CONFIG_HOME": str(self._home / "config"),
            "XDG_DATA_HOME": str(self._home / "data"),
            "SSL_CERT_FILE": str(self._server.ca_file),
        }
        process = await asyncio.create_subprocess_exec(
            *self._tmux, *arguments, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        if process.returncode:
            raise RuntimeError(f"tmux {arguments[0]}: {errors.decode().strip()}")
        return output.decode()


def _in_order(screen: str, texts: tuple[str, ...]) -> bool:
    position = 0
    for text in texts:
        position = screen.find(text, position) + len(text)
        if position < len(text):
            return False
    return True
