"""The memory file of one agent: a JSON file, and a journal of later additions. Processes and threads share them.

An addition is a line in the journal. A fold moves the journal into the file, in four steps:

1. Write everything into a new file.
2. Write a fold line with its digest into the journal.
3. Rename the new file over the old one.
4. Remove the journal.

Whenever a fold is interrupted, file and journal together hold every entry exactly once. A file that cannot be parsed is
never written to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from ...domain.policy import MemoryLimits as MemoryLimits
from ...exceptions import MemoryFullError, StoreError
from . import journal
from .disk import FileLock, OSErrorTranslator, append, make_directory, sync, sync_directory, write_replacement
from .entry_store import Addition, find_new_lines
from .format import Entry, LinesByConversation, decode_entries, dump
from .reader import MemoryContent, MemoryReader

log = logging.getLogger(__name__)

T = TypeVar("T")


class MemoryFile:
    """The entries of one agent by conversation.

    A fold keeps the keys that a person or another program added to the document.

    Without `is_durable` an addition survives the end of the process. With it, an addition also survives a power cut as soon as
    `write_queued` has returned. If all additions of a batch defer their sync, that holds as soon as `sync` has returned.
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
        self._durable_head = b""  # the head of the journal whose directory entry is synced
        self._has_sync_failed = False
        self.deferred_syncs = 0
        """The number of syncs that were deferred."""
        self.completed_syncs = 0
        """The number of deferred syncs that are done."""
        self._refresh()

    async def run(self, work: Callable[[], T]) -> T:
        """Run a method in a thread."""
        return await asyncio.to_thread(work)

    # Reading

    def read_lines(self, conversation_id: str) -> bytes:
        """Return the lines of a conversation, for `format.decode_entries`."""
        return bytes(self._refresh().lines_by_conversation.get(conversation_id, b""))

    def list_conversations(self) -> list[str]:
        """Return the ids of the conversations that have entries, in the order in which they began."""
        return [name for name, lines in list(self._refresh().lines_by_conversation.items()) if lines]

    def read_all(self) -> LinesByConversation:
        """Return the lines of all conversations that have entries, in the order in which they began."""
        return {name: bytearray(self.read_lines(name)) for name in self.list_conversations()}

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
        return self._refresh_locked() if self.lock_path.exists() else content  # the first writer has just made it

    # Adding

    def enqueue(self, addition: Addition) -> None:
        """Put an addition in the queue, for `write_queued`. Additions are stored in the order of these calls."""
        self._queue.append(addition)

    def write_queued(self, own: Addition | None = None) -> None:
        """Write all queued additions of all threads at once. On return every one of them is done.

        An addition that failed holds its exception: StoreError if nothing can be written, MemoryFullError if its conversation
        is full.
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
        """Write a batch to the journal. Return the additions that are refused because their conversations are full."""
        content = self._reader.refresh()
        sizes: dict[str, int] = {}
        accepted, refused = [], set()
        for addition in batch:
            conversation_id = addition.conversation_id
            size = sizes.get(conversation_id, len(content.lines_by_conversation.get(conversation_id, b""))) + len(addition.line)
            if size > self._limits.conversation_bytes:
                refused.add(addition)
            else:
                sizes[conversation_id] = size
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
        self.deferred_syncs += 1  # before `defer_sync`: a sync waits for the write lock
        return all(addition.defer_sync() for addition in additions)

    def _try_fold(self, content: MemoryContent) -> None:
        try:
            self._fold(content, content.lines_by_conversation)
        except StoreError as error:  # the additions are stored: a journal that grows is no reason to refuse them
            self._fold_threshold_bytes = 2 * content.parsed_journal.end
            log.warning("the journal cannot be merged into the memory file yet: %s", error)
        else:
            self._fold_threshold_bytes = self._limits.journal_bytes

    def _write_journal(self, content: MemoryContent, lines: bytes, is_durable: bool) -> None:
        """Append lines after the last complete one. If that fails, none of them is left in the journal."""
        parsed, mode, deferred = content.parsed_journal, None, self.deferred_syncs
        head = parsed.head or journal.encode_head(self.agent_id, secrets.token_hex(8))
        with self._write_errors:
            if not parsed.end and content.file_stamp is not None:
                mode = os.stat(self.path).st_mode & 0o777
            data = lines if parsed.end else head + lines
            is_name_durable = head == self._durable_head
            content.journal_stamp = append(
                self.journal_path, parsed.end, data, mode=mode, is_durable=is_durable, is_name_durable=is_name_durable
            )
        content.parsed_journal = journal.ParsedJournal(content.journal_stamp[2], head, {}, parsed.is_folded)
        if is_durable:
            self._durable_head = head
            if not self._has_sync_failed:
                self.completed_syncs = deferred

    # Syncing

    def sync(self) -> None:
        """Sync the additions whose sync was deferred. Raises StoreError until they can be stored."""
        with self._write_lock:  # waits for a write that is running
            deferred, head = self.deferred_syncs, self._reader.content.parsed_journal.head
        if not self._has_sync_failed:
            try:
                sync(self.journal_path, is_name_durable=bool(head) and head == self._durable_head)
            except FileNotFoundError:
                pass  # another process folded, and so synced, the journal
            except OSError as error:
                self._has_sync_failed = True
                log.warning("%s: cannot be synced: %s; its content is written again", self.journal_path, error.strerror)
        with self._write_lock:
            if self._has_sync_failed and self.completed_syncs < deferred:
                # After a failed sync the system may report success for data that it has lost: only writing it again helps.
                with self._acquire_file_lock():
                    content = self._reader.refresh()
                    self._fold(content, content.lines_by_conversation)
            elif self.completed_syncs < deferred:
                self.completed_syncs, self._durable_head = deferred, head

    # Removing and folding

    def remove(self, conversation_ids: Collection[str]) -> int:
        """Remove conversations, all at once, and return how many there were.

        On return neither file nor journal contains any of them.
        """
        current = self._refresh()
        if current.lines_by_conversation.keys().isdisjoint(conversation_ids) and not current.parsed_journal.is_folded:
            return 0
        with self._write_lock, self._acquire_file_lock():
            content = self._reader.refresh()
            remaining = {name: lines for name, lines in content.lines_by_conversation.items() if name not in conversation_ids}
            removed_count = len(content.lines_by_conversation) - len(remaining)
            if removed_count or content.parsed_journal.is_folded:
                self._fold(content, remaining)
            return removed_count

    def remove_entries(self, conversation_id: str, is_removed: Callable[[Entry], bool]) -> int:
        """Remove the entries that a function chooses, all at once, and return how many there were."""
        current = self._refresh()
        if conversation_id not in current.lines_by_conversation and not current.parsed_journal.is_folded:
            return 0
        with self._write_lock, self._acquire_file_lock():
            content = self._reader.refresh()
            lines = bytes(content.lines_by_conversation.get(conversation_id, b""))
            pairs = zip(decode_entries(lines), lines.splitlines(keepends=True), strict=True)
            remaining = [line for entry, line in pairs if not is_removed(entry)]
            removed_count = lines.count(b"\n") - len(remaining)
            if removed_count or content.parsed_journal.is_folded:
                others = {
                    name: other_lines
                    for name, other_lines in content.lines_by_conversation.items()
                    if name != conversation_id or remaining
                }
                self._fold(content, {**others, conversation_id: bytearray().join(remaining)} if remaining else others)
            return removed_count

    def fold(self) -> None:
        """Write everything into the memory file, and remove the journal. The file is then complete by itself."""
        current = self._refresh()
        if current.journal_stamp is None and not current.is_imported:
            return
        with self._write_lock, self._acquire_file_lock():
            content = self._reader.refresh()
            if content.journal_stamp is not None or content.is_imported:
                self._fold(content, content.lines_by_conversation)

    def merge(self, lines_by_conversation: LinesByConversation) -> int:
        """Add imported entries that are not stored yet, each to its conversation. Return how many were added."""
        with self._write_lock, self._acquire_file_lock():
            content = self._reader.refresh()
            merged, count = dict(content.lines_by_conversation), 0
            for name, lines in lines_by_conversation.items():
                stored = merged.get(name, bytearray())
                new = find_new_lines(lines, stored)
                merged[name] = stored + b"".join(new)
                count += len(new)
            if count:
                self._fold(content, merged)
            return count

    def _fold(self, content: MemoryContent, lines_by_conversation: LinesByConversation) -> None:
        # Only the holder of the lock writes, so one name is enough. The rest of a killed process is overwritten.
        replacement_path = self.path.with_name(f".{self.path.name}.tmp")
        with self._write_errors:
            try:
                replaced = os.stat(self.path) if content.file_stamp is not None else None
                stamp, digest = write_replacement(replacement_path, dump(content.document, lines_by_conversation), replaced)
                if replaced is not None:
                    # Readers of the file need the lock too, to wait for a writer.
                    os.chmod(self.lock_path, replaced.st_mode & 0o777)
                if content.parsed_journal.end:
                    self._write_journal(content, journal.encode_fold(digest), is_durable=True)
                os.replace(replacement_path, self.path)
            except (OSError, StoreError):
                replacement_path.unlink(missing_ok=True)
                raise
            sync_directory(self.path.parent)
        content.file_stamp, content.lines_by_conversation, content.is_imported = stamp, lines_by_conversation, False
        self.completed_syncs, self._has_sync_failed = self.deferred_syncs, False
        self._remove_journal(content)

    def _remove_journal(self, content: MemoryContent) -> None:
        with self._write_errors:
            self.journal_path.unlink(missing_ok=True)
        content.journal_stamp, content.parsed_journal = None, journal.ParsedJournal()

    # The lock between processes

    def _acquire_file_lock(self) -> FileLock:
        """Lock the file against other processes. The caller holds `_write_lock`."""
        with self._write_errors:
            try:
                return FileLock(self.lock_path, is_exclusive=True)
            except FileNotFoundError:
                make_directory(self.path.parent)
                return FileLock(self.lock_path, is_exclusive=True)
