"""A database that refuses rows: the first writes of a statement fail, as if what they store were invalid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spade_coreason.storage.backends.statements import UPDATE_TASK


class FailingRows:
    """A `WriterHook` that lets the first `times` commits with rows of a statement fail."""

    def __init__(self, statement: int, times: int) -> None:
        self.failures = 0
        """The commits that have failed so far."""
        self._statement = statement
        self._times = times

    def __call__(self, batch: list[Any], write: Callable[[list[Any]], None]) -> None:
        for pending in batch:
            if self.failures < self._times and any(number == self._statement for number, _ in getattr(pending, "rows", ())):
                self.failures += 1
                pending.rows = [(UPDATE_TASK, ("no",) * 3)]
        write(batch)
