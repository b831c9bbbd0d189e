"""Standard input and output of commands: text, tables, progress, and colours if the terminal and NO_COLOR allow them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import termios
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ...domain.texts.terminal_text import DirectionRestorer, clean_running_text, escape_json, escape_label, remove_controls
from ...exceptions import ConfigError
from ...operations.view import format_time, read_moment

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

STANDARD_INPUT = "standard input"

_STYLE_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}

# For each verdict: its sign, the sign if standard output cannot encode that one, and its colour.
_MARKS = {"good": ("✓", "+", "green"), "note": ("•", "-", "yellow"), "bad": ("✗", "x", "red")}


def verdict_sign(verdict: str) -> str:
    """Return the sign of a verdict (good, note, bad) for standard output."""
    sign, plain, colour = _MARKS[verdict]
    return paint(sign if is_unicode() else plain, colour)


class _Painted(str):
    """A label with its style and without hidden characters."""

    __slots__ = ()


def has_colours(stream: IO[str]) -> bool:
    """Return True if the stream is a terminal with colours (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(label: str, style: str, stream: IO[str] | None = None) -> str:
    """Return a label in a style, if the stream (by default standard output) shows colours. Hidden characters are escapes."""
    return _Painted(add_style(escape_label(label), style, stream))


def add_style(text: str, style: str, stream: IO[str] | None = None) -> str:
    """Return a text that has no hidden characters in a style, if the stream (by default standard output) shows colours."""
    return f"\x1b[{_STYLE_CODES[style]}m{text}\x1b[0m" if has_colours(stream or sys.stdout) else text


def print_line(*labels: str, stream: IO[str] | None = None) -> None:
    """Print labels with spaces between them: one line on the stream (by default standard output), at once.

    Hidden characters are shown as escapes, except in the result of `paint`.
    """
    line = " ".join(label if isinstance(label, _Painted) else escape_label(label) for label in labels)
    print_cleaned(line, stream)


def print_cleaned(text: str, stream: IO[str] | None = None) -> None:
    """Print a text that has no hidden characters any more, such as the result of `add_style`, at once."""
    print(text, file=stream or sys.stdout, flush=True)


def print_text(text: str, head: str = "", indent: str = "") -> None:
    """Print running text, after a head and with an indent for its further lines."""
    print_cleaned(head + clean_running_text(text).replace("\n", f"\n{indent}"))


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON."""
    print_cleaned(encode_json(value, indent))


def terminal_width() -> int | None:
    """Return the current number of columns of standard output; None if it is not a terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def terminal_rows() -> int:
    """Return the current number of lines of the terminal; 24 if it is unknown."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or 24
    except (OSError, ValueError):
        return 24


def is_foreground() -> bool:
    """Return True if standard output is the terminal of this process and no other program has it, as after `command &`."""
    try:
        return os.tcgetpgrp(sys.stdout.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


@contextmanager
def disable_echo() -> Iterator[None]:
    """Hide typing on the terminal of standard output; the next program or prompt receives what was typed ahead."""
    before = termios.tcgetattr(sys.stdout)
    changed = termios.tcgetattr(sys.stdout)
    changed[3] &= ~(termios.ECHO | termios.ICANON)  # in line mode the terminal would discard Ctrl-D
    termios.tcsetattr(sys.stdout, termios.TCSANOW, changed)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(sys.stdout, termios.TCSANOW, before)


def one_line(text: str, width: int = 60) -> str:
    """Shorten running text to one line of at most `width` characters."""
    line = " ".join(remove_controls(text).split())
    return clean_running_text(line if len(line) <= width else f"{line[: width - 1]}…")


def format_path(path: Path) -> str:
    """Format a path for people: relative if it is below the current directory, else absolute."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


_log_problem: Callable[[int, str], None] | None = None


def log_problems(log_problem: Callable[[int, str], None] | None) -> None:
    """Pass warnings and errors of commands to a function, with their level, in place of printing them; None prints them."""
    global _log_problem
    _log_problem = log_problem


def warn(text: str) -> None:
    """Print a warning, one line on standard error."""
    if _log_problem is not None:
        _log_problem(logging.WARNING, text)
    else:
        print_line(paint("warning:", "yellow", sys.stderr), text, stream=sys.stderr)


def report_problem(text: str) -> None:
    """Print an error, one line on standard error."""
    if _log_problem is not None:
        _log_problem(logging.ERROR, text)
    else:
        print_line(paint("error:", "red", sys.stderr), text, stream=sys.stderr)


CLEAR_LINE = "\r\x1b[K"

_last_written = ""
_restorer = DirectionRestorer()


def write(text: str) -> None:
    """Write to standard output and flush it. Each line ends the changes of direction that it began."""
    global _last_written
    text = _restorer.feed(text)
    sys.stdout.write(text)
    sys.stdout.flush()
    _last_written = text or _last_written


def end_line() -> None:
    """End the line that `write` began on a terminal, before other code writes."""
    if sys.stdout.isatty() and _last_written and not _last_written.endswith(("\n", CLEAR_LINE)):
        write("\n")


def encode_json(value: Any, indent: int | None = None) -> str:
    """Encode a value as JSON, with escapes for hidden characters and for those that standard output cannot show."""
    return escape_json(json.dumps(value, indent=indent, ensure_ascii=not is_unicode(), default=str))


def is_unicode() -> bool:
    """Return True if standard output can show every character."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


def replace_unencodable(stream: IO[str]) -> None:
    """Write characters that the stream cannot encode as "?", unless PYTHONIOENCODING chose another way."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="replace")


def check_encoding(text: str, place: str) -> str:
    """Return an argument; raise ConfigError if it is not in the encoding of the terminal."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # Python represents such bytes as surrogates
        raise _encoding_error(place, sys.getfilesystemencoding()) from error
    return text


def decode_input(raw: bytes, place: str = STANDARD_INPUT) -> str:
    """Decode and strip the bytes read from standard input; raise ConfigError if they are not in its encoding."""
    try:
        return raw.decode(sys.stdin.encoding).strip()
    except UnicodeDecodeError as error:
        raise _encoding_error(place, sys.stdin.encoding) from error


def _encoding_error(place: str, encoding: str) -> ConfigError:
    return ConfigError(place, f"is not {encoding.upper()}; convert it first (iconv -t {encoding.upper()})")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, texts: Collection[str] = ()) -> None:
    """Print a table. Every row is one whole line, even on a narrower terminal, so that its cells can be copied.

    The columns in `texts` have running text, the others have labels.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.upper(), no_wrap=True)
    for row in rows:
        table.add_row(
            *(
                Text(one_line(str(cell), 10_000) if column in texts else escape_label(str(cell)))
                for column, cell in zip(columns, row, strict=True)
            )
        )
    # Without a height, rich assumes that a dumb terminal is 80 columns wide.
    console = Console(file=sys.stdout, width=100_000, height=25, highlight=False)
    with console.capture() as lines:
        console.print(table)
    print_cleaned("\n".join(line.rstrip() for line in lines.get().splitlines()))


