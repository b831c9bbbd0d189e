"""The interaction memory of one agent in a table of the platform's database."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar

from ...domain.policy import MemoryLimits
from ...exceptions import MemoryFullError
from ...storage import (
    Commit,
    Database,
    MemoryRepository,
    MemoryRow,
    can_wait,
    run_waiting,
    wait_for,
)
from .format import Entry, LinesByConversation, decode_entries, find_new
from .turn_sync import CURRENT_DEFERRED_SYNCS, Addition, complete

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_MAX_SIZES = 10_000
"""The number of conversations whose sizes are known at most: about 2 MB."""


@dataclass(slots=True, eq=False)
class _PendingChange:
    """Entries that are added and removed in one transaction, until it is durable."""

    added: Sequence[MemoryRow]
    removed: frozenset[int]
    is_awaited: bool
    """True if a caller waits for it, and gets its error. Otherwise it is deferred: a sync writes it again if it has failed."""
    is_synced: bool
    """True if it must be on the disk, whatever the durability of the database is."""
    commit: Commit[None] = field(init=False)


def _perform(method: Callable[Concatenate[MemoryRows, P], T]) -> Callable[Concatenate[MemoryRows, P], T]:
    """Run a method on the event loop of the database, from any thread."""

    @wraps(method)
    def perform(self: MemoryRows, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = partial(method, self, *args, **kwargs)
        if threading.get_ident() == self._loop_thread:
            return work()
        return asyncio.run_coroutine_threadsafe(run_waiting(work), self._loop).result()

    return perform


class MemoryRows:
    """The entries of one agent as rows of a database. Only one process changes those of an agent at a time.

    All changes are transactions of the database's one writer. What a method does depends on where it is called:

    - In `run`, which the awaitable methods of the memory use, it waits for the database without blocking the event loop. A
      change is durable when it returns.
    - In another thread it does the same on the event loop of the database, and the thread waits. The loop must be free: do not
      block it until that thread has ended.
    - On the event loop, in plain code, it cannot wait for the writer, which needs the loop. Its reads use a thread and a
      connection of their own, and block the loop. Its changes are deferred: they are visible here at once, and durable when
      `sync` has returned. A turn calls that before its answer is stored (`DeferredSyncs`), so that no fact of an answered turn
      is lost. If the database refuses a deferred change, `sync` writes it again and raises StoreError until it is stored.

    Nothing is cached but the changes that are not durable yet, and the sizes of the conversations that were written. `fold`
    waits for the former and drops both. The next owner of the agent, in any process, then reads the rows.
    """

    def __init__(self, database: Database, agent_id: str, limits: MemoryLimits) -> None:
        self._repository = MemoryRepository(database, agent_id)
        self._agent_id = agent_id
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._lock = asyncio.Lock()
        self._queue: deque[Addition] = deque()
        self._changes: list[_PendingChange] = []
        """The changes that are not durable, oldest first."""
        self._sizes: dict[str, int] = {}
        """The sizes of conversations in bytes, with the changes that are not durable."""
        self._version = 0
        """The number of changes of the sizes."""
        self.deferred_syncs = 0
        """The number of changes that were deferred."""

    @property
    def completed_syncs(self) -> int:
        """The number of deferred changes that are durable."""
        return self.deferred_syncs - sum(not change.is_awaited for change in list(self._changes))

    async def run(self, work: Callable[[], T]) -> T:
        """Run a method without blocking the event loop."""
        if threading.get_ident() == self._loop_thread:
            return await run_waiting(work)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run_waiting(work), self._loop))

    # Reading

    @_perform
    def read_lines(self, conversation_id: str) -> bytes:
        """Return the lines of a conversation, for `format.decode_entries`."""
        return b"".join(row.line for row in self._read_rows(conversation_id))

    @_perform
    def list_conversations(self) -> list[str]:
        """Return the ids of the conversations that have entries, in the order in which they began."""
        added, removed = self._pending()
        if not (added or removed):
            return self._repository.list_conversations()
        names = self._repository.load_ids() | {row.id: row.conversation_id for row in added}
        return list(dict.fromkeys(names[row_id] for row_id in sorted(names.keys() - removed)))

    @_perform
    def read_all(self) -> LinesByConversation:
        """Return the lines of all conversations that have entries, in the order in which they began."""
        return group_lines(self._read_rows())

    def _pending(self) -> tuple[list[MemoryRow], set[int]]:
        """Return the rows that the changes which are not durable add, and the ids of the rows that they remove."""
        changes = list(self._changes)
        removed = {row_id for change in changes for row_id in change.removed}
        return [row for change in changes for row in change.added if row.id not in removed], removed

    def _read_rows(self, conversation_id: str | None = None) -> list[MemoryRow]:
        added, removed = self._pending()  # before the read: what becomes durable meanwhile is in one of the two
        rows = {row.id: row for row in self._repository.load(conversation_id)}
        rows |= {row.id: row for row in added if conversation_id in (None, row.conversation_id)}
        return [rows[row_id] for row_id in sorted(rows.keys() - removed)]

    # Adding

    def enqueue(self, addition: Addition) -> None:
        """Put an addition in the queue, for `write_queued`. Additions are stored in the order of these calls."""
        self._queue.append(addition)

    @_perform
    def write_queued(self, own: Addition | None = None) -> None:
        """Write all queued additions of all threads at once. On return every one of them is done.

        On the event loop, in plain code, only `own` is written: the others are waited for.
        """
        with self._exclusive():  # so that they are stored in the order of the queue
            if can_wait():
                batch = [self._queue.popleft() for _ in range(len(self._queue))]
            else:
                assert own is not None
                self._queue.remove(own)
                batch = [own]
            self._write_batch([addition for addition in batch if addition.set_running_or_notify_cancel()])

    def _write_batch(self, batch: list[Addition]) -> None:
        accepted = []
        try:
            for addition in batch:
                size = self._measure(addition.conversation_id) + len(addition.line)
                if size > self._limits.conversation_bytes:
                    addition.set_exception(MemoryFullError(addition.conversation_id, self._limits.conversation_bytes))
                else:
                    self._set_size(addition.conversation_id, size)
                    accepted.append((addition.conversation_id, addition.line))
            self._change(accepted)
        except BaseException as error:
            self._forget_sizes()
            complete(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            complete(batch)

    def _measure(self, conversation_id: str) -> int:
        """Return the size of a conversation."""
        while (size := self._sizes.get(conversation_id)) is None:
            version, (added, removed) = self._version, self._pending()
            size = self._repository.measure(conversation_id, removed.union(row.id for row in added))
            size += sum(len(row.line) for row in added if row.conversation_id == conversation_id)
            if version == self._version:
                self._set_size(conversation_id, size)
        return size

    def _set_size(self, conversation_id: str, size: int) -> None:
        if len(self._sizes) >= _MAX_SIZES:
            self._sizes.clear()
        self._sizes[conversation_id] = size
        self._version += 1

    def _forget_sizes(self) -> None:
        self._sizes.clear()
        self._version += 1

    # Other changes

    @_perform
    def remove(self, conversation_ids: Collection[str]) -> int:
        """Remove conversations, and return how many existed."""
        with self._exclusive():
            added, removed = self._pending()
            names = self._repository.load_ids(conversation_ids)
            names |= {row.id: row.conversation_id for row in added if row.conversation_id in conversation_ids}
            found = names.keys() - removed
            self._change([], found)
            return len({names[row_id] for row_id in found})

    @_perform
    def remove_entries(self, conversation_id: str, is_removed: Callable[[Entry], bool]) -> int:
        """Remove the entries that a function chooses, all at once, and return how many there were."""
        with self._exclusive():
            rows = self._read_rows(conversation_id)
            entries = decode_entries(b"".join(row.line for row in rows))
            removed = [row.id for row, entry in zip(rows, entries, strict=True) if is_removed(entry)]
            self._change([], removed)
            return len(removed)

    @_perform
    def merge(self, lines_by_conversation: LinesByConversation) -> int:
        """Add imported entries that are not stored yet, each to its conversation. Return how many were added."""
        with self._exclusive():
            new = find_new(lines_by_conversation, self.read_lines)
            added = [(name, line) for name, lines in new.items() for line in bytes(lines).splitlines(keepends=True)]
            self._change(added, is_synced=True)  # the file that they come from may be deleted then
            self._forget_sizes()
            return len(added)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep out other tasks that read before they write. Plain code on the event loop is alone, because it never waits."""
        if not can_wait():
            yield
            return
        wait_for(self._lock.acquire())
        try:
            yield
        finally:
            self._lock.release()

    def _change(self, added: Collection[tuple[str, bytes]], removed: Collection[int] = (), *, is_synced: bool = False) -> None:
        """Write a change. Wait until it is durable, if this can wait; otherwise it is deferred."""
        if not added and not removed:
            return
        rows = [MemoryRow(self._repository.row_ids.next(), name, line[:-1].decode()) for name, line in added]
        change = _PendingChange(rows, frozenset(removed), can_wait(), is_synced)
        self._submit(change)
        self._changes.append(change)
        if removed:
            self._forget_sizes()
        if change.is_awaited:
            wait_for(change.commit)
            return
        self.deferred_syncs += 1
        if (syncs := CURRENT_DEFERRED_SYNCS.get()) is not None:
            syncs.defer(self)

    def _submit(self, change: _PendingChange) -> None:
        change.commit = self._repository.change(change.added, change.removed, is_synced=change.is_synced)
        change.commit.on_stored(lambda _: self._changes.remove(change))
        change.commit.on_failed(partial(self._on_failed, change))

    def _on_failed(self, change: _PendingChange, error: BaseException) -> None:
        if change.is_awaited:
            self._changes.remove(change)
            self._forget_sizes()
        else:
            log.error("%s: a change of its interaction memory is not stored yet: %s", self._agent_id, error)

    # Syncing

    @_perform
    def sync(self) -> None:
        """Wait until the deferred changes are durable. Those that have failed are written again. StoreError if one fails.

        On the event loop, in plain code, this cannot wait: it only writes again what has failed.
        """
        changes = [change for change in self._changes if not change.is_awaited]
        for change in changes:
            if change.commit.error is not None:
                self._submit(change)
        if can_wait():
            commits = [change.commit for change in changes]
            for commit in commits:
                wait_for(commit.wait())
            for commit in commits:
                if commit.error is not None:
                    raise commit.error

    async def asettle(self) -> None:
        """Sync, for a turn that ends."""
        await self.run(self.sync)

    @_perform
    def fold(self) -> None:
        """Complete what is on its way, and drop what was cached. The agent may then pass on to another process."""
        try:
            self.sync()
        finally:
            self._forget_sizes()


def group_lines(rows: Iterable[MemoryRow]) -> LinesByConversation:
    """Return the lines of rows by conversation."""
    found: LinesByConversation = {}
    for row in rows:
        found.setdefault(row.conversation_id, bytearray()).extend(row.line)
    return found
