"""An addition to an interaction memory, on its way to the file or the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future


class Addition(Future[None]):
    """An entry that is to be written: a future that is done when the entry is stored.

    `defer_sync` registers a later call of the store's `sync` and returns True. It returns False if there will be no such call.
    """

    def __init__(self, conversation_id: str, line: bytes, defer_sync: Callable[[], bool]) -> None:
        super().__init__()
        self.defer_sync = defer_sync
        self.conversation_id = conversation_id
        self.line = line


def complete(additions: Iterable[Addition], error: BaseException | None = None) -> None:
    """Complete the additions that are not done: they are stored, or all have failed with this error."""
    for addition in additions:
        if addition.done():
            continue
        if error is None:
            addition.set_result(None)
        else:
            addition.set_exception(error)
