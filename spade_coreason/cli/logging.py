"""Log records on standard error: one line each without any text that people wrote, or with tracebacks for a developer."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from ..domain.error_chain import describe_error_chain, find_place
from ..exceptions import PeerFailedError, describe_for_log
from .console import status_line
from .tracebacks import format_place, format_traceback

_PACKAGE = "spade_coreason"


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Write to the current `sys.stderr`, because a prompt replaces it."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        with status_line.suspend():
            super().emit(record)


class OneLineFormatter(logging.Formatter):
    """Format a record in one line. For an exception of an agent's own code, or of another agent, show its type and place.

    The text of such an exception may quote a person, so it is not shown.
    """

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return _first_line(record)
        description = describe_for_log(error)
        if isinstance(error, PeerFailedError):
            description = f"{type(error).__name__} of {error.jid}"
        place = format_place(find_place(describe_error_chain(error)))
        return f"{_first_line(record)}: {_join_lines(description)}{f' ({place})' if place else ''}; -vv shows more"


class TracebackFormatter(logging.Formatter):
    """Format a record in one line, and below it the traceback of its exception through the user's own code."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return _first_line(record)
        traceback = format_traceback(describe_error_chain(error), shows_text=True, shows_source=True)
        return f"{_first_line(record)}\n{traceback}"


def _first_line(record: logging.LogRecord) -> str:
    return f"{record.levelname.lower()}: {_join_lines(record.getMessage())}"


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def configure_logging(verbosity: int) -> None:
    """Configure logging: 0 shows warnings, 1 also INFO, 2 and more also DEBUG, with times and tracebacks.

    Libraries log at most INFO: slixmpp's DEBUG shows whole stanzas, passwords among them.
    """
    handler = _StandardErrorHandler()
    if verbosity >= 2:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(OneLineFormatter())
    library_levels = [logging.CRITICAL, logging.WARNING, logging.INFO]
    logging.basicConfig(level=library_levels[min(verbosity, 2)], handlers=[handler], force=True)
    # Alembic's INFO describes how Alembic works. A migration logs a line of its own.
    logging.getLogger("alembic").setLevel(max(logging.WARNING, logging.getLogger().level))
    package_levels = [logging.WARNING, logging.INFO, logging.DEBUG]
    logging.getLogger(_PACKAGE).setLevel(package_levels[min(verbosity, 2)])


def show_tracebacks() -> None:
    """Show the tracebacks and texts of exceptions, for a developer who runs and talks with their own agent."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, OneLineFormatter):
            handler.setFormatter(TracebackFormatter())
