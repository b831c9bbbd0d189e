"""`ask` and `chat` beside a running platform, and the storage commands while it runs."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import pytest

from spade_coreason import Platform, load_settings
from spade_coreason.cli.account import Account
from spade_coreason.cli.beginning import is_platform_beginning
from spade_coreason.exceptions import PeerUnavailableError
from spade_coreason.storage.backends.lock import lock_directory
from tests.cli.conftest import Invoke
from tests.support.program import (
    COMMAND,
    MOODY_AGENT_SOURCE,
    RunningCommand,
    clean_environment,
    run_command,
    run_in_background,
    run_in_vain,
)
from tests.support.terminal import Terminal
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess


def test_ask_prints_the_answer_and_nothing_else(platform: RunningCommand) -> None:
    done = run_command("ask", "echo@localhost", "hello there", cwd=platform.cwd)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello there\n", "")


def test_a_name_alone_is_enough_and_a_dash_reads_standard_input(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("ask", "echo", "-", stdin="from a pipe\n")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "from a pipe\n", "")


def test_an_empty_question_is_asked_only_if_it_is_quoted(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("ask", "moody", "", "--thread", uuid.uuid4().hex)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("You said  (")  # and what anybody asked before as this guest
    done = invoke_beside_platform("ask", "moody", "-", stdin="\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == 'error: TEXT: standard input is empty; write a question there, or pass "" to send an empty one\n'


def test_a_question_that_is_not_utf_8_is_one_line_and_exit_code_2(invoke: Invoke, tmp_path: Path) -> None:
    line = "error: TEXT: is not UTF-8; convert it first (iconv -t UTF-8)\n"
    piped = invoke("ask", "echo", "-", stdin="grün".encode("latin-1"))
    assert (piped.exit_code, piped.stderr) == (2, line)
    typed = run_command("ask", "echo", os.fsdecode("grün".encode("latin-1")), cwd=tmp_path, env={"PYTHONUTF8": "1"})
    assert (typed.returncode, typed.stderr) == (2, line)


def test_chat_leaves_out_a_line_that_is_not_utf_8(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("chat", "echo", stdin=b"before\n\xff\nafter\n")
    assert (done.exit_code, done.stdout) == (2, "before\nafter\n")
    assert done.stderr == "error: standard input: is not UTF-8; convert it first (iconv -t UTF-8)\n"


@pytest.mark.parametrize("platform", ["prosody"], indirect=True)
@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "? gr?n ?"), ("latin-1", "? grün ?")])
def test_characters_that_standard_output_cannot_show_are_replaced(platform: RunningCommand, encoding: str, shown: str) -> None:
    def stdout_of(*arguments: str) -> str:
        env = clean_environment({"PYTHONIOENCODING": encoding})
        with WarmProcess[bytes]([*COMMAND, *arguments], cwd=platform.cwd, env=env, stdin=DEVNULL, stdout=PIPE) as process:
            out, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
        return out.decode(encoding)

    thread = uuid.uuid4().hex
    assert stdout_of("ask", "echo", "☀ grün ☀", "--thread", thread) == f"{shown}\n"
    assert f"? {shown}\n  {shown}" in stdout_of("sessions", "show", thread)
    events = [json.loads(line) for line in stdout_of("ask", "echo", "☀ grün ☀", "--json").splitlines()]
    assert "".join(event["data"].get("chunk", "") for event in events).strip() == "☀ grün ☀"
    assert json.loads(stdout_of("sessions", "show", thread, "--json"))["history"][0]["input"]["query"] == "☀ grün ☀"


def test_json_is_a_line_for_every_event(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("ask", "echo", "one two", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["type"] for event in events]
    assert kinds == ["block.thought", "stream.start", "stream.chunk", "stream.chunk", "stream.end", "request.completed"]
    assert "".join(event["data"].get("chunk", "") for event in events) == "one two"


def test_questions_without_a_thread_share_a_conversation_and_a_thread_is_another(invoke_beside_platform: Invoke) -> None:
    first, thread = uuid.uuid4().hex, uuid.uuid4().hex
    invoke_beside_platform("ask", "moody", first)
    assert f"({first} before)" in invoke_beside_platform("ask", "moody", "again").stdout
    done = invoke_beside_platform("ask", "moody", "table", "--thread", thread)
    assert done.stdout == "**Weather**\n\n```\ncity    sun\nBerlin  yes\n```\n"
    listed = invoke_beside_platform("conversations", "--agent", "moody", "--json")
    assert thread in [record["conversation_id"] for record in json.loads(listed.stdout)]


def test_an_agent_that_answers_nothing_is_said_to_be_silent(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("ask", "moody", "hush")
    line = "moody@localhost ended its turn without an answer\n"
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", line)
    as_json = invoke_beside_platform("ask", "moody", "hush", "--json")
    assert (as_json.exit_code, as_json.stderr) == (0, "")
    assert json.loads(as_json.stdout)["type"] == "request.completed"


def test_an_error_of_the_agent_is_exit_code_1_and_one_line(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("ask", "moody", "fail")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "error: moody@localhost reports: I am in a bad mood\n"


def test_no_answer_in_time_is_exit_code_3(invoke_beside_platform: Invoke) -> None:
    for timeout_s in ("0.7", "7", "30"):
        done = invoke_beside_platform("ask", "moody", "sleep", "--timeout", timeout_s, "--thread", uuid.uuid4().hex)
        if done.exit_code != 4:  # on a busy machine the login alone may take longer
            break
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == f"error: moody@localhost did not answer in {timeout_s} s\n"


def test_an_unknown_agent_is_exit_code_4_at_once(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("ask", "nobody", "hi")
    assert done.exit_code == 4
    assert done.stderr.startswith("error: nobody@localhost does not exist on this platform; the agents are echo@localhost")


def test_chat_without_a_terminal_asks_line_by_line(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("chat", "moody", stdin="two\n\nfail\nescape\n/quit\nnever asked\n")
    assert done.stdout == "one\n\ntwo three\n[31mred[0m and 5m blinking\n"
    assert done.exit_code == 1
    assert done.stderr == "error: moody@localhost reports: I am in a bad mood\n"


def test_stored_data_is_shown_beside_the_platform(invoke_beside_platform: Invoke) -> None:
    invoke_beside_platform("ask", "notes", "my plane leaves on Friday")
    shown = invoke_beside_platform("sessions", "show", "guest@localhost_notes@localhost")
    assert "▸ my plane leaves on Friday" in shown.stdout
    remembered = invoke_beside_platform("memory", "show", "guest@localhost_notes@localhost")
    assert "- my plane leaves on Friday\n" in remembered.stdout


def test_a_second_owner_of_the_data_directory_is_told_so(platform: RunningCommand, invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("up")
    assert done.exit_code == 2
    owner = f"{platform.cwd / 'data'}: in use by process {platform.process.pid}"
    remedy = "stop it first, name another data directory for other agents, or share these agents: workers need PostgreSQL"
    assert done.stderr == f"error: config/platform.yaml: data_dir: {owner}; {remedy} and server.mode: external\n"


def test_a_closed_standard_output_is_no_error(platform: RunningCommand) -> None:
    with Popen(
        [*COMMAND, "ask", "echo", "-"], cwd=platform.cwd, env=clean_environment(), stdin=PIPE, stdout=PIPE, stderr=PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"word " * 10_000)
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == 141


def test_exceptions_of_an_agent_show_no_traceback_and_nothing_personal(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("ask", "moody", "raise")
    assert done.exit_code == 1
    assert "incident" in done.stderr
    assert "Traceback" not in done.stderr
    assert "a secret of the person" not in done.stderr


def test_another_account_is_asked_for_its_password(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("ask", "echo", "hi", "--jid", "alice@localhost")
    assert done.exit_code == 2
    assert "SPADE_COREASON_PASSWORD" in done.stderr


def test_a_person_of_the_local_server_needs_no_password(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("ask", "echo", "hi", "--jid", "boss@localhost")
    assert (done.exit_code, done.stdout) == (0, "hi\n")
    assert "boss@localhost" in invoke_beside_platform("sessions", "list").stdout


@pytest.mark.parametrize("option", ["--host=h", "--port=5222", "--ca-file=secret", "--no-verify", "--password-file=secret"])
@pytest.mark.parametrize("command", [("ask", "echo", "hi"), ("chat", "echo")])
def test_the_options_of_an_account_need_one(invoke: Invoke, command: tuple[str, ...], option: str) -> None:
    Path("secret").write_text("x")
    done = invoke(*command, option)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {option.partition('=')[0]}: needs --jid JID, your own account; ")


@pytest.mark.parametrize(
    ("agents", "listing"),
    [
        ((), "there are no agents"),
        (("weather@localhost",), "the only agent is weather@localhost"),
        (("a@localhost", "b@localhost"), "the agents are a@localhost, b@localhost"),
    ],
)
def test_an_agent_that_is_not_there_is_told_from_those_that_are(agents: tuple[str, ...], listing: str) -> None:
    with pytest.raises(PeerUnavailableError, match=f"nobody@localhost does not exist on this platform; {listing}$"):
        Account("guest@localhost", "x", agents=dict.fromkeys(agents, ""), is_complete=True).resolve_jid("nobody")


def test_without_a_platform_it_says_how_to_start_one(invoke_beside_platform: Invoke) -> None:
    done = invoke_beside_platform("ask", "echo", "hi", "--data", "elsewhere")
    assert done.exit_code == 4
    assert "start one (`spade-coreason up`)" in done.stderr
    assert done.stderr.startswith("error: no platform is running on elsewhere (the directory ")


async def test_ask_says_that_an_agent_is_paused(tmp_path: Path) -> None:
    """A program that asks is not told: its question waits until the agent goes on, or its time is over."""
    file = tmp_path / "platform.yaml"
    file.write_text("agents: [{jid: echo@localhost, agent: 'spade_coreason.agents.echo:EchoAgent'}]\n")
    async with Platform(load_settings(file, tmp_path, {})) as platform:
        platform.runners["echo@localhost"].control.set_paused(True)
        asked, timeout_s = await asyncio.to_thread(run_in_vain, "ask", "echo", "hi", cwd=tmp_path)
    assert (asked.returncode, asked.stdout) == (3, "")
    assert asked.stderr == (
        "warning: echo@localhost is paused; it answers after `spade-coreason resume echo@localhost`,"
        " or when an operator sends it /resume\n"
        f"error: echo@localhost did not answer in {timeout_s} s\n"
    )


def test_ask_says_on_a_terminal_that_commands_work_in_chat(platform: RunningCommand) -> None:
    for text, is_command in (("/schedule today", True), ("/usr/bin is a directory", False), ("hello", False)):
        terminal = Terminal("ask", "echo", text, cwd=platform.cwd)
        assert terminal.wait_for_end() == 0
        assert text in terminal.screen
        assert ("commands work in `spade-coreason chat echo`" in terminal.screen) == is_command
        terminal.close()


WAITING = "Waiting for the platform on data to start…\n"


def start_waiting_ask(directory: Path, *options: str) -> Popen[str]:
    """Start `ask` beside a locked data directory; return when it waits."""
    process = WarmProcess[str](
        [*COMMAND, "ask", "echo", "hi", *options], cwd=directory, env=clean_environment(), stdout=PIPE, stderr=PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == WAITING
    return process


def test_ask_waits_for_a_platform_that_is_starting(platform: RunningCommand, tmp_path: Path) -> None:
    with lock_directory(tmp_path / "data"):
        process = start_waiting_ask(tmp_path)
        shutil.copy(platform.cwd / "data" / "run.json", tmp_path / "data")
        assert process.communicate(timeout=TIMEOUT_S) == ("hi\n", "")
    assert process.returncode == 0


def test_ask_by_a_person_waits_for_their_account_of_a_platform_that_is_starting(
    platform: RunningCommand, tmp_path: Path
) -> None:
    """It asked for a password, which nobody had told that person."""
    guest = json.loads((platform.cwd / "data" / "run.json").read_text())["guest"]
    with lock_directory(tmp_path / "data"):
        process = start_waiting_ask(tmp_path, "--jid", guest["jid"])
        (tmp_path / "data" / "people.json").write_text(json.dumps({guest["jid"]: guest["password"]}))
        shutil.copy(platform.cwd / "data" / "run.json", tmp_path / "data")
        assert process.communicate(timeout=TIMEOUT_S) == ("hi\n", "")


@contextmanager
def beginning_platform(directory: Path) -> Iterator[Popen[bytes]]:
    """Run a process that looks like a platform and never locks its data."""
    command = [sys.executable, "-c", "print(flush=True); input()", "spade-coreason", "run"]
    with Popen(command, cwd=directory, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.communicate(b"\n")


def test_ask_waits_for_a_platform_that_the_line_before_began_to_start(tmp_path: Path) -> None:
    """In one paste, `ask` looked before `run` had locked its data, and said that no platform is running."""
    program = shlex.join([sys.executable, "-m", "spade_coreason"])
    start = f"{program} run spade_coreason.agents.echo:EchoAgent > run.log 2>&1 & run=$!"
    script = f"{start}; {program} ask echo hi; code=$?; kill $run; wait $run; exit $code"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        start_new_session=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "hi\n"), done.stderr
    assert done.stderr in ("", WAITING)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--timeout", "0.2"], "no platform is running on data"),
        (["--timeout", "600", "--jid", "me@example.org"], "SPADE_COREASON_PASSWORD: is not set"),
        (["--timeout", "600", "--jid", "example.org"], "--jid: "),
    ],
)
def test_ask_waits_for_a_beginning_platform_no_longer_than_its_time_and_only_if_it_may_be_asked(
    invoke: Invoke, tmp_path: Path, options: list[str], problem: str
) -> None:
    with beginning_platform(tmp_path):
        done = invoke("ask", "echo@example.org", "hi", *options)
        assert problem in done.stderr
        assert is_platform_beginning()  # else it may have waited until it was not


def test_a_process_that_is_older_than_the_system_is_no_beginning_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with beginning_platform(tmp_path) as platform:
        (tmp_path / str(platform.pid)).symlink_to(f"/proc/{platform.pid}")
        (tmp_path / "uptime").write_text(Path("/proc/uptime").read_text())
        assert is_platform_beginning(tmp_path)
        (tmp_path / "uptime").write_text("0.00 0.00")
        assert not is_platform_beginning(tmp_path)


def test_ask_waits_no_longer_for_a_platform_that_has_ended(tmp_path: Path) -> None:
    with lock_directory(tmp_path / "data"):
        process = start_waiting_ask(tmp_path)
    output, error = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, output) == (4, "")
    assert error.startswith("error: no platform is running on data; start one (`spade-coreason up`)")


def test_ask_says_that_a_platform_is_never_ready(invoke: Invoke, tmp_path: Path) -> None:
    with lock_directory(tmp_path / "data"):
        done = invoke("ask", "echo", "hi", "--timeout", "0.1")
    error = "error: data is in use, but its platform was not ready in 0.1 s; see what it prints\n"
    assert (done.exit_code, done.stderr) == (4, WAITING + error)


def test_an_interrupted_ask_takes_its_question_back(platform: RunningCommand, invoke_beside_platform: Invoke) -> None:
    thread = uuid.uuid4().hex
    process = WarmProcess[bytes](
        [*COMMAND, "ask", "moody", "yawn", "--thread", thread],
        cwd=platform.cwd,
        env=clean_environment(),
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(5) == b"Well,"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=TIMEOUT_S)[1].strip() == b""
    assert process.returncode == 130
    assert (
        invoke_beside_platform("ask", "moody", "two", "--thread", thread).stdout == "one\n\ntwo three\n"
    )  # it would sleep for an hour
    assert "yawn" not in invoke_beside_platform("sessions", "show", thread).stdout


def test_the_data_directory_of_the_configuration_is_found_and_that_of_run(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(MOODY_AGENT_SOURCE)
    (tmp_path / "config").mkdir()
    agents = [{"jid": "echo@localhost", "agent": "spade_coreason.agents.echo:EchoAgent"}]
    configured = json.dumps({"data_dir": "../kept", "agents": agents})
    (tmp_path / "config" / "platform.yaml").write_text(configured)
    with run_in_background("up", cwd=tmp_path, until="Ready") as up:
        assert (tmp_path / "kept" / "run.json").exists()
        assert up.run_command("ask", "echo", "hello").stdout == "hello\n"
        assert up.run_command("chat", "echo", stdin="hello\n").stdout.endswith("hello\n")
        up.stop()
    with run_in_background("run", "moody:MoodyAgent", cwd=tmp_path, until="spade-coreason ask") as run:
        assert "You said hello" in run.run_command("ask", "moody", "hello").stdout
        named = run.run_command("ask", "-c", "config/platform.yaml", "moody", "hello")
        assert (named.returncode, named.stdout) == (4, "")
        assert named.stderr.startswith("error: no platform is running on kept; ")
        assert "moody@localhost" in run.run_command("status").stdout
    both = run_command("ask", "-c", "config/nothing.yaml", "--data", "data", "moody", "hello", cwd=tmp_path)
    assert (both.returncode, both.stderr.count("\n")) == (2, 1)
    assert both.stderr.startswith("error: config/nothing.yaml: no such file")


def test_clients_need_only_the_data_directory_of_a_configuration(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "platform.yaml"
    agents = "agents: [{jid: 1, password: '${NOT_SET_HERE}'}]"
    for directory, shown in (("${HOME}/of/agents", f"{Path.home()}/of/agents"), ("'../${NOT_SET:-kept}'", "kept")):
        file.write_text(f"data_dir: {directory}\n{agents}\n")
        for command in (("ask", "echo", "hello"), ("chat", "echo"), ("status",)):
            done = invoke(*command)
            assert (done.exit_code, done.stderr.partition(" (")[0]) == (4, f"error: no platform is running on {shown}")
    file.write_text("data_dir: [\n")
    broken = invoke("ask", "echo", "hello")
    assert (broken.exit_code, broken.stderr.count("\n")) == (2, 1)
    assert broken.stderr.startswith("error: config/platform.yaml:")
