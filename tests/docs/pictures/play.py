"""`python -m tests.docs.pictures.play SCENARIO DIRECTORY HOME LOG`: play a scenario in a shell, on this terminal.

asciinema records it. LOG gets the reason if a text does not appear, and stays empty otherwise.
"""

from __future__ import annotations

import os
import pty
import random
import re
import select
import signal
import sys
import termios
import time
import tty
from contextlib import suppress
from pathlib import Path

from .scenario import KEYS, Session, Step, read_scenario

HIDE, SHOW = "\x1b]777;hide\x07", "\x1b]777;show\x07"
"""Marks in the recording around what takes no time in the picture. No terminal shows them."""

READS_A_LINE = "\x1b[?2004h"
_CONTROL = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>78M]|[\r\x07\x0f]")
_END_S = 10.0


class Player:
    """A shell in a terminal of its own. What it writes appears on standard output."""

    def __init__(self, session: Session, directory: Path, home: Path) -> None:
        self._output = ""
        self._hands = random.Random(session.title)  # the same rhythm in each recording
        self._shell, self._terminal = pty.fork()
        if not self._shell:
            os.chdir(directory)
            os.execve("/bin/bash", ["bash", "--noprofile", "--norc"], _environment(session, home))
        termios.tcsetwinsize(self._terminal, (session.rows, session.columns))

    def play(self, steps: tuple[Step, ...]) -> None:
        """Do all steps. Raise TimeoutError if a text does not appear."""
        is_hidden = True
        self._write(HIDE)
        self._wait_for(0, (), 10.0)
        for step in steps:
            if is_hidden and not step.hidden:
                if self._shell_reads():
                    self._clear()
                self._write(SHOW)
                self._pump(0.8)
            elif step.hidden and not is_hidden:
                self._write(HIDE)
            is_hidden = step.hidden
            self._do(step)

    def close(self) -> None:
        """Close the terminal, as a person closes a window. End what is still there after a while."""
        session = os.getsid(self._shell)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL):
            for process in _processes_of(session):
                with suppress(ProcessLookupError):
                    os.kill(process, number)
            deadline = time.monotonic() + _END_S
            while _processes_of(session) and time.monotonic() < deadline:
                with suppress(ChildProcessError):
                    os.waitpid(self._shell, os.WNOHANG)
                with suppress(OSError):  # so that nothing blocks on a full terminal
                    if select.select([self._terminal], [], [], 0.05)[0]:
                        os.read(self._terminal, 65536)
        os.close(self._terminal)

    def _do(self, step: Step) -> None:
        if step.clear:
            deadline = time.monotonic() + step.timeout
            while not self._shell_reads() and time.monotonic() < deadline:
                self._pump(0.05)
            self._clear()
        elif step.key is not None:
            begin = len(self._output)
            self._press(KEYS[step.key])
            if step.texts:
                self._wait_for(begin, step.texts, step.timeout)
        else:
            for character in step.fill(_CONTROL.sub("", self._output)):
                self._press(character)
                if not step.hidden:
                    self._pump(self._hands.uniform(0.015, 0.055))
            if not step.hidden:
                self._pump(0.2)
            begin = len(self._output)
            self._press("\r")
            self._wait_for(begin, step.texts, step.timeout)
        self._pump(0 if step.hidden else step.pause)

    def _clear(self) -> None:
        begin = len(self._output)
        self._press("\x0c")
        self._wait_for(begin, ("$ ",), 10.0)

    def _shell_reads(self) -> bool:
        """Return True if no other program has the terminal."""
        return os.tcgetpgrp(self._terminal) == self._shell

    def _press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def _wait_for(self, begin: int, texts: tuple[str, ...], timeout_s: float) -> None:
        """Wait for the texts in the output from `begin` on, without texts for a program that reads a line."""
        deadline = time.monotonic() + timeout_s
        while not _is_in_order(self._output[begin:], texts):
            if not self._read(deadline - time.monotonic()):
                seen = _CONTROL.sub("", self._output[begin:])
                raise TimeoutError(f"{' … '.join(texts) or 'no prompt'} does not appear within {timeout_s:g} s, but:\n{seen}")

    def _pump(self, seconds: float) -> None:
        """Show the output for some time."""
        deadline = time.monotonic() + seconds
        while self._read(deadline - time.monotonic()):
            pass

    def _read(self, timeout_s: float) -> bool:
        """Read and show output. Return False if none came in time."""
        if timeout_s <= 0 or not select.select([self._terminal], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # the shell has ended
            return False
        os.write(1, data)
        self._output += data.decode(errors="replace")
        return True

    def _write(self, text: str) -> None:
        os.write(1, text.encode())


def _is_in_order(output: str, texts: tuple[str, ...]) -> bool:
    if not texts:
        return READS_A_LINE in output
    text, position = _CONTROL.sub("", output), 0
    for wanted in texts:
        position = text.find(wanted, position) + len(wanted)
        if position < len(wanted):
            return False
    return True


def _environment(session: Session, home: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "HOME": str(home),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "PS1": "$ ",
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "BASH_SILENCE_DEPRECATION_WARNING": "1",
        **session.environment,
    }


def _processes_of(session: int) -> list[int]:
    """Return the processes of a terminal session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[3] == str(session):
                found.append(int(stat.parent.name))
    return found


def main() -> None:
    """Play the scenario of the command line."""
    scenario, directory, home, log = map(Path, sys.argv[1:])
    session = read_scenario(scenario).session
    tty.setraw(1)
    player = Player(session, directory, home)
    try:
        player.play(session.steps)
    except TimeoutError as error:
        log.write_text(str(error), encoding="utf-8")
    finally:
        player.close()


if __name__ == "__main__":
    main()
