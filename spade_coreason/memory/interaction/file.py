"""One agent's memory on disk: a JSON file, and beside it a journal of what was added since; processes and threads share them.

An addition is a line in the journal. A fold writes everything into a new file, says so in the journal, renames the new file
over the old one and removes the journal: whenever it is interrupted, file and journal together are everything there is, once.
A file that cannot be understood is never written to.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ...exceptions import MemoryFullError, StoreError
from . import journal
from .disk import Locked, Unusable, append, make_directory, sync, sync_directory, write_beside
from .format import Memories, dump, entries
from .reader import Content, MemoryReader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """How much may be remembered, in bytes (UTF-8).

    `entry_bytes`: the most for one piece of information, and for the id of a conversation. `conversation_bytes`: the most for
    one conversation, with timestamps. `journal_bytes`: a journal longer than this, and than the memory file, is folded in.
    """

    entry_bytes: int = 65_536
    conversation_bytes: int = 16_777_216
    journal_bytes: int = 1_048_576


class Addition(Future[None]):
    """An entry on its way to the disk; done when it is there.

    `leave_sync` leaves its sync to somebody who calls `MemoryFile.sync`, later; False if nobody will.
    """

    def __init__(self, conversation_id: str, line: bytes, journal_line: bytes, leave_sync: Callable[[], bool]) -> None:
        super().__init__()
        self.leave_sync = leave_sync
        self.conversation_id = conversation_id
        self.line = line
        self.journal_line = journal_line


class MemoryFile:
    """The entries of one agent by conversation.

    What a person or another program wrote into the document is kept when it is written again.

    `is_durable`: an addition survives a power cut too, not only the end of the process, when `write` has returned, or `sync`
    where all that were written at once leave it to that.
    """

    def __init__(self, path: Path, agent_id: str, limits: MemoryLimits, *, is_durable: bool) -> None:
        self.path = path
        self.journal = path.with_name(f"{path.name}.journal")
        self.lock = path.with_name(f"{path.name}.lock")
        self.agent_id = agent_id
        self._limits = limits
        self._is_durable = is_durable
        self._waiting: deque[Addition] = deque()
        self._turn = threading.Lock()
        self._reader = MemoryReader(path, self.journal, agent_id)
        self._writing = Unusable(path, "cannot be written")
        self._fold_from = limits.journal_bytes
        self._named = b""  # the head of the journal whose name is lasting
        self._is_refused = False
        self.left = 0
        """How many times a sync was left for later."""
        self.synced = 0
        """How many of these are made up for."""
        self._current()

    # Reading

    def lines(self, conversation_id: str) -> bytes:
        """The lines of a conversation (`memory_format.entries`)."""
        return bytes(self._current().memories.get(conversation_id, b""))

    def conversations(self) -> list[str]:
        """The conversations that have entries, in the order in which they began."""
        return [name for name, lines in list(self._current().memories.items()) if lines]

    def _current(self) -> Content:
        content = self._reader.content
        if self._reader.stamps() == content.stamps:
            return content
        with self._turn:
            return self._read_again()

    def _read_again(self) -> Content:
        with ExitStack() as stack, self._reader.reading:
            if self.lock.exists():
                stack.enter_context(Locked(self.lock, exclusively=False))
                return self._reader.refresh()
        content = self._reader.refresh(is_locked=False)
        return self._read_again() if self.lock.exists() else content  # the first writer came meanwhile

    # Adding

    def add(self, addition: Addition) -> None:
        """Puts an addition in the queue; `write` brings it to the disk. They are stored in the order in which they come."""
        self._waiting.append(addition)

    def write(self) -> None:
        """Writes all additions that wait, of all threads, at once; then every one that was waiting is done.

        Each has its outcome: StoreError if nothing can be written, MemoryFullError if its conversation holds too much.
        """
        with self._turn:
            batch: list[Addition] = []
            try:
                while self._waiting:
                    if self._waiting[0].set_running_or_notify_cancel():
                        batch.append(self._waiting[0])
                    self._waiting.popleft()
                if not batch:
                    return
                with self._exclusively():
                    refused = self._append(batch)
            except BaseException as error:
                if not isinstance(error, StoreError):
                    self._reader.read_anew()
                for addition in batch:
                    addition.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                return
            for addition in batch:
                if addition in refused:
                    addition.set_exception(MemoryFullError(addition.conversation_id, self._limits.conversation_bytes))
                else:
                    addition.set_result(None)

    def _append(self, batch: list[Addition]) -> set[Addition]:
        """Stores a batch but for those that it gives back, whose conversations are full."""
        content = self._reader.refresh()
        sizes: dict[str, int] = {}
        accepted, refused = [], set()
        for addition in batch:
            name = addition.conversation_id
            size = sizes.get(name, len(content.memories.get(name, b""))) + len(addition.line)
            if size > self._limits.conversation_bytes:
                refused.add(addition)
            else:
                sizes[name] = size
                accepted.append(addition)
        if not accepted:
            return refused
        if content.read.is_folded:
            self._remove_journal(content)
        is_durable = self._is_durable and not self._leave_sync(accepted)
        self._write_journal(content, b"".join(addition.journal_line for addition in accepted), is_durable)
        for addition in accepted:
            content.memories.setdefault(addition.conversation_id, bytearray()).extend(addition.line)
        if content.is_imported or content.read.end > max(self._fold_from, content.file[2] if content.file else 0):
            self._fold_in_passing(content)
        return refused

    def _leave_sync(self, additions: list[Addition]) -> bool:
        self.left += 1  # before somebody is told to sync it: they wait until it is written
        return all(addition.leave_sync() for addition in additions)

    def _fold_in_passing(self, content: Content) -> None:
        try:
            self._fold(content, content.memories)
        except StoreError as error:  # what was added is in the journal; that it grows is no reason to refuse it
            self._fold_from = 2 * content.read.end
            log.warning("the journal is not folded in yet: %s", error)
        else:
            self._fold_from = self._limits.journal_bytes

    def _write_journal(self, content: Content, lines: bytes, is_durable: bool) -> None:
        """Appends lines behind the last one that is whole. Nothing of them is left if that fails."""
        known, mode, left = content.read, None, self.left
        head = known.head or journal.head(self.agent_id, secrets.token_hex(8))
        with self._writing:
            if not known.end and content.file is not None:
                mode = os.stat(self.path).st_mode & 0o777
            data = lines if known.end else head + lines
            is_named = head == self._named
            content.journal = append(self.journal, known.end, data, mode=mode, is_durable=is_durable, is_named=is_named)
        content.read = journal.Read(content.journal[2], head, {}, known.is_folded)
        if is_durable:
            self._named = head
            if not self._is_refused:
                self.synced = left

    # Syncing

    def sync(self) -> None:
        """Syncs what was added and left for later. StoreError if it cannot be stored, now and until it can."""
        with self._turn:  # what is being written has its turn
            left, head = self.left, self._reader.content.read.head
        if not self._is_refused:
            try:
                sync(self.journal, is_named=bool(head) and head == self._named)
            except FileNotFoundError:
                pass  # it was folded in, and so synced, by another process
            except OSError as error:
                self._is_refused = True
                log.warning("%s: cannot be synced: %s; what it holds is written anew", self.journal, error.strerror)
        with self._turn:
            if self._is_refused and self.synced < left:
                # The disk does not refuse a second time what it has lost: only writing it again shows that it is there.
                with self._exclusively():
                    content = self._reader.refresh()
                    self._fold(content, content.memories)
            elif self.synced < left:
                self.synced, self._named = left, head

    # Removing and folding

    def remove(self, conversation_ids: Collection[str]) -> int:
        """Removes conversations, all at once; how many there were. On return nothing of them is in file or journal."""
        now = self._current()
        if now.memories.keys().isdisjoint(conversation_ids) and not now.read.is_folded:
            return 0
        with self._turn, self._exclusively():
            content = self._reader.refresh()
            kept = {name: lines for name, lines in content.memories.items() if name not in conversation_ids}
            gone = len(content.memories) - len(kept)
            if gone or content.read.is_folded:
                self._fold(content, kept)
            return gone

    def remove_entries(self, conversation_id: str, contents: Collection[str]) -> int:
        """Removes the entries with these contents, all at once; how many there were."""
        now = self._current()
        if conversation_id not in now.memories and not now.read.is_folded:
            return 0
        with self._turn, self._exclusively():
            content = self._reader.refresh()
            lines = bytes(content.memories.get(conversation_id, b""))
            one_by_one = zip(entries(lines), lines.splitlines(keepends=True), strict=True)
            kept = [line for entry, line in one_by_one if entry["content"] not in contents]
            gone = lines.count(b"\n") - len(kept)
            if gone or content.read.is_folded:
                others = {name: those for name, those in content.memories.items() if name != conversation_id or kept}
                self._fold(content, {**others, conversation_id: bytearray().join(kept)} if kept else others)
            return gone

    def fold(self) -> None:
        """Writes everything into the memory file, which then is complete by itself; the journal is gone."""
        now = self._current()
        if now.journal is None and not now.is_imported:
            return
        with self._turn, self._exclusively():
            content = self._reader.refresh()
            if content.journal is not None or content.is_imported:
                self._fold(content, content.memories)

    def merge(self, memories: Memories) -> int:
        """Adds entries from elsewhere that are not there yet, each to its conversation; how many these were."""
        with self._turn, self._exclusively():
            content = self._reader.refresh()
            merged, count = dict(content.memories), 0
            for name, lines in memories.items():
                known = merged.get(name, bytearray())
                there = set(bytes(known).splitlines())
                new = [line for line in bytes(lines).splitlines(keepends=True) if line[:-1] not in there]
                merged[name] = known + b"".join(new)
                count += len(new)
            if count:
                self._fold(content, merged)
            return count

    def _fold(self, content: Content, memories: Memories) -> None:
        # Only who holds the lock writes, so one name is enough, and what a killed process left is overwritten.
        beside = self.path.with_name(f".{self.path.name}.tmp")
        with self._writing:
            try:
                before = os.stat(self.path) if content.file is not None else None
                stamp, digest = write_beside(beside, dump(content.document, memories), before)
                if before is not None:
                    os.chmod(self.lock, before.st_mode & 0o777)  # who may read the file has to wait for who writes it
                if content.read.end:
                    self._write_journal(content, journal.folded(digest), is_durable=True)
                os.replace(beside, self.path)
            except (OSError, StoreError):
                beside.unlink(missing_ok=True)
                raise
            sync_directory(self.path.parent)
        content.file, content.memories, content.is_imported = stamp, memories, False
        self.synced, self._is_refused = self.left, False
        self._remove_journal(content)

    def _remove_journal(self, content: Content) -> None:
        with self._writing:
            self.journal.unlink(missing_ok=True)
        content.journal, content.read = None, journal.Read()

    # The lock between processes

    def _exclusively(self) -> Locked:
        """One writer among the processes that use this file; `_turn` is held already."""
        with self._writing:
            try:
                return Locked(self.lock, exclusively=True)
            except FileNotFoundError:
                make_directory(self.path.parent)
                return Locked(self.lock, exclusively=True)
