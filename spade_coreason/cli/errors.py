"""Errors at the end of a command: one line on standard error and an exit code.

0 success   1 an agent or the store reports an error   2 usage or configuration   3 no answer in time
4 cannot connect   5 login refused   6 the agent waits for a person

75 a worker has lost its lease   130 interrupted
"""

from __future__ import annotations

import sys
import traceback

import click

from ..domain.texts.terminal_text import escape_label, escape_lines
from ..exceptions import ConfigError, CoReasonError, PeerParkedError, PeerTimeoutError, PeerUnavailableError
from .terminal.console import print_cleaned, report_problem

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141

_PATH_ERRORS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
_EXIT_CODES: dict[type[Exception], int] = {PeerTimeoutError: 3, PeerUnavailableError: 4, PeerParkedError: 6}


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends with this error."""
    for kind, code in _EXIT_CODES.items():
        if isinstance(error, kind):
            return code
    if isinstance(error, CoReasonError | click.ClickException):
        return error.exit_code
    return EXIT_USAGE if isinstance(error, _PATH_ERRORS) else 1


def format_error(error: BaseException) -> str:
    """Describe an error in one line."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        problem = error.format_message().strip()
        text = f"{problem}{'' if problem.endswith(('.', '?', '!')) else '.'} See {error.ctx.command_path} --help"
    elif isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif isinstance(error, CoReasonError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error} (this is a bug; -vv shows the traceback)"
    return escape_label(" ".join(text.split()))


def print_error(error: BaseException) -> None:
    """Print an error in one line, then the other problems of a ConfigError, a line each."""
    for problem in (error, *(error.others if isinstance(error, ConfigError) else ())):
        report_problem(format_error(problem))


def report_error(error: BaseException) -> int:
    """Print the error that ends a command, with -vv after its traceback, and return the exit code."""
    import logging

    if logging.getLogger(__package__).isEnabledFor(logging.DEBUG):
        print_cleaned(escape_lines("".join(traceback.format_exception(error)).rstrip()), sys.stderr)
    print_error(error)
    return exit_code(error)
