"""Colours, log lines, and the checks of the installation."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from spade_coreason import PeerError
from spade_coreason.cli.checks import slixmpp_problem
from spade_coreason.cli.commands.run import default_agent_name
from spade_coreason.cli.errors import format_error
from spade_coreason.cli.logging import OneLineFormatter, TracebackFormatter, _StandardErrorHandler, configure_logging
from spade_coreason.cli.terminal.console import format_milliseconds, format_timedelta, paint, status_line, verdict_sign, write
from spade_coreason.domain.environment.library_logs import is_worth_showing
from spade_coreason.exceptions import ConfigError, PeerFailedError, PeerUnavailableError, StoreError
from spade_coreason.runtime.agent_factory import find_agent
from spade_coreason.runtime.interceptors import load_interceptors


def test_colours_are_for_terminals_and_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, tty = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with os.fdopen(tty, "w") as terminal:
        assert paint("x", "red", terminal) == "\x1b[31mx\x1b[0m"
        monkeypatch.setenv("NO_COLOR", "1")
        assert paint("x", "red", terminal) == "x"
    os.close(controller)
    monkeypatch.delenv("NO_COLOR")
    assert paint("x", "red", io.StringIO()) == "x"


def test_a_log_line_is_one_line_and_quotes_no_person() -> None:
    try:
        raise ValueError("what alice said")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "a turn\nfailed", (), sys.exc_info())
    line = OneLineFormatter().format(record)
    assert line.startswith("error: a turn failed: ValueError (test_console.py:")
    assert "alice" not in line
    assert "\n" not in line


def test_an_error_and_a_log_line_have_no_control_characters() -> None:
    assert format_error(PeerFailedError("a@b", "x\x1b[2J\ny\x9b1m")) == r"a@b reports: x\x1b[2J y\x9b1m"
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "the peer says %s", ("x\x1b[2J\ny",), None)
    assert OneLineFormatter().format(record) == TracebackFormatter().format(record) == r"warning: the peer says x\x1b[2J y"


def test_a_traceback_has_the_code_of_the_user_and_the_text_of_each_exception(tmp_path: Path) -> None:
    chef = tmp_path / "chef.py"
    chef.write_text(
        "def cook(read):\n    try:\n        read()\n"
        "    except ValueError as error:\n        raise LookupError('no soup') from error\n"
    )
    try:
        runpy.run_path(str(chef))["cook"](partial(json.loads, "{"))
    except LookupError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "incident 1", (), sys.exc_info())
    lines = TracebackFormatter().format(record).splitlines()
    assert re.fullmatch(r"  \(3 calls of libraries, to JSONDecoder\.raw_decode at decoder\.py:\d+\)", lines.pop(4))
    here = [f'  File "{__file__}", line N, in {record.exc_info[1].__traceback__.tb_frame.f_code.co_name}']  # type: ignore[index,union-attr]
    here += ['    runpy.run_path(str(chef))["cook"](partial(json.loads, "{"))']
    assert [re.sub(r"line \d+, in test", "line N, in test", line) for line in lines] == [
        "error: incident 1",
        "Traceback (most recent call last):",
        f'  File "{chef}", line 3, in cook',
        "    read()",
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        *here,
        f'  File "{chef}", line 5, in cook',
        "    raise LookupError('no soup') from error",
        "LookupError: no soup",
    ]


def test_a_traceback_has_no_control_characters() -> None:
    try:
        raise ValueError("red \x1b[31m")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "incident 1", (), sys.exc_info())
    assert TracebackFormatter().format(record).endswith("\nValueError: red \\x1b[31m")


def test_a_log_line_names_the_place_in_the_users_code_and_the_peer(tmp_path: Path) -> None:
    (tmp_path / "chef.py").write_text("def cook(fail):\n    fail()\n")
    scope = runpy.run_path(str(tmp_path / "chef.py"))

    def peer_fails() -> None:
        raise PeerFailedError("pantry@localhost", "what alice said")

    def peer_is_away() -> None:
        raise PeerUnavailableError("pantry@localhost", "is not there")

    problems: list[tuple[Callable[[], Any], str]] = [
        (lambda: scope["cook"](lambda: json.loads("{")), r"JSONDecodeError \(test_console.py:\d+\)"),
        (lambda: scope["cook"](partial(json.loads, "{")), r"JSONDecodeError \(chef.py:2\)"),
        (lambda: scope["cook"](peer_fails), r"PeerFailedError of pantry@localhost \(test_console.py:\d+\)"),
        (lambda: scope["cook"](peer_is_away), r"pantry@localhost is not there \(test_console.py:\d+\)"),
    ]
    for problem, pattern in problems:
        try:
            problem()
        except (ValueError, PeerError):
            record = logging.LogRecord("x", logging.ERROR, __file__, 1, "incident 1", (), sys.exc_info())
        assert re.fullmatch(f"error: incident 1: {pattern}; -vv shows more", OneLineFormatter().format(record))


def test_a_log_line_names_the_first_error_of_a_group_and_the_command_that_shows_an_incident() -> None:
    """An outage of the database was the place of the task group, in the standard library."""
    try:
        raise ExceptionGroup("", [ExceptionGroup("", [StoreError("desk.db: is away")]), KeyError("alice")])
    except ExceptionGroup:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "incident 1", (), sys.exc_info())
    line = OneLineFormatter().format(record)
    assert line.startswith("error: incident 1: ExceptionGroup of ExceptionGroup of desk.db: is away (test_console.py:")
    record.incident = "39309c29"
    assert OneLineFormatter().format(record).endswith("); spade-coreason incident 39309c29 shows more")


@pytest.mark.parametrize(("verbosity", "shown"), [(0, ["warning"]), (1, ["info", "warning"])])
def test_the_log_of_an_agent_is_shown_and_that_of_libraries_one_level_later(
    verbosity: int, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    library = [
        logging.LogRecord("library", level, pytest.__file__, 1, text, (), None)
        for level, text in ((logging.INFO, "minor"), (logging.WARNING, "major"))
    ]
    try:
        configure_logging(verbosity)
        logging.getLogger("weather").info("it rains")
        logging.getLogger("weather").warning("a storm")
        for record in library:
            logging.getLogger("library").handle(record)
    finally:
        configure_logging(0)
        root.handlers[:] = handlers
        root.setLevel(level)
    said = capsys.readouterr().err.splitlines()
    own = {"info": "info: it rains", "warning": "warning: a storm"}
    assert said == [own[name] for name in shown] + (["warning: major"] if verbosity else [])


def test_the_log_of_an_installed_agent_or_interceptor_is_not_that_of_a_library(tmp_path: Path) -> None:
    def is_shown(package: Any) -> bool:
        return is_worth_showing(logging.LogRecord("own", logging.ERROR, package.__file__, 1, "no rain gauge", (), None))

    assert not is_shown(yaml)
    find_agent("yaml.loader:Loader", place="agents[0]", project=tmp_path)
    assert is_shown(yaml)
    assert not is_shown(click)
    with pytest.raises(ConfigError, match="Tuple needs types"):
        load_interceptors(["click:Tuple"], tmp_path, "interceptors", "a@localhost")
    assert is_shown(click)


@pytest.mark.parametrize("is_journal", [False, True])
def test_log_lines_have_a_time_where_no_person_watches_unless_the_journal_adds_it(is_journal: bool) -> None:
    code = "from spade_coreason.cli.logging import *; configure_logging(0); add_times(); logging.warning('a storm')"
    reader, writer = os.pipe()
    pipe = os.fstat(writer)
    env = {**os.environ, "JOURNAL_STREAM": f"{pipe.st_dev}:{pipe.st_ino if is_journal else 0}"}
    subprocess.run([sys.executable, "-c", code], stderr=writer, env=env, check=True)
    os.close(writer)
    with os.fdopen(reader) as log:
        said = log.read()
    time = "" if is_journal else r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
    assert re.fullmatch(f"{time}warning: a storm\n", said), said


def test_a_log_line_is_written_above_the_status_line(capfd: pytest.CaptureFixture[str]) -> None:
    handler, before = _StandardErrorHandler(), sys.stderr
    sys.stderr = sys.stdout  # as in a terminal, both go to the same place
    try:
        status_line.show("waiting for echo…")
        handler.handle(logging.LogRecord("x", logging.WARNING, __file__, 1, "connected again", (), None))
        status_line.clear()
    finally:
        sys.stderr = before
    erase_line = "\r\x1b[K"
    assert capfd.readouterr().out == f"waiting for echo…{erase_line}connected again\nwaiting for echo…{erase_line}"


def test_a_log_line_is_not_written_into_the_line_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, tty = os.openpty()
    with os.fdopen(tty, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        for text in ("word4 word5", " word6\n"):
            write(text)
            _StandardErrorHandler().handle(logging.LogRecord("x", logging.WARNING, __file__, 1, "connection lost", (), None))
        shown = ""
        while shown.count("lost\r\n") < 2:  # a terminal gives what is there, a line or two
            shown += os.read(controller, 1000).decode()
    assert shown.replace("\r", "") == "word4 word5\nconnection lost\n word6\nconnection lost\n"
    os.close(controller)


def test_good_and_bad_look_different_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, signs in (("utf-8", "✓•✗"), ("ascii", "+-x"), ("latin-1", "+-x")):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        assert "".join(map(verdict_sign, ("good", "note", "bad"))) == signs


def test_an_installation_with_both_slixmpps_is_recognised() -> None:
    assert slixmpp_problem(None, "1.12.0") is None
    mixed = slixmpp_problem("1.15.0", "1.12.0")
    assert mixed is not None
    assert mixed.startswith("slixmpp 1.15.0 and slixmpp-multiplatform 1.12.0 have overwritten each other's files; run: pip ")
    assert slixmpp_problem("1.15.0", None) is not None


@pytest.mark.parametrize(
    ("spec", "name"),
    [("weather:weather", "weather"), ("agents.echo:EchoAgent", "echo"), ("a:Agent", "agent"), ("a:B.my_agent", "my")],
)
def test_an_agent_is_named_after_its_attribute(spec: str, name: str) -> None:
    assert default_agent_name(spec) == name


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        *((None, "-"), (0.04, "0.04 ms"), (4.14, "4.1 ms"), (41.2, "41 ms"), (384, "380 ms")),
        *((999.6, "1 s"), (1234, "1.2 s"), (3.6e6, "3,600 s")),
    ],
)
def test_a_duration_has_two_digits(milliseconds: float | None, shown: str) -> None:
    assert format_milliseconds(milliseconds) == shown


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (timedelta(seconds=-1), "0 s"),
        (timedelta(seconds=59.9), "59 s"),
        (timedelta(minutes=4, seconds=30), "4 min"),
        (timedelta(hours=3, minutes=5), "3 h 5 min"),
        (timedelta(days=6, hours=4, minutes=59), "6 d 4 h"),
    ],
)
def test_durations_are_shown_in_whole_units(time: timedelta, shown: str) -> None:
    assert format_timedelta(time) == shown
