"""A terminal in which a command runs."""

from __future__ import annotations

import codecs
import contextlib
import os
import pty
import re
import select
import termios
from collections.abc import Mapping
from pathlib import Path

from tests.support.program import COMMAND, clean_environment
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess


class Terminal:
    """A program on a terminal of its own, with typed input and a readable screen."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, columns: int = 100) -> None:
        self._controller, tty = pty.openpty()
        termios.tcsetwinsize(tty, (30, columns))
        self.process = WarmProcess[bytes](
            [*COMMAND, *arguments],
            cwd=cwd,
            env=clean_environment({"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **(env or {})}),
            stdin=tty,
            stdout=tty,
            stderr=tty,
            controls_terminal=True,  # without one, Ctrl-C would not send a signal
        )
        os.close(tty)
        self.screen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self._controller, text.encode())

    def wait_for(self, pattern: str) -> None:
        """Wait until new output on the screen matches the pattern."""
        start = len(self.screen)
        while not re.search(pattern, self.screen[start:], re.DOTALL):
            ready, _, _ = select.select([self._controller], [], [], TIMEOUT_S)
            assert ready, f"no {pattern}; the screen: {self.screen}"
            try:
                self.screen += self._decoder.decode(os.read(self._controller, 65536))
            except OSError as error:
                raise AssertionError(f"it ended without {pattern}: {self.screen}") from error

    def wait_for_prompt(self, name: str) -> None:
        """Wait for a new prompt that reads keys; the last drawing of the previous prompt looks the same."""
        self.wait_for(rf"\?2004h.*{name} ▸")

    def wait_for_end(self) -> int:
        """Read until the program has ended, and return its exit code."""
        with contextlib.suppress(OSError):  # nobody has the other end any more
            while select.select([self._controller], [], [], TIMEOUT_S)[0]:
                self.screen += self._decoder.decode(os.read(self._controller, 65536))
        return self.process.wait(TIMEOUT_S)

    @property
    def shows_typing(self) -> bool:
        """True if the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._controller)[3] & termios.ECHO)

    def close(self) -> None:
        """Close the terminal, as a person closes a window: what runs in it gets SIGHUP. Wait until it has ended."""
        os.close(self._controller)
        try:
            self.process.wait(TIMEOUT_S)
        finally:
            self.process.kill()
