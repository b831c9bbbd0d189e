"""Colours, log lines, and what `check` says about the installation."""

from __future__ import annotations

import io
import logging
import os
import sys

import pytest

from spade_coreason.cli.checks import mixed_slixmpp
from spade_coreason.cli.commands.run import name_of
from spade_coreason.cli.console import paint
from spade_coreason.cli.logs import OneLine


def test_colours_are_for_terminals_and_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    main, side = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with os.fdopen(side, "w") as terminal:
        assert paint("x", "red", terminal) == "\x1b[31mx\x1b[0m"
        monkeypatch.setenv("NO_COLOR", "1")
        assert paint("x", "red", terminal) == "x"
    os.close(main)
    monkeypatch.delenv("NO_COLOR")
    assert paint("x", "red", io.StringIO()) == "x"


def test_a_log_line_is_one_line_and_quotes_no_person() -> None:
    try:
        raise ValueError("what alice said")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "a turn\nfailed", (), sys.exc_info())
    line = OneLine().format(record)
    assert line.startswith("error: a turn failed: ValueError (test_console.py:")
    assert "alice" not in line
    assert "\n" not in line


def test_an_installation_with_both_slixmpps_is_recognised() -> None:
    assert mixed_slixmpp(None, "1.12.0") is None
    mixed = mixed_slixmpp("1.15.0", "1.12.0")
    assert mixed is not None
    assert mixed.startswith(
        "slixmpp 1.15.0 and slixmpp-multiplatform 1.12.0 have overwritten each other's files; mend it: pip "
    )
    assert mixed_slixmpp("1.15.0", None) is not None


@pytest.mark.parametrize(
    ("spec", "name"),
    [("weather:weather", "weather"), ("agents.echo:EchoAgent", "echo"), ("a:Agent", "agent"), ("a:B.my_agent", "my")],
)
def test_an_agent_is_named_after_its_attribute(spec: str, name: str) -> None:
    assert name_of(spec) == name
