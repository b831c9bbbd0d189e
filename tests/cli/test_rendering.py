"""`ask` and `chat` in a terminal with colours: Markdown is laid out. Without a terminal or colours it is printed as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.support.program import RunningCommand
from tests.support.screen import Screen
from tests.support.terminal import Terminal

COLOURS = {"NO_COLOR": ""}
SOURCE = "It is **sunny**:\n\n- one\n- `two`\n\n```py\nif x:\n    y\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
SHOWN = ["It is sunny:", "", "• one", "• two", "", "  if x:", "      y", "", "a    b", "───────", "1    2", ""]

# Of the embedded server a terminal sees nothing else.
pytestmark = pytest.mark.parametrize("platform", ["prosody"], indirect=True)


@pytest.fixture
def chat(platform: RunningCommand) -> Iterator[Terminal]:
    """A chat with moody, in colours."""
    with closing(Terminal("chat", "moody", cwd=platform.cwd, env=COLOURS, columns=60)) as terminal:
        terminal.wait_for("moody.*▸")
        yield terminal


def ask(platform: RunningCommand, *arguments: str, env: dict[str, str] | None = None, columns: int = 60) -> str:
    """Ask in a terminal, and return all that was written there."""
    with closing(Terminal("ask", *arguments, cwd=platform.cwd, env=env or COLOURS, columns=columns)) as terminal:
        assert terminal.wait_for_end() == 0
        assert terminal.shows_typing
        return terminal.screen


@pytest.mark.parametrize("columns", [60, 20])
def test_ask_lays_out_the_markdown_of_a_stream(platform: RunningCommand, columns: int) -> None:
    written = ask(platform, "moody", "format", columns=columns)
    screen = Screen(columns, 30)  # it fails at anything but styles and moves of the cursor
    screen.write(written)
    assert screen.text.split("\n") == SHOWN
    assert "\x1b[1msunny\x1b[0m" in written
    assert "\x1b[36mtwo\x1b[0m" in written


def test_without_a_terminal_or_colours_the_text_is_as_its_agent_wrote_it(
    platform: RunningCommand, invoke_beside_platform: Invoke
) -> None:
    assert invoke_beside_platform("ask", "moody", "format").stdout == SOURCE
    assert platform.run_command("ask", "moody", "format").stdout == SOURCE
    assert platform.run_command("chat", "moody", stdin="format\n").stdout == SOURCE
    for env in ({"NO_COLOR": "1"}, {"NO_COLOR": "", "TERM": "dumb"}):
        assert ask(platform, "moody", "format", env=env).replace("\r\n", "\n") == SOURCE
    events = [json.loads(line) for line in ask(platform, "moody", "format", "--json").splitlines()]
    assert "".join(event["data"].get("chunk", "") for event in events) + "\n" == SOURCE


def test_a_hostile_agent_sends_no_sequence_and_no_hidden_link(platform: RunningCommand) -> None:
    for question in ("lure", "escape"):
        written = ask(platform, "moody", question)
        assert re.findall(r"\x1b[^A-Za-z]*[A-Za-z]", written) == []
        assert "\x9b" not in written
        if question == "lure":
            assert "your bank (https://evil.example) &#27;[31m" in written


def test_ask_says_that_an_agent_is_silent(platform: RunningCommand) -> None:
    assert ask(platform, "moody", "hush") == ("moody@localhost ended its turn without an answer\r\n")


def test_a_chat_lays_out_the_answer_and_keeps_data_as_they_are(chat: Terminal) -> None:
    chat.type("format\r")
    chat.wait_for(r"  It is \x1b\[1msunny\x1b\[0m:.*  \x1b\[36m• \x1b\[0mone.*    \x1b\[36mif x:.*  \x1b\[1ma .*moody.*▸")
    assert "```" not in chat.screen
    chat.type("table\r")
    chat.wait_for(
        r"  \x1b\[1mWeather\x1b\[0m\r\n\r\n    \x1b\[36mcity    sun\x1b\[0m\r\n    \x1b\[36mBerlin  yes\x1b\[0m\r\n.*moody.*▸"
    )
    chat.type("choose\r")
    chat.wait_for(r"  Which colour\?\r\n.*1 red, 2 light green.*moody.*▸")
    chat.type("fail\r")
    chat.wait_for(r"\x1b\[31m  moody@localhost reports: I am in a bad mood.*moody.*▸")


def test_a_chat_writes_an_export_to_a_file_that_only_its_owner_reads(chat: Terminal, platform: RunningCommand) -> None:
    chat.type("remember this\r")
    chat.wait_for("You said remember this.*moody.*▸")
    names = []
    for command in ("/export", "/EXPORT"):
        chat.type(f"{command}\r")
        chat.wait_for(r"Everything that I store about you \([\d,]+ bytes\):.*Saved to \S+\.json\..*moody.*▸")
        names.append(re.findall(r"Saved to (\S+\.json)\. Only you", chat.screen)[-1])
    first, second = (platform.cwd / name for name in names)
    assert re.fullmatch(r"export-moody-\d{4}-\d\d-\d\d\.json", first.name)
    assert second.name == f"{first.stem}-2.json"
    assert '"schema"' not in chat.screen
    for path in (first, second):
        assert path.stat().st_mode & 0o777 == 0o600
        queries = [turn["input"]["query"] for turn in json.loads(path.read_text())["conversations"][0]["turns"]]
        assert "remember this" in queries
        path.unlink()


def test_a_chat_that_cannot_write_the_export_says_so(platform: RunningCommand, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    data = str(platform.cwd / "data")
    with closing(Terminal("chat", "moody", "--data", data, cwd=gone, env=COLOURS, columns=60)) as terminal:
        terminal.wait_for("moody.*▸")
        gone.rmdir()
        terminal.type("/export\r")
        terminal.wait_for("No such file or directory;.*nothing was saved.*moody.*▸")
