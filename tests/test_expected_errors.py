"""The rule for errors in the log: a test announces those that it provokes."""

from __future__ import annotations

import logging

import pytest

from tests.support.errors import ExpectedErrors, errors_in

log = logging.getLogger("spade_coreason.somewhere")


@pytest.fixture
def imaginary_errors() -> ExpectedErrors:
    """Errors of an imaginary test."""
    return ExpectedErrors()


def record(level: int, message: str, error: Exception | None = None) -> logging.LogRecord:
    return logging.LogRecord(log.name, level, __file__, 1, message, (), (type(error), error, None) if error else None)


def test_an_error_that_was_announced_is_fine(expected_errors: ExpectedErrors) -> None:
    expected_errors("the disk", "ValueError: of the inside")
    log.error("the disk is full")
    log.error("incident 1", exc_info=ValueError("of the inside"))
    log.warning("the disk is nearly full")


def test_an_error_that_was_not_announced_fails_the_test(imaginary_errors: ExpectedErrors) -> None:
    imaginary_errors("the disk")
    for message in ("the disk is full", "the network is down"):
        imaginary_errors.handle(record(logging.ERROR, message))
    expected = "logged an error that was not announced: spade_coreason.somewhere: the network is down"
    with pytest.raises(pytest.fail.Exception, match=f"^{expected}$"):
        imaginary_errors.check()


def test_an_announced_error_that_does_not_come_fails_the_test(imaginary_errors: ExpectedErrors) -> None:
    imaginary_errors("the disk", "the network")
    imaginary_errors.handle(record(logging.CRITICAL, "the disk is full", OSError("no space")))
    with pytest.raises(pytest.fail.Exception, match=r"^did not log the error that was announced: the network$"):
        imaginary_errors.check()


def test_the_errors_of_a_program_are_lines_of_its_log() -> None:
    first, second = (
        "error: agent@localhost: incident 1",
        "2026-01-02 03:04:05,678 ERROR spade_coreason.runtime.turns.turn: incident 2",
    )
    output = f"warning: slow\n{first}\nan error: of nobody\n{second}\nTraceback (most recent call last):\n"
    assert errors_in(output) == [first, second]
