"""Log records on standard error: one line each without any text that people wrote, or with tracebacks for a developer.

A line is text, or a JSON object for programs.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeAlias, get_args

from ..domain.environment.library_logs import is_worth_showing
from ..domain.observability.tracing import TURN_TRACE
from ..domain.observability.turn_log import TURN_FIELDS, name_turns
from ..domain.texts.error_chain import describe_error_chain, find_frame, format_frame
from ..domain.texts.terminal_text import escape_label, escape_lines
from ..exceptions import PeerFailedError, describe_for_log
from .terminal.console import log_problems, status_line
from .terminal.tracebacks import format_traceback

_PACKAGE = "spade_coreason"
LogFormat: TypeAlias = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)


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
        frame = format_frame(find_frame(describe_error_chain(error)))
        more = f"spade-coreason incident {incident}" if (incident := getattr(record, "incident", None)) else "-vv"
        return f"{_first_line(record)}: {_describe(error)}{f' ({frame})' if frame else ''}; {more} shows more"


class JsonFormatter(logging.Formatter):
    """Format a record as a JSON object in one line: docs/how-to/operating.md has its keys.

    Like `OneLineFormatter`, it shows no text of an exception that may quote a person, unless it `shows_tracebacks`.
    """

    def __init__(self, *, shows_tracebacks: bool = False) -> None:
        super().__init__()
        self._shows_tracebacks = shows_tracebacks

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "time": f"{moment.removesuffix('+00:00')}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _join_lines(record.getMessage()),
        }
        if (agent := getattr(record, "agent", None)) is not None:
            fields["agent"] = agent
        elif (find_fields := TURN_FIELDS.get()) is not None:
            fields |= find_fields()
        if (trace := TURN_TRACE.get()) is not None and trace.trace_id:
            fields["trace"] = trace.trace_id
        if (incident := getattr(record, "incident", None)) is not None:
            fields["incident"] = incident
        if record.exc_info and (error := record.exc_info[1]) is not None:
            fields |= self._describe_error(error)
        return json.dumps(fields, separators=(",", ":"))

    def _describe_error(self, error: BaseException) -> dict[str, str]:
        chain = describe_error_chain(error)
        fields = {"error": chain[-1].short_type}
        if (text := _describe(error)) != fields["error"]:
            fields["problem"] = text
        if frame := format_frame(find_frame(chain)):
            fields["frame"] = frame
        if self._shows_tracebacks:
            fields["traceback"] = format_traceback(chain, shows_text=True, shows_source=True)
        return fields


class TracebackFormatter(logging.Formatter):
    """Format a record in one line, and below it the traceback of its exception through the user's own code."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return _first_line(record)
        traceback = format_traceback(describe_error_chain(error), shows_text=True, shows_source=True)
        return f"{_first_line(record)}\n{traceback}"


class _DebugFormatter(logging.Formatter):
    """Format a record with its time and logger, and below it the whole traceback of its exception."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escape_label(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return escape_lines(super().format(record))


class _TimedFormatter(logging.Formatter):
    """Put the time before the lines of another formatter."""

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        return f"{moment} {self._lines.format(record)}"


def _describe(error: BaseException) -> str:
    """Describe an error without texts that may quote a person. A group of errors names the first one in it."""
    if isinstance(error, BaseExceptionGroup):
        return f"{type(error).__name__} of {_describe(error.exceptions[0])}"
    if isinstance(error, PeerFailedError):
        return f"{type(error).__name__} of {error.jid}"
    return _join_lines(describe_for_log(error))


def _first_line(record: logging.LogRecord) -> str:
    return f"{record.levelname.lower()}: {_join_lines(record.getMessage())}"


def _join_lines(text: str) -> str:
    return escape_label(" ".join(text.split()))


def configure_logging(verbosity: int, log_format: LogFormat = "text") -> None:
    """Configure logging: 0 shows warnings, 1 also INFO, 2 and more also DEBUG, with times and tracebacks.

    Records of libraries are shown one level later, and theirs of DEBUG never: slixmpp's DEBUG has whole stanzas, passwords
    among them.
    """
    handler = _StandardErrorHandler()
    log_problems(logging.getLogger(__package__).log if log_format == "json" else None)
    if log_format == "json":
        handler.setFormatter(JsonFormatter(shows_tracebacks=verbosity >= 2))
        name_turns()
    elif verbosity >= 2:
        handler.setFormatter(_DebugFormatter())
    else:
        handler.setFormatter(OneLineFormatter())
    handler.addFilter(is_worth_showing)
    logging.basicConfig(level=logging.INFO if verbosity else logging.WARNING, handlers=[handler], force=True)
    # Alembic's INFO describes how Alembic works. A migration logs a line of its own.
    logging.getLogger("alembic").setLevel(max(logging.WARNING, logging.getLogger().level))
    package_levels = [logging.WARNING, logging.INFO, logging.DEBUG]
    logging.getLogger(_PACKAGE).setLevel(package_levels[min(verbosity, 2)])


def add_times() -> None:
    """Show the time of each log line, unless a person watches or systemd's journal adds it."""
    if sys.stderr.isatty() or _is_journal():
        return
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, OneLineFormatter):
            handler.setFormatter(_TimedFormatter(handler.formatter))


def _is_journal() -> bool:
    """Return True if standard error goes to systemd's journal: JOURNAL_STREAM names its device and inode (systemd.exec(5))."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def show_tracebacks() -> None:
    """Show the tracebacks and texts of exceptions, for a developer who runs and talks with their own agent."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, OneLineFormatter):
            handler.setFormatter(TracebackFormatter())
