"""Errors that the platform logs. A test announces those that it provokes; any other fails it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence

import pytest

# The formats without -vv and with it.
_LINE = re.compile(r"^(?:error: |[-\d]+ [:,\d]+ (?:ERROR|CRITICAL) ).*", re.MULTILINE)


class ExpectedErrors(logging.Handler):
    """The errors that are logged in this process during a test, and those that the test announced.

    Use the fixture: `expected_errors("text of the message")`, at any time in a test. The text is a part of the message, or of
    the exception that is logged with it.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.logged: list[str] = []
        self.announced: list[str] = []
        self.allowed: list[str] = []
        """Errors that may be logged, or not."""

    def __call__(self, *texts: str) -> None:
        """Announce errors. Each has to be logged at least once before the end of the test."""
        self.announced += texts

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        exception_text = "" if error is None else f": {type(error).__name__}: {error}"
        self.logged.append(f"{record.name}: {record.getMessage()}{exception_text}")

    def check(self) -> None:
        """Fail if an error was not announced, or an announced one was not logged."""
        check_errors(self.logged, self.announced, self.allowed)


def check_errors(logged: Iterable[str], announced: Sequence[str], allowed: Sequence[str] = ()) -> None:
    """Fail unless each error is announced or allowed, and each announced one was logged."""
    logged = list(logged)
    unexpected = [line for line in logged if not any(text in line for text in (*announced, *allowed))]
    missing = [text for text in announced if not any(text in line for line in logged)]
    problems = [f"logged an error that was not announced: {line}" for line in unexpected]
    problems += [f"did not log the error that was announced: {text}" for text in missing]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def errors_in(output: str) -> list[str]:
    """Return the errors among the lines that a platform of its own process logged."""
    return _LINE.findall(output)