def format_timestamp(text: str) -> str:
    """Format a date and time as in RFC 3339 for people. Another text stays as it is."""
    moment = read_moment(text)
    return moment if isinstance(moment, str) else format_time(moment)


def format_milliseconds(milliseconds: float | None) -> str:
    """Format a duration for people, to two digits; None is a dash."""
    if milliseconds is None:
        return "-"
    rounded = float(f"{milliseconds:.2g}")
    return f"{rounded:g} ms" if rounded < 1000 else f"{rounded / 1000:,g} s"


def format_timedelta(time: timedelta) -> str:
    """Format a duration for people in whole units, two of them from one hour on."""
    minutes, seconds = divmod(max(0, int(time.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds} s"


class StatusLine:
    """One temporary line at the cursor. Other code that writes calls `clear` first, or writes inside `suspend`."""

    def __init__(self) -> None:
        self._text = ""
        self.suspend_count = 0
        """The number of times that other code has written whole lines."""

    def show(self, text: str) -> None:
        """Show this line in place of the previous one."""
        if text != self._text:
            self.clear()
            self._text = text
            write(text)

    def clear(self) -> None:
        """Remove the line, if one is shown."""
        if self._text:
            self._text = ""
            with contextlib.suppress(BrokenPipeError):
                write(CLEAR_LINE)

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Remove the line during the block, so that whole lines can be written; then show it again below them."""
        text = self._text
        self.suspend_count += 1
        self.clear()
        with contextlib.suppress(BrokenPipeError):
            end_line()
        try:
            yield
        finally:
            if text:
                self.show(text)


status_line = StatusLine()
"""The status line of standard output."""


class ProgressBar:
    """The progress of several items, one after the other; `update_item` reports the progress of the current one."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._done_count = 0

    def start_item(self, name: str) -> None:
        """Start the next item."""
        self._progress.update(self._task, description=escape_label(one_line(name, 40)))

    def update_item(self, done: int, total: int) -> None:
        """Report that `done` of `total` units of the current item are finished."""
        self._progress.update(self._task, completed=self._done_count + done / max(total, 1))

    def finish_item(self) -> None:
        """Finish the current item."""
        self._done_count += 1
        self._progress.update(self._task, completed=self._done_count)


@contextmanager
def progress_bar(total: int) -> Iterator[ProgressBar]:
    """Show a progress bar for `total` items on standard error; it disappears at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        yield ProgressBar(progress, progress.add_task("", total=total))
