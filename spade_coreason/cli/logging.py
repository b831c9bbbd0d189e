"""Log records on standard error, one line each, without any text that people wrote."""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TextIO

from ..exceptions import PeerFailedError, describe_for_log
from .console import status_line

_PACKAGE = "spade_coreason"
_LIBRARY_DIRECTORIES = (
    str(Path(__file__).parents[1]),
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
)
_LIBRARY_PREFIXES = (*(f"{place}{os.sep}" for place in _LIBRARY_DIRECTORIES), "<")


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

    The text of such an exception may quote a person, so it is shown only if `quotes_errors` is set.
    """

    def __init__(self, quotes_errors: bool = False) -> None:
        super().__init__()
        self.quotes_errors = quotes_errors

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()}: {_join_lines(record.getMessage())}"
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return line
        kind, description = type(error).__name__, describe_for_log(error)
        if self.quotes_errors and description == kind and str(error):
            description = f"{kind}: {error}"
        elif isinstance(error, PeerFailedError) and not self.quotes_errors:
            description = f"{kind} of {error.jid}"
        return f"{line}: {_join_lines(description)}{_error_location(error)}; -vv shows more"


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _error_location(error: BaseException) -> str:
    """Return the last place in the user's own code on the way to an error; else the place that raised it."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames += getattr(error.__cause__, "frames", ())  # those in the process of an isolated agent
    own = [frame for frame in frames if not frame[0].startswith(_LIBRARY_PREFIXES)]
    for filename, line in (own or frames)[-1:]:
        return f" ({Path(filename).name}:{line})"
    return ""


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


def quote_errors() -> None:
    """Show the texts of exceptions, for a developer who runs and talks with their own agent."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, OneLineFormatter):
            handler.formatter.quotes_errors = True
