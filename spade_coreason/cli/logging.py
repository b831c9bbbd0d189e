"""What the program says on standard error beside its results: one line a record, and nothing that people wrote."""

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
    """Writes to what standard error is at the moment: a prompt puts itself before it."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        with status_line.suspend():
            super().emit(record)


class OneLineFormatter(logging.Formatter):
    """A record in one line. Of somebody's own exception, or another agent's, its kind and its place.

    Its text may quote what a person wrote, and is shown where it `quotes_errors`.
    """

    def __init__(self, quotes_errors: bool = False) -> None:
        super().__init__()
        self.quotes_errors = quotes_errors

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()}: {_join_lines(record.getMessage())}"
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return line
        kind, said = type(error).__name__, describe_for_log(error)
        if self.quotes_errors and said == kind and str(error):
            said = f"{kind}: {error}"
        elif isinstance(error, PeerFailedError) and not self.quotes_errors:
            said = f"{kind} of {error.jid}"
        return f"{line}: {_join_lines(said)}{_error_location(error)}; -vv shows more"


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _error_location(error: BaseException) -> str:
    """Where somebody's own code was last on the way to an error; else where it is from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARY_PREFIXES)]
    for frame in (own or frames)[-1:]:
        return f" ({Path(frame.filename).name}:{frame.lineno})"
    return ""


def configure_logging(verbosity: int) -> None:
    """0 shows warnings, 1 also what happens, 2 and more also why, with times and tracebacks.

    Libraries never say more than INFO: slixmpp's DEBUG shows whole stanzas, passwords among them.
    """
    handler = _StandardErrorHandler()
    if verbosity >= 2:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(OneLineFormatter())
    others = [logging.CRITICAL, logging.WARNING, logging.INFO]
    logging.basicConfig(level=others[min(verbosity, 2)], handlers=[handler], force=True)
    ours = [logging.WARNING, logging.INFO, logging.DEBUG]
    logging.getLogger(_PACKAGE).setLevel(ours[min(verbosity, 2)])


def quote_errors() -> None:
    """Shows the texts of exceptions: for whoever writes the agent that raises them, and talks with it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, OneLineFormatter):
            handler.formatter.quotes_errors = True
