"""The memory file of one agent: a JSON file, and a journal of later additions. Processes and threads share them.

A line of the journal has an entry and its place in its conversation. A reader skips a line whose entry is at this place
already. So a fold may stop anywhere: it writes everything into a new file, renames it over the old one, and removes the
journal. A file that cannot be parsed is never written to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from ...domain.policy import MemoryLimits as MemoryLimits
from ...exceptions import MemoryFileError, MemoryFullError, StoreError
from .disk import (
    FileStamp,
    OSErrorTranslator,
    append,
    lock_file,
    make_directory,
    stamp_of,
    sync,
    sync_directory,
    write_replacement,
)
from .format import (
    ENTRY_LINE,
    Entry,
    ForeignFileError,
    LinesByConversation,
    decode_entries,
    dump,
    find_new_lines,
    new_document,
    parse,
    parse_spade_llm,
    spade_llm_file_name,
)
from .journal import encode_addition, encode_head, parse_lines
from .legacy_journal import parse_legacy
from .turn_sync import Addition, complete

log = logging.getLogger(__name__)

T = TypeVar("T")

_REMEDY = "repair it, or move it away to continue with an empty memory"
_TAIL_BYTES = 64
_JOURNAL_REMEDY = "repair it, or move it away to continue without the entries added since the memory file was written"


@dataclass(slots=True)
class _Content:
    """The content of file and journal at the time of their stamps. None is the stamp of a file that does not exist."""

    file_stamp: FileStamp | None = (-1, -1, -1)
    journal_stamp: FileStamp | None = None
    document: dict[str, Any] = field(default_factory=dict)
    """The document without its memories."""
    lines: LinesByConversation = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """The number of entries of each conversation that the journal has lines of."""
    end: int = 0
    """The position after the last complete line of the journal."""
    tail: bytes | bytearray = b""
    """The bytes before it. They have a checksum, so that another journal in the same place has others."""
    is_imported: bool = False
    is_displaced: bool = False
    """True if entries are not at the places that the journal names: it has none yet, or a person has changed the file."""
    is_name_durable: bool = False
    """True if the directory entry of the journal is synced."""

    def count(self, name: str) -> int:
        """Return the number of entries of a conversation that has an addition."""
        if (count := self.counts.get(name)) is None:
            count = self.counts[name] = self.lines.get(name, b"").count(b"\n")
        return count


class MemoryFile:
    """The entries of one agent by conversation.

    Without a change a read costs two `stat` calls. After an addition it also reads the new end of the journal. A fold keeps the
    keys that a person or another program added to the document.

    Without `is_durable` an addition survives the end of the process. With it, an addition also survives a power cut as soon as
    `write_queued` has returned. If all additions of a batch defer their sync, that holds as soon as `sync` has returned.
    """

    def __init__(self, path: Path, agent_id: str, limits: MemoryLimits, *, is_durable: bool) -> None:
        self.path = path
        self.journal_path = path.with_name(f"{path.name}.journal")
        self.lock_path = path.with_name(f"{path.name}.lock")
        self.agent_id = agent_id
        self._head = encode_head(agent_id)
        self._limits = limits
        self._is_durable = is_durable
        self._queue: deque[Addition] = deque()
        self._write_lock = threading.Lock()
        self._read_errors = OSErrorTranslator(path, "cannot be read")
        self._write_errors = OSErrorTranslator(path, "cannot be written")
        self._fold_threshold_bytes = limits.journal_bytes
        self._has_sync_failed = False
        self.deferred_syncs = 0
        """The number of syncs that were deferred."""
        self.completed_syncs = 0
        """The number of deferred syncs that are done."""
        self._content = _Content()
        self._refresh()

    async def run(self, work: Callable[[], T]) -> T:
        """Run a method in a thread."""
        return await asyncio.to_thread(work)

    # Reading

    def read_lines(self, conversation_id: str) -> bytes:
        """Return the lines of a conversation, for `format.decode_entries`."""
        return bytes(self._refresh().lines.get(conversation_id, b""))

    def list_conversations(self) -> list[str]:
        """Return the ids of the conversations that have entries, in the order in which they began."""
        return [name for name, lines in list(self._refresh().lines.items()) if lines]

    def read_all(self) -> LinesByConversation:
        """Return the lines of all conversations that have entries, in the order in which they began."""
        return {name: bytearray(self.read_lines(name)) for name in self.list_conversations()}

    def _read_stamps(self) -> tuple[FileStamp | None, FileStamp | None]:
        with self._read_errors:
            return _read_stamp(self.path), _read_stamp(self.journal_path)

    def _refresh(self) -> _Content:
        content = self._content
        if self._read_stamps() == (content.file_stamp, content.journal_stamp):
            return content
        with self._write_lock:
            while True:
                with ExitStack() as stack, self._read_errors:
                    if is_locked := self.lock_path.exists():
                        stack.enter_context(lock_file(self.lock_path, is_exclusive=False))
                    content = self._read()
                if is_locked or not self.lock_path.exists():  # else the first writer has just made it
                    return content

    def _read(self) -> _Content:
        """Read what is new. Raise MemoryFileError for a file that cannot be parsed. The caller holds the lock."""
        content, stamps = self._content, self._read_stamps()
        if stamps == (content.file_stamp, content.journal_stamp):
            return content
        (file_stamp, journal_stamp), known = stamps, content.journal_stamp
        is_longer = journal_stamp and (known is None or (journal_stamp[0] == known[0] and journal_stamp[2] > known[2]))
        is_appended = is_longer and file_stamp == content.file_stamp and not content.is_displaced
        if not is_appended:
            content = self._load(file_stamp)
        try:
            self._read_journal(content)
        except ValueError as error:
            if not is_appended:
                raise MemoryFileError(self.journal_path, str(error), _JOURNAL_REMEDY) from error
            content.is_displaced = True
        if is_appended and content.is_displaced:  # it may be another journal than before
            self._content = _Content()
            return self._read()
        if journal_stamp and journal_stamp[2] > content.end:
            text = "%s: ignored the incomplete last line (%d bytes): its write was interrupted and never confirmed"
            log.warning(text, self.journal_path, journal_stamp[2] - content.end)
        content.journal_stamp, self._content = journal_stamp, content
        return content

    def _load(self, file_stamp: FileStamp | None) -> _Content:
        """Read the file, or that of spade_llm in the same directory if the agent has no file of its own."""
        content, path = _Content(file_stamp, document=new_document(self.agent_id)), self.path
        try:
            with self._read_errors, suppress(FileNotFoundError):
                if file_stamp is not None:
                    with open(path, "rb") as file:
                        content.document, content.lines = parse(file, self.agent_id)
                elif name := spade_llm_file_name(self.agent_id):
                    path = path.with_name(name)
                    with open(path, "rb") as file:
                        content.lines, content.is_imported = parse_spade_llm(file, self.agent_id), True
                    log.info("%s: imported the memory file of spade_llm, which is left unchanged", path)
        except ValueError as error:
            if path == self.path or not isinstance(error, ForeignFileError):  # spade_llm gives a_b@c and a@b_c one name
                raise MemoryFileError(path, str(error), _REMEDY) from error
        return content

    def _read_journal(self, content: _Content) -> None:
        """Add the new entries of the journal. Raise ValueError if it is damaged."""
        data, end = b"", len(content.tail)
        begin = content.end - end
        with self._read_errors, suppress(FileNotFoundError), open(self.journal_path, "rb") as file:
            file.seek(begin)
            data = file.read()
        if content.end:
            content.is_displaced = not data.startswith(content.tail)
        elif data.startswith(self._head):
            end = len(self._head)
        else:
            content.end, added = parse_legacy(data, self.agent_id, self.path)
            for name, additions in added.items():
                content.lines.setdefault(name, bytearray()).extend(additions)
                content.count(name)
            content.is_displaced = bool(content.end)
            return
        lines, counts, stored = content.lines, content.counts, dict[str, list[bytearray]]()
        for name, place, line, end in parse_lines(data, end):  # noqa: B007, B020 - it goes on from `end`, which is used below
            if name not in counts:
                content.count(name)
                lines.setdefault(name, bytearray())
            if place < (count := counts[name]):
                if name not in stored:
                    stored[name] = lines[name].splitlines(keepends=True)
                if stored[name][place : place + 1] == [line]:
                    continue
            if place != count:
                content.is_displaced = True
            counts[name] = count + 1
            lines[name] += line
        content.end, content.tail = begin + end, data[max(end - _TAIL_BYTES, 0) : end]

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
                if batch:
                    with self._lock():
                        self._append(batch)
            except BaseException as error:
                if not isinstance(error, StoreError):
                    self._content = _Content()
                complete(batch, error)
                if not isinstance(error, Exception):
                    raise
            else:
                complete(batch)

    def _append(self, batch: list[Addition]) -> None:
        """Write a batch to the journal. Additions to full conversations fail."""
        content, accepted = self._read_to_change(), list[Addition]()
        data, new, limit = bytearray(), dict[str, bytearray](), self._limits.conversation_bytes
        for addition in batch:
            name, line = addition.conversation_id, addition.line
            pending = new.get(name, b"")
            if len(content.lines.get(name, b"")) + len(pending) + len(line) > limit:
                addition.set_exception(MemoryFullError(name, limit))
                continue
            data += encode_addition(name, content.count(name) + pending.count(b"\n"), line)
            new.setdefault(name, bytearray()).extend(line)
            accepted.append(addition)
        if not accepted:
            return
        is_durable, mode = self._is_durable, None
        if is_durable:
            self.deferred_syncs += 1  # before `defer_sync`: a sync waits for the write lock
            is_durable = not all(addition.defer_sync() for addition in accepted)
        with self._write_errors:
            if not content.end:
                data[:0] = self._head
                mode = os.stat(self.path).st_mode & 0o777 if content.file_stamp else None
            content.journal_stamp = append(
                self.journal_path, content.end, data, mode=mode, is_durable=is_durable, is_name_durable=content.is_name_durable
            )
        content.end, content.tail = content.journal_stamp[2], data[-_TAIL_BYTES:]
        for name, lines in new.items():
            content.counts[name] += lines.count(b"\n")
            content.lines.setdefault(name, bytearray()).extend(lines)
        if is_durable:
            content.is_name_durable = True
            if not self._has_sync_failed:
                self.completed_syncs = self.deferred_syncs
        if content.is_imported or content.end > max(
            self._fold_threshold_bytes, content.file_stamp[2] if content.file_stamp else 0
        ):
            try:
                self._fold(content)
            except StoreError as error:  # the additions are stored: a journal that grows is no reason to refuse them
                self._fold_threshold_bytes = 2 * content.end
                log.warning("the journal cannot be merged into the memory file yet: %s", error)
            else:
                self._fold_threshold_bytes = self._limits.journal_bytes

    # Syncing

    def sync(self) -> None:
        """Sync the additions whose sync was deferred. Raises StoreError until they can be stored."""
        with self._write_lock:  # waits for a write that is running
            deferred, content = self.deferred_syncs, self._content
        if not self._has_sync_failed:
            try:
                sync(self.journal_path, is_name_durable=content.is_name_durable)
            except FileNotFoundError:
                pass  # another process folded, and so synced, the journal
            except OSError as error:
                self._has_sync_failed = True
                log.warning("%s: cannot be synced: %s; its content is written again", self.journal_path, error.strerror)
        with self._write_lock:
            if self.completed_syncs >= deferred:
                return
            if self._has_sync_failed:
                # After a failed sync the system may report success for data that it has lost: only writing it again helps.
                with self._lock():
                    self._fold(self._read_to_change())
            else:
                self.completed_syncs, content.is_name_durable = deferred, True

    # Removing and folding

    def remove(self, conversation_ids: Collection[str]) -> int:
        """Remove conversations, all at once, and return how many there were.

        On return neither file nor journal contains any of them.
        """
        found = self._refresh().lines.keys() & set(conversation_ids)
        return sum(added < 0 for added in self._replace_lines(found, lambda _name, _lines: bytearray()))

    def remove_entries(self, conversation_id: str, is_removed: Callable[[Entry], bool]) -> int:
        """Remove the entries that a function chooses, all at once, and return how many there were."""

        def filter_lines(_: str, lines: bytearray) -> bytearray:
            pairs = zip(decode_entries(lines), lines.splitlines(keepends=True), strict=True)
            return bytearray().join(line for entry, line in pairs if not is_removed(entry))

        return -sum(self._replace_lines(self._refresh().lines.keys() & {conversation_id}, filter_lines))

    def merge(self, lines_by_conversation: LinesByConversation) -> int:
        """Add imported entries that are not stored yet, each to its conversation. Return how many were added."""

        def add_new(name: str, lines: bytearray) -> bytearray:
            return lines + b"".join(find_new_lines(lines_by_conversation[name], lines))

        return sum(self._replace_lines(lines_by_conversation, add_new))

    def _replace_lines(self, names: Collection[str], replace: Callable[[str, bytearray], bytearray]) -> list[int]:
        """Replace the lines of conversations, all at once. Return by how many entries each has grown."""
        if not names:
            return []
        with self._write_lock, self._lock():
            content, added = self._read_to_change(), list[int]()
            lines = dict(content.lines)
            for name in names:
                old = lines.get(name, bytearray())
                lines[name] = replace(name, old)
                added.append(lines[name].count(b"\n") - old.count(b"\n"))
            lines = {name: new for name, new in lines.items() if new or name not in names}
            if lines != content.lines:
                if not all(lines.get(name, b"").startswith(content.lines.get(name, b"")) for name in content.counts):
                    self._fold(content)  # first, so that no journal brings back what is removed
                self._fold(self._content, lines)
            return added

    def fold(self) -> None:
        """Write everything into the memory file, and remove the journal. The file is then complete by itself."""
        content = self._refresh()
        if content.journal_stamp or content.is_imported:
            with self._write_lock, self._lock():
                self._fold(self._read_to_change())

    def _fold(self, content: _Content, lines: LinesByConversation | None = None) -> None:
        lines = content.lines if lines is None else lines
        stamp = self._replace(self.path, dump(content.document, lines))
        self.completed_syncs, self._has_sync_failed = self.deferred_syncs, False
        if content.journal_stamp:
            with self._write_errors:
                self.journal_path.unlink()
                sync_directory(self.path.parent)
        self._content = _Content(stamp, None, content.document, lines)

    def _replace(self, path: Path, pieces: Iterable[bytes]) -> FileStamp:
        # Only the holder of the lock writes, so one name is enough. The rest of a killed process is overwritten.
        replacement_path = self.path.with_name(f".{self.path.name}.tmp")
        with self._write_errors:
            try:
                replaced = os.stat(path) if path.exists() else None
                stamp = write_replacement(replacement_path, pieces, replaced)
                if replaced is not None:
                    # Readers of the file need the lock too, to wait for a writer.
                    os.chmod(self.lock_path, replaced.st_mode & 0o777)
                os.replace(replacement_path, path)
            except OSError:
                replacement_path.unlink(missing_ok=True)
                raise
            sync_directory(path.parent)
        return stamp

    def _lock(self) -> FileIO:
        """Lock the file against other processes. The caller holds `_write_lock`."""
        with self._write_errors:
            try:
                return lock_file(self.lock_path, is_exclusive=True)
            except FileNotFoundError:
                make_directory(self.path.parent)
                return lock_file(self.lock_path, is_exclusive=True)

    def _read_to_change(self) -> _Content:
        """Read what is new, and give each line of the journal the place of its entry."""
        content = self._read()
        if content.is_displaced:
            additions = (
                encode_addition(name, place, line)
                for name in content.counts
                for place, line in enumerate(bytes(content.lines.get(name, b"")).splitlines(keepends=True))
                if ENTRY_LINE.fullmatch(line)
            )
            content.journal_stamp = self._replace(self.journal_path, chain([self._head], additions))
            content.end, content.tail, content.is_displaced = content.journal_stamp[2], b"", False
        return content


def _read_stamp(path: Path) -> FileStamp | None:
    try:
        return stamp_of(os.stat(path))
    except FileNotFoundError:
        return None
