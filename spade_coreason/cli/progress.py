"""A bar on standard error that shows how far a long work is, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .console import one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """So many pieces of work, one after the other; `part` says how far the present one is."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._done = 0

    def begin(self, name: str) -> None:
        """The next piece."""
        self._progress.update(self._task, description=one_line(name, 40))

    def part(self, done: int, total: int) -> None:
        """How much of it is done."""
        self._progress.update(self._task, completed=self._done + done / max(total, 1))

    def end(self) -> None:
        """It is done."""
        self._done += 1
        self._progress.update(self._task, completed=self._done)


@contextmanager
def bar(total: int) -> Iterator[Bar]:
    """A bar for so many pieces; it is gone at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        yield Bar(progress, progress.add_task("", total=total))
