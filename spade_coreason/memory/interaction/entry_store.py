"""The protocol between an interaction memory and what stores its entries: a file, or a table of a database."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Protocol, TypeVar

from .format import Entry, LinesByConversation

T = TypeVar("T")


class Addition(Future[None]):
    """An entry that is to be written: a future that is done when the entry is stored.

    `defer_sync` registers a later call of `EntryStore.sync` and returns True. It returns False if there will be no such call.
    """

    def __init__(self, conversation_id: str, line: bytes, journal_line: bytes, defer_sync: Callable[[], bool]) -> None:
        super().__init__()
        self.defer_sync = defer_sync
        self.conversation_id = conversation_id
        self.line = line
        self.journal_line = journal_line


class EntryStore(Protocol):
    """The entries of one agent by conversation. All methods but `run` may block; threads share the object.

    They raise StoreError if the store fails.
    """

    @property
    def deferred_syncs(self) -> int:
        """The number of syncs that were deferred."""

    @property
    def completed_syncs(self) -> int:
        """The number of deferred syncs that are done."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run a method of this store without blocking the event loop."""

    def read_lines(self, conversation_id: str) -> bytes:
        """Return the lines of a conversation, for `format.decode_entries`."""

    def list_conversations(self) -> list[str]:
        """Return the ids of the conversations that have entries, in the order in which they began."""

    def read_all(self) -> LinesByConversation:
        """Return the lines of all conversations that have entries, in the order in which they began."""

    def enqueue(self, addition: Addition) -> None:
        """Put an addition in the queue, for `write_queued`. Additions are stored in the order of these calls."""

    def write_queued(self, own: Addition | None = None) -> None:
        """Write all queued additions of all threads at once.

        `own` is done on return; so are the others, unless this store cannot wait for them. An addition that failed holds its
        exception: StoreError if nothing can be written, MemoryFullError if its conversation is full.
        """

    def remove(self, conversation_ids: Collection[str]) -> int:
        """Remove conversations, and return how many existed."""

    def remove_entries(self, conversation_id: str, is_removed: Callable[[Entry], bool]) -> int:
        """Remove the entries that a function chooses, all at once, and return how many there were."""

    def fold(self) -> None:
        """Complete what is on its way, and drop what was cached."""

    def merge(self, lines_by_conversation: LinesByConversation) -> int:
        """Add imported entries that are not stored yet, each to its conversation. Return how many were added."""

    def sync(self) -> None:
        """Complete the deferred syncs. Raise StoreError until they can be completed."""


def find_new_lines(lines: bytes | bytearray, stored: bytes | bytearray) -> list[bytes]:
    """Return the lines that are not among the stored ones."""
    known = set(bytes(stored).splitlines())
    return [line for line in bytes(lines).splitlines(keepends=True) if line[:-1] not in known]


def find_new(lines_by_conversation: LinesByConversation, read_lines: Callable[[str], bytes]) -> LinesByConversation:
    """Return the entries that are not stored yet. `read_lines` returns the stored lines of a conversation."""
    found = {name: find_new_lines(lines, read_lines(name)) for name, lines in lines_by_conversation.items()}
    return {name: bytearray(b"".join(new)) for name, new in found.items() if new}
