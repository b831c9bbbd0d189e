"""What the program says on standard error beside its results: one line a record, and nothing that people wrote."""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TextIO

from ..exceptions import PeerError
from .passing import passing

_OURS = "spade_coreason"
_PLACES = (str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
_NOT_THEIRS = (*(f"{place}{os.sep}" for place in _PLACES), "<")


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the moment: a prompt puts itself before it."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        with passing.aside():
            super().emit(record)


class OneLine(logging.Formatter):
    """A record in one line. Of an exception its kind and its place: its text may quote what a person wrote."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()}: {' '.join(record.getMessage().split())}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            whom = f" of {error.jid}" if isinstance(error, PeerError) else ""
            line += f": {type(error).__name__}{whom}{_place(error)}; -vv shows more"
        return line


def _place(error: BaseException) -> str:
    """Where somebody's own code was last on the way to an error; else where it is from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    for frame in (own or frames)[-1:]:
        return f" ({Path(frame.filename).name}:{frame.lineno})"
    return ""


def configure_logging(verbosity: int) -> None:
    """0 shows warnings, 1 also what happens, 2 and more also why, with times and tracebacks.

    Libraries never say more than INFO: slixmpp's DEBUG shows whole stanzas, passwords among them.
    """
    handler = _StandardError()
    if verbosity >= 2:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(OneLine())
    others = [logging.CRITICAL, logging.WARNING, logging.INFO]
    logging.basicConfig(level=others[min(verbosity, 2)], handlers=[handler], force=True)
    ours = [logging.WARNING, logging.INFO, logging.DEBUG]
    logging.getLogger(_OURS).setLevel(ours[min(verbosity, 2)])
