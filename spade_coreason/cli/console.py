"""What commands print: plain text, tables, and colours where a terminal shows them and NO_COLOR does not forbid it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..exceptions import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

STANDARD_INPUT = "standard input"

_STYLE_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}

# Of what comes from others, a terminal gets no control characters (C0 and C1): they could do anything to it.
_CONTROL_CHARACTERS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}

# What is good, worth a note, or bad, and the same where standard output has no such signs.
_MARKS = {"good": ("✓", "+", "green"), "note": ("•", "-", "yellow"), "bad": ("✗", "x", "red")}


def verdict_sign(verdict: str) -> str:
    """The sign of a verdict (good, note, bad) for standard output."""
    sign, plain, colour = _MARKS[verdict]
    return paint(sign if _is_unicode() else plain, colour)


def has_colours(stream: IO[str]) -> bool:
    """Whether a stream is a terminal with colours (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, stream: IO[str] | None = None) -> str:
    """The text in a style, for a stream (standard output) that shows it."""
    return f"\x1b[{_STYLE_CODES[style]}m{text}\x1b[0m" if has_colours(stream or sys.stdout) else text


def terminal_width() -> int | None:
    """The columns of the terminal that standard output is now; None if it is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def strip_control_characters(text: str) -> str:
    """The text without control characters, line breaks and tabs excepted."""
    return text.translate(_CONTROL_CHARACTERS)


def one_line(text: str, width: int = 60) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(strip_control_characters(text).split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def format_path(path: Path) -> str:
    """A path as people would write it: from where they are, unless that goes upwards."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def warn(text: str) -> None:
    """One line on standard error."""
    print(paint("warning:", "yellow", sys.stderr), text, file=sys.stderr, flush=True)


CLEAR_LINE = "\r\x1b[K"

_last_written = ""


def write(text: str) -> None:
    """Writes to standard output at once."""
    global _last_written
    sys.stdout.write(text)
    sys.stdout.flush()
    _last_written = text or _last_written


def end_line() -> None:
    """On a terminal ends the line that `write` has begun, before others write."""
    if sys.stdout.isatty() and _last_written and not _last_written.endswith(("\n", CLEAR_LINE)):
        write("\n")


def encode_json(value: Any, indent: int | None = None) -> str:
    """JSON, with escapes for what standard output cannot show."""
    return json.dumps(value, indent=indent, ensure_ascii=not _is_unicode(), default=str)


def _is_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


def replace_unencodable(stream: IO[str]) -> None:
    """What the stream cannot encode is written as "?", if nobody chose otherwise (PYTHONIOENCODING)."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="replace")


def check_encoding(text: str, place: str) -> str:
    """An argument; ConfigError if what was typed is not in the encoding of the terminal."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # Python keeps such bytes as surrogates
        raise _encoding_error(place, sys.getfilesystemencoding()) from error
    return text


def decode_input(raw: bytes, place: str = STANDARD_INPUT) -> str:
    """What was read from standard input, without white space around it; ConfigError if it is not in its encoding."""
    try:
        return raw.decode(sys.stdin.encoding).strip()
    except UnicodeDecodeError as error:
        raise _encoding_error(place, sys.stdin.encoding) from error


def _encoding_error(place: str, encoding: str) -> ConfigError:
    return ConfigError(place, f"is not {encoding.upper()}; convert it before (iconv -t {encoding.upper()})")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table. Every row is one whole line, also where a terminal is narrower: what is in it can be copied."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        shown.add_column(column.upper(), no_wrap=True)
    for row in rows:
        shown.add_row(*(Text(one_line(str(cell), 10_000)) for cell in row))
    # Without a height rich takes a dumb terminal's width to be 80.
    console = Console(file=sys.stdout, width=100_000, height=25, highlight=False)
    with console.capture() as lines:
        console.print(shown)
    print("\n".join(line.rstrip() for line in lines.get().splitlines()))


def format_time(moment: Any) -> str:
    """A time of day for people, in their own time zone."""
    return str(moment.astimezone().strftime("%Y-%m-%d %H:%M"))


def format_milliseconds(milliseconds: float | None) -> str:
    """A duration for people, to two digits; a dash for none."""
    if milliseconds is None:
        return "-"
    rounded = float(f"{milliseconds:.2g}")
    return f"{rounded:g} ms" if rounded < 1000 else f"{rounded / 1000:,g} s"


def format_timedelta(time: timedelta) -> str:
    """How long something lasts, for people, in whole units: two of them from an hour on."""
    minutes, seconds = divmod(max(0, int(time.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds} s"


class StatusLine:
    """At most one line, where the cursor is. Whoever writes anything else clears it, or writes `suspend`."""

    def __init__(self) -> None:
        self._text = ""

    def show(self, text: str) -> None:
        """Shows the line, instead of the one before."""
        if text != self._text:
            self.clear()
            self._text = text
            write(text)

    def clear(self) -> None:
        """Takes the line away, if there is one."""
        if self._text:
            self._text = ""
            with contextlib.suppress(BrokenPipeError):
                write(CLEAR_LINE)

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Whole lines may be written in the block; they stand above."""
        text = self._text
        self.clear()
        with contextlib.suppress(BrokenPipeError):
            end_line()
        try:
            yield
        finally:
            if text:
                self.show(text)


status_line = StatusLine()

"""That of standard output."""


class ProgressBar:
    """So many pieces of work, one after the other; `update_item` says how far the present one is."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._done_count = 0

    def start_item(self, name: str) -> None:
        """The next piece."""
        self._progress.update(self._task, description=one_line(name, 40))

    def update_item(self, done: int, total: int) -> None:
        """How much of it is done."""
        self._progress.update(self._task, completed=self._done_count + done / max(total, 1))

    def finish_item(self) -> None:
        """It is done."""
        self._done_count += 1
        self._progress.update(self._task, completed=self._done_count)


@contextmanager
def progress_bar(total: int) -> Iterator[ProgressBar]:
    """A bar for so many pieces; it is gone at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        yield ProgressBar(progress, progress.add_task("", total=total))
