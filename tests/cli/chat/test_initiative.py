"""`chat` shows what agents write first: in a terminal above the prompt, without one between the answers."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.program import RunningCommand, clean_environment, run_command, run_in_background, write_project
from tests.support.servers import prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.terminal import Terminal
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess


@contextmanager
def open_chat(cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A chat with notes without a terminal, whose standard input stays open."""
    command, pipe = [sys.executable, "-m", "spade_coreason", "chat", "notes"], subprocess.PIPE
    with WarmProcess[str](command, cwd=cwd, env=clean_environment(), stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Return the lines up to the first that contains a text. A chat that does not print it ends with the test."""
    assert process.stdout is not None
    lines = []
    while line := process.stdout.readline():
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"it ended without {text!r}: {lines}")


@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("platform", ["prosody"], indirect=True)
def test_a_chat_without_a_terminal_shows_what_agents_write_first(platform: RunningCommand) -> None:
    with open_chat(platform.cwd) as chat:
        assert chat.stdin is not None
        chat.stdin.write("remind me in 1 second to drink\n")
        chat.stdin.flush()
        lines = read_until(chat, "notes: ")
        assert "drink" in lines[0]
        assert lines[-1].startswith("notes: ")
        assert "drink" in lines[-1]


@pytest.mark.parametrize("platform", ["prosody"], indirect=True)
def test_a_terminal_shows_them_above_the_prompt(platform: RunningCommand) -> None:
    with closing(Terminal("chat", "notes", cwd=platform.cwd, columns=60)) as terminal:
        terminal.wait_for("notes ▸")
        terminal.type("remind me in 1 second to stretch\r")
        terminal.wait_for("notes: .*stretch.*notes ▸")


@pytest.mark.parametrize("platform", ["prosody"], indirect=True)
def test_a_terminal_with_colours_lays_their_marks_out(platform: RunningCommand) -> None:
    with closing(Terminal("chat", "notes", cwd=platform.cwd, columns=60, env={"NO_COLOR": ""})) as terminal:
        terminal.wait_for("notes.*▸")
        terminal.type("remind me in 1 second to *stretch* and `rest` " + "often " * 20 + "\r")
        terminal.wait_for("notes:.*stretch.* and .*rest.*often.*notes.*▸")
        shown = terminal.screen.rpartition("notes:")[2].partition("notes")[0]
        assert not re.search(r"[*`]", shown)
        assert all(len(re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", line)) < 60 - len("notes:") for line in shown.split("\r\n"))


@pytest.mark.servers
@pytest.mark.timeout(4 * TIMEOUT_S)
def test_a_reminder_comes_to_the_next_chat_after_a_kill(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    project = write_project(tmp_path / "project", "prosody")
    with run_in_background("up", cwd=project, until=r"^Ready") as up:
        asked = run_command("ask", "notes", "remind me in 3 seconds to rest", cwd=project)
        assert asked.returncode == 0, asked.stderr
        up.process.send_signal(signal.SIGKILL)
        up.process.wait(TIMEOUT_S)
    with run_in_background("up", cwd=project, until=r"^Ready"), open_chat(project) as chat:
        assert "rest" in read_until(chat, "notes: ")[-1]
