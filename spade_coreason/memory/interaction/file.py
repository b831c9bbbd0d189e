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
from .disk import FileLock, OSErrorTranslator, append, make_directory, sync, sync_directory, write_replacement
from .format import LinesByConversation, decode_entries, dump
from .reader import MemoryContent, MemoryReader

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

    `defer_sync` leaves its sync to somebody who calls `MemoryFile.sync`, later; False if nobody will.
    """

    def __init__(self, conversation_id: str, line: bytes, journal_line: bytes, defer_sync: Callable[[], bool]) -> None:
        super().__init__()
        self.defer_sync = defer_sync
        self.conversation_id = conversation_id
        self.line = line
        self.journal_line = journal_line


class MemoryFile:
    """The entries of one agent by conversation.

    What a person or another program wrote into the document is kept when it is written again.

    `is_durable`: an addition survives a power cut too, not only the end of the process, when `write_queued` has returned, or `sync`
    where all that were written at once leave it to that.
    """

    def __init__(self, path: Path, agent_id: str, limits: MemoryLimits, *, is_durable: bool) -> None:
        self.path = path
        self.journal_path = path.with_name(f"{path.name}.journal")
        self.lock_path = path.with_name(f"{path.name}.lock")
        self.agent_id = agent_id
        self._limits = limits
        self._is_durable = is_durable
        self._queue: deque[Addition] = deque()
        self._write_lock = threading.Lock()
        self._reader = MemoryReader(path, self.journal_path, agent_id)
        self._write_errors = OSErrorTranslator(path, "cannot be written")
        self._fold_threshold_bytes = limits.journal_bytes
        self._durable_head = b""  # the head of the journal whose name is lasting
        self._has_sync_failed = False
        self.deferred_syncs = 0
        """How many times a sync was left for later."""
        self.completed_syncs = 0
        """How many of these are made up for."""
        self._refresh()

    # Reading

    def read_lines(self, conversation_id: str) -> bytes:
        """The lines of a conversation (`memory_format.entries`)."""
        return bytes(self._refresh().lines_by_conversation.get(conversation_id, b""))

    def list_conversations(self) -> list[str]:
        """The conversations that have entries, in the order in which they began."""
        return [name for name, lines in list(self._refresh().lines_by_conversation.items()) if lines]

    def _refresh(self) -> MemoryContent:
        content = self._reader.content
        if self._reader.current_stamps() == content.stamps:
            return content
        with self._write_lock:
            return self._refresh_locked()

    def _refresh_locked(self) -> MemoryContent:
        with ExitStack() as stack, self._reader.read_errors:
            if self.lock_path.exists():
                stack.enter_context(FileLock(self.lock_path, is_exclusive=False))
                return self._reader.refresh()
        content = self._reader.refresh(is_locked=False)
        return self._refresh_locked() if self.lock_path.exists() else content  # the first writer came meanwhile

    # Adding

    def enqueue(self, addition: Addition) -> None:
        """Puts an addition in the queue; `write_queued` brings it to the disk. They are stored in the order in which they come."""
        self._queue.append(addition)

    def write_queued(self) -> None:
        """Writes all additions that wait, of all threads, at once; then every one that was waiting is done.

        Each has its outcome: StoreError if nothing can be written, MemoryFullError if its conversation holds too much.
        """
        with self._write_lock:
            batch: list[Addition] = []
            try:
                while self._queue:
                    if self._queue[0].set_running_or_notify_cancel():
                        batch.append(self._queue[0])
                    self._queue.popleft()
                if not batch:
                    return
                with self._acquire_file_lock():
                    refused = self._append(batch)
            except BaseException as error:
                if not isinstance(error, StoreError):
                    self._reader.invalidate()
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
            size = sizes.get(name, len(content.lines_by_conversation.get(name, b""))) + len(addition.line)
            if size > self._limits.conversation_bytes:
                refused.add(addition)
            else:
                sizes[name] = size
                accepted.append(addition)
        if not accepted:
            return refused
        if content.parsed_journal.is_folded:
            self._remove_journal(content)
        is_durable = self._is_durable and not self._defer_sync(accepted)
        self._write_journal(content, b"".join(addition.journal_line for addition in accepted), is_durable)
        for addition in accepted:
            content.lines_by_conversation.setdefault(addition.conversation_id, bytearray()).extend(addition.line)
        if content.is_imported or content.parsed_journal.end > max(
            self._fold_threshold_bytes, content.file_stamp[2] if content.file_stamp else 0
        ):
            self._try_fold(content)
        return refused

    def _defer_sync(self, additions: list[Addition]) -> bool:
        self.deferred_syncs += 1  # before somebody is told to sync it: they wait until it is written
        return all(addition.defer_sync() for addition in additions)

    def _try_fold(self, content: MemoryContent) -> None:
        try:
            self._fold(content, content.lines_by_conversation)
        except StoreError as error:  # what was added is in the journal; that it grows is no reason to refuse it
            self._fold_threshold_bytes = 2 * content.parsed_journal.end
            log.warning("the journal is not folded in yet: %s", error)
        else:
            self._fold_threshold_bytes = self._limits.journal_bytes

    def _write_journal(self, content: MemoryContent, lines: bytes, is_durable: bool) -> None:
        """Appends lines behind the last one that is whole. Nothing of them is left if that fails."""
        known, mode, left = content.parsed_journal, None, self.deferred_syncs
        head = known.head or journal.encode_head(self.agent_id, secrets.token_hex(8))
        with self._write_errors:
            if not known.end and content.file_stamp is not None:
                mode = os.stat(self.path).st_mode & 0o777
            data = lines if known.end else head + lines
            is_named = head == self._durable_head
            content.journal_stamp = append(
                self.journal_path, known.end, data, mode=mode, is_durable=is_durable, is_name_durable=is_named
            )
        content.parsed_journal = journal.ParsedJournal(content.journal_stamp[2], head, {}, known.is_folded)
        if is_durable:
            self._durable_head = head
            if not self._has_sync_failed:
                self.completed_syncs = left

    # Syncing

    def sync(self) -> None:
        """Syncs what was added and left for later. StoreError if it cannot be stored, now and until it can."""
        with self._write_lock:  # what is being written has its turn
            left, head = self.deferred_syncs, self._reader.content.parsed_journal.head
        if not self._has_sync_failed:
            try:
                sync(self.journal_path, is_name_durable=bool(head) and head == self._durable_head)
            except FileNotFoundError:
                pass  # it was folded in, and so synced, by another process
            except OSError as error:
                self._has_sync_failed = True
                log.warning("%s: cannot be synced: %s; what it holds is written anew", self.journal_path, error.strerror)
        with self._write_lock:
            if self._has_sync_failed and self.completed_syncs < left:
                # The disk does not refuse a second time what it has lost: only writing it again shows that it is there.
                with self._acquire_file_lock():
                    content = self._reader.refresh()
                    self._fold(content, content.lines_by_conversation)
            elif self.completed_syncs < left:
                self.completed_syncs, self._durable_head = left, head

    # Removing and folding

    def remove(self, conversation_ids: Collection[str]) -> int:
        """Removes conversations, all at once; how many there were. On return nothing of them is in file or journal."""
        now = self._refresh()
        if now.lines_by_conversation.keys().isdisjoint(conversation_ids) and not now.parsed_journal.is_folded:
            return 0
        with self._write_lock, self._acquire_file_lock():
            content = self._reader.refresh()
            kept = {name: lines for name, lines in content.lines_by_conversation.items() if name not in conversation_ids}
            gone = len(content.lines_by_conversation) - len(kept)
            if gone or content.parsed_journal.is_folded:
                self._fold(content, kept)
            return gone

    def remove_entries(self, conversation_id: str, contents: Collection[str]) -> int:
        """Removes the entries with these contents, all at once; how many there were."""
        now = self._refresh()
        if conversation_id not in now.lines_by_conversation and not now.parsed_journal.is_folded:
            return 0
        with self._write_lock, self._acquire_file_lock():
            content = self._reader.refresh()
            lines = bytes(content.lines_by_conversation.get(conversation_id, b""))
            one_by_one = zip(decode_entries(lines), lines.splitlines(keepends=True), strict=True)
            kept = [line for entry, line in one_by_one if entry["content"] not in contents]
            gone = lines.count(b"\n") - len(kept)
            if gone or content.parsed_journal.is_folded:
                others = {
                    name: those for name, those in content.lines_by_conversation.items() if name != conversation_id or kept
                }
                self._fold(content, {**others, conversation_id: bytearray().join(kept)} if kept else others)
            return gone

    def fold(self) -> None:
        """Writes everything into the memory file, which then is complete by itself; the journal is gone."""
        now = self._refresh()
        if now.journal_stamp is None and not now.is_imported:
            return
        with self._write_lock, self._acquire_file_lock():
            content = self._reader.refresh()
            if content.journal_stamp is not None or content.is_imported:
                self._fold(content, content.lines_by_conversation)

    def merge(self, memories: LinesByConversation) -> int:
        """Adds entries from elsewhere that are not there yet, each to its conversation; how many these were."""
        with self._write_lock, self._acquire_file_lock():
            content = self._reader.refresh()
            merged, count = dict(content.lines_by_conversation), 0
            for name, lines in memories.items():
                known = merged.get(name, bytearray())
                there = set(bytes(known).splitlines())
                new = [line for line in bytes(lines).splitlines(keepends=True) if line[:-1] not in there]
                merged[name] = known + b"".join(new)
                count += len(new)
            if count:
                self._fold(content, merged)
            return count

    def _fold(self, content: MemoryContent, memories: LinesByConversation) -> None:
        # Only who holds the lock writes, so one name is enough, and what a killed process left is overwritten.
        beside = self.path.with_name(f".{self.path.name}.tmp")
        with self._write_errors:
            try:
                before = os.stat(self.path) if content.file_stamp is not None else None
                stamp, digest = write_replacement(beside, dump(content.document, memories), before)
                if before is not None:
                    os.chmod(self.lock_path, before.st_mode & 0o777)  # who may read the file has to wait for who writes it
                if content.parsed_journal.end:
                    self._write_journal(content, journal.encode_fold(digest), is_durable=True)
                os.replace(beside, self.path)
            except (OSError, StoreError):
                beside.unlink(missing_ok=True)
                raise
            sync_directory(self.path.parent)
        content.file_stamp, content.lines_by_conversation, content.is_imported = stamp, memories, False
        self.completed_syncs, self._has_sync_failed = self.deferred_syncs, False
        self._remove_journal(content)

    def _remove_journal(self, content: MemoryContent) -> None:
        with self._write_errors:
            self.journal_path.unlink(missing_ok=True)
        content.journal_stamp, content.parsed_journal = None, journal.ParsedJournal()

    # The lock between processes

    def _acquire_file_lock(self) -> FileLock:
        """One writer among the processes that use this file; `_write_lock` is held already."""
        with self._write_errors:
            try:
                return FileLock(self.lock_path, is_exclusive=True)
            except FileNotFoundError:
                make_directory(self.path.parent)
                return FileLock(self.lock_path, is_exclusive=True)
