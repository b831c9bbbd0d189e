"""`ask` and `chat` beside a running platform, and what the storage commands see meanwhile."""

from __future__ import annotations

import json
import uuid
from subprocess import PIPE, Popen

from .conftest import Invoke
from .program import COMMAND, Running, call, environment


def test_ask_prints_the_answer_and_nothing_else(platform: Running) -> None:
    done = call("ask", "echo@localhost", "hello there", cwd=platform.cwd)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello there\n", "")


def test_a_name_alone_is_enough_and_a_dash_reads_standard_input(beside: Invoke) -> None:
    done = beside("ask", "echo", "-", stdin="from a pipe\n")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "from a pipe\n", "")


def test_json_is_a_line_for_every_event(beside: Invoke) -> None:
    done = beside("ask", "echo", "one two", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["type"] for event in events]
    assert kinds == ["block.thought", "stream.start", "stream.chunk", "stream.chunk", "stream.end", "request.completed"]
    assert "".join(event["data"].get("chunk", "") for event in events) == "one two"


def test_without_a_thread_it_is_one_conversation_and_with_one_another(beside: Invoke) -> None:
    first, thread = uuid.uuid4().hex, uuid.uuid4().hex
    beside("ask", "moody", first)
    assert f"({first} before)" in beside("ask", "moody", "again").stdout
    done = beside("ask", "moody", "table", "--thread", thread)
    assert done.stdout == "Weather\n```\ncity    sun\nBerlin  yes\n```\n"
    listed = beside("conversations", "--agent", "moody", "--json")
    assert thread in [record["conversation_id"] for record in json.loads(listed.stdout)]


def test_an_error_of_the_agent_is_1_and_one_line(beside: Invoke) -> None:
    done = beside("ask", "moody", "fail")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "error: moody@localhost reports: I am in a bad mood\n"


def test_no_answer_in_time_is_3(beside: Invoke) -> None:
    done = beside("ask", "moody", "sleep", "--timeout", "0.7", "--thread", uuid.uuid4().hex)
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == "error: moody@localhost did not answer in 0.7 s\n"


def test_an_agent_that_is_not_there_is_4_at_once(beside: Invoke) -> None:
    done = beside("ask", "nobody", "hi")
    assert done.exit_code == 4
    assert done.stderr.startswith("error: nobody@localhost is not there; there are echo@localhost")


def test_chat_without_a_terminal_asks_line_by_line(beside: Invoke) -> None:
    done = beside("chat", "moody", stdin="two\n\nfail\nescape\n/quit\nnever asked\n")
    assert done.stdout == "one\n\ntwo three\n[31mred[0m and 5m blinking\n"
    assert done.exit_code == 1
    assert done.stderr == "error: moody@localhost reports: I am in a bad mood\n"


def test_what_is_stored_is_shown_beside_the_platform_and_deleted_only_without_it(beside: Invoke) -> None:
    beside("ask", "notes", "my plane leaves on Friday")
    shown = beside("sessions", "show", "guest@localhost_notes@localhost")
    assert "▸ my plane leaves on Friday" in shown.stdout
    remembered = beside("memory", "show", "guest@localhost_notes@localhost")
    assert "- my plane leaves on Friday\n" in remembered.stdout
    for what in ("sessions", "memory"):
        refused = beside(what, "clear", "--agent", "notes", "--all", "--yes")
        assert refused.exit_code == 2
        assert "stop it first" in refused.stderr


def test_a_second_owner_of_the_data_directory_is_told_so(platform: Running, beside: Invoke) -> None:
    done = beside("up")
    assert done.exit_code == 2
    assert f"in use by process {platform.process.pid}; stop it first" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error(platform: Running) -> None:
    with Popen(
        [*COMMAND, "ask", "echo", "-"], cwd=platform.cwd, env=environment(), stdin=PIPE, stdout=PIPE, stderr=PIPE
    ) as asking:
        assert asking.stdin is not None
        assert asking.stdout is not None
        assert asking.stderr is not None
        asking.stdout.close()
        asking.stdin.write(b"word " * 10_000)
        asking.stdin.close()
        assert asking.stderr.read() == b""
        assert asking.wait(20) == 141


def test_what_an_agent_raises_shows_no_traceback_and_nothing_personal(beside: Invoke) -> None:
    done = beside("ask", "moody", "raise")
    assert done.exit_code == 1
    assert "incident" in done.stderr
    assert "Traceback" not in done.stderr
    assert "a secret of the person" not in done.stderr


def test_another_account_is_asked_for_its_password(beside: Invoke) -> None:
    done = beside("ask", "echo", "hi", "--jid", "alice@localhost")
    assert done.exit_code == 2
    assert "SPADE_COREASON_PASSWORD" in done.stderr


def test_without_a_platform_it_says_how_to_start_one(beside: Invoke) -> None:
    done = beside("ask", "echo", "hi", "--data", "elsewhere")
    assert done.exit_code == 4
    assert done.stderr.startswith("error: no platform is running on elsewhere; start one")
