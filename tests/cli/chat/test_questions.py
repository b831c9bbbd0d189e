"""`ask` and `chat` with agents that ask people: a request that waits, and the rest of its reply."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cli.chat.test_initiative import read_until
from tests.support.program import RunningCommand, clean_environment, run_command, run_in_background, write_project
from tests.support.servers import prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.terminal import Terminal
from tests.support.warm import WarmProcess

WAITS = re.compile(r"^moody@localhost waits for a person's answer\. .* --request-id ([0-9a-f-]{36})\n$")


@contextmanager
def open_chat(cwd: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A chat with moody without a terminal, whose standard input stays open."""
    command, pipe = [sys.executable, "-m", "spade_coreason", "chat", "moody", *options], subprocess.PIPE
    with WarmProcess[str](
        command, cwd=cwd, env=clean_environment(), stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def type_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def test_ask_ends_with_the_id_of_the_request_and_prints_the_reply_when_it_is_asked_again(platform: RunningCommand) -> None:
    asked = run_command("ask", "moody", "drink", "--thread", "thirst", cwd=platform.cwd)
    assert asked.returncode == 6
    assert "1. tea\n2. coffee" in asked.stdout
    found = WAITS.match(asked.stderr)
    assert found is not None, asked.stderr
    again = "ask", "moody", "drink", "--thread", "thirst", "--request-id", found[1]
    assert run_command(*again, cwd=platform.cwd).returncode == 6
    assert run_command("ask", "moody", "2", "--thread", "thirst", cwd=platform.cwd).returncode == 0
    told = run_command(*again, cwd=platform.cwd)
    assert told.returncode == 0, told.stderr
    assert told.stdout.endswith("Here is your coffee.\n")
    other = run_command("ask", "moody", "another text", "--request-id", found[1], cwd=platform.cwd)
    assert other.returncode == 1
    assert "used for another request" in other.stderr


def test_ask_prints_the_event_as_json(platform: RunningCommand) -> None:
    asked = run_command("ask", "moody", "drink", "--json", "--thread", "json", cwd=platform.cwd)
    events = [json.loads(line) for line in asked.stdout.splitlines()]
    assert [event["type"] for event in events] == ["block.markdown", "request.parked"]
    assert events[0]["data"]["choices"][1] == {"value": "coffee", "label": "coffee"}
    assert asked.returncode == 6


def test_a_chat_without_a_terminal_shows_the_rest_of_the_reply_after_the_answer(platform: RunningCommand) -> None:
    done = run_command("chat", "moody", cwd=platform.cwd, stdin="drink\n1\n")
    assert done.returncode == 0, done.stderr
    _, rest = done.stdout.split("Tea or coffee?")  # before it may come what another test has not read
    assert rest.startswith("\n\n1. tea\n2. coffee\n")
    assert rest.endswith("moody: Here is your tea.\n")


@pytest.mark.parametrize("platform", ["prosody"], indirect=True)
def test_the_rest_of_a_reply_waits_for_the_next_chat(platform: RunningCommand) -> None:
    assert run_command("chat", "moody", cwd=platform.cwd, stdin="pay\n").returncode == 6
    [one] = json.loads(run_command("approvals", "list", "--json", cwd=platform.cwd).stdout)
    approved = run_command("approvals", "approve", one["id"], cwd=platform.cwd)
    assert approved.returncode == 0, approved.stderr
    with open_chat(platform.cwd) as chat:
        read_until(chat, "paid 7")


@pytest.mark.parametrize("platform", ["prosody"], indirect=True)
def test_a_chat_that_ends_before_the_answer_has_an_exit_code_of_its_own(platform: RunningCommand) -> None:
    done = run_command("chat", "moody", cwd=platform.cwd, stdin="drink\n")
    assert done.returncode == 6
    assert "moody@localhost waits for a person's answer; ask again later with the request id" in done.stderr
    assert run_command("chat", "moody", cwd=platform.cwd, stdin="/cancel\n").stdout == "Stopped.\n"


@pytest.mark.parametrize("platform", ["prosody"], indirect=True)
def test_an_approver_decides_in_a_chat_and_the_requesters_chat_goes_on(platform: RunningCommand) -> None:
    with open_chat(platform.cwd, "--jid", "boss@localhost") as boss, open_chat(platform.cwd) as chat:
        for verb, line, told in (
            ("approve CODE", "paid 7", "It runs now"),
            ("deny CODE no", "denied by boss@localhost: no", "It does not run"),
        ):
            type_line(chat, "pay")
            read_until(chat, "needs the approval")
            shown = ""
            while told not in shown:
                shown = read_until(boss, ".")[-1]
                if "/approve " in shown:  # also what was asked while the approver was away, and is decided
                    type_line(boss, "/" + verb.replace("CODE", shown.split()[2]))
            read_until(chat, line)


@pytest.mark.parametrize("platform", ["prosody"], indirect=True)
def test_a_terminal_takes_the_number_of_a_choice_and_shows_the_rest_above_the_prompt(platform: RunningCommand) -> None:
    with closing(Terminal("chat", "moody", cwd=platform.cwd, columns=60)) as terminal:
        terminal.wait_for("moody ▸")
        terminal.type("drink\r")
        terminal.wait_for("2. coffee.*moody ▸")
        terminal.type("2\r")
        terminal.wait_for("moody: Here is your coffee.*moody ▸")


@pytest.mark.parametrize("platform", ["prosody"], indirect=True)
def test_approvals_are_listed_and_decided_beside_the_running_platform(platform: RunningCommand) -> None:
    with open_chat(platform.cwd) as chat:
        type_line(chat, "pay")
        read_until(chat, "needs the approval")
        [one] = json.loads(run_command("approvals", "list", "--json", cwd=platform.cwd).stdout)
        assert (one["call"], one["people"]) == ("pay\namount:\n7", ["boss@localhost"])
        approved = run_command("approvals", "approve", one["id"][:8], "--reason", "checked", cwd=platform.cwd)
        assert (approved.returncode, approved.stdout.splitlines()[-3:]) == (0, ["  pay", "  amount:", "  7"]), approved.stderr
        read_until(chat, "paid 7")
        assert run_command("approvals", "deny", one["id"], cwd=platform.cwd).returncode == 2


@pytest.mark.servers
def test_an_answer_in_the_terminal_counts_after_a_kill_and_its_repetition_only_fetches(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    project = write_project(tmp_path / "project", "prosody")
    with run_in_background("up", cwd=project, until=r"^Ready") as up:
        asked = run_command("ask", "moody", "drink", "--thread", "thirst", cwd=project)
        found = WAITS.match(asked.stderr)
        assert found is not None, asked.stderr
        up.process.kill()
        up.process.wait()
    with run_in_background("up", cwd=project, until=r"^Ready"):
        answer = "ask", "moody", "(2).", "--thread", "thirst", "--request-id", str(uuid4())
        answered = run_command(*answer, cwd=project)
        assert answered.returncode == 0, answered.stderr
        assert run_command(*answer, cwd=project).stdout == ""  # nothing else is answered by it
        told = run_command("ask", "moody", "drink", "--thread", "thirst", "--request-id", found[1], cwd=project)
        assert told.stdout.endswith("Here is your coffee.\n")


@pytest.mark.parametrize("platform", ["prosody"], indirect=True)
def test_an_approver_decides_in_a_chat_without_a_slash(platform: RunningCommand) -> None:
    with open_chat(platform.cwd, "--jid", "boss@localhost") as boss, open_chat(platform.cwd) as chat:
        type_line(chat, "pay")
        read_until(chat, "needs the approval")
        shown = ""
        while "It runs now" not in shown:
            shown = read_until(boss, ".")[-1]
            if "/approve " in shown:
                type_line(boss, f"approve `{shown.split()[2]}`.")
        read_until(chat, "paid 7")
