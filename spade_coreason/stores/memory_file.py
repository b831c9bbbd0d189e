"""One agent's memory file on disk: read when it has changed, replaced as a whole under a lock.

A change is written beside the file, flushed and renamed over it, so that at any moment the file is whole. A file that
cannot be understood is never written to.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..exceptions import MemoryFileError, StoreError
from .memory_format import Entry, Interactions, dump, new_document, parse

REMEDY = "repair it, or move it aside to go on with an empty memory"

Stamp: TypeAlias = tuple[int, int, int]
"""Inode, time of the last change in nanoseconds, size: another one after every change."""


@dataclass(frozen=True, slots=True)
class _Content:
    """What the file held when its stamp was taken. Nobody changes it: any thread may read it without a lock."""

    stamp: Stamp | None
    document: dict[str, Any]

    @property
    def interactions(self) -> Interactions:
        interactions: Interactions = self.document["interactions"]
        return interactions


class MemoryFile:
    """The entries of one agent by conversation, in one JSON file that several processes and threads may share.

    Reading costs one `stat` as long as nobody has changed the file. What a person or another program added to the
    document is kept when it is written again.
    """

    def __init__(self, path: Path, agent_id: str) -> None:
        self.path = path
        self.agent_id = agent_id
        self._writing = threading.Lock()
        self._content = self._load()

    def interactions(self) -> Interactions:
        """All entries as they are now, by conversation; not to be changed. MemoryFileError if the file is damaged."""
        return self._current().interactions

    def append(self, conversation_id: str, entry: Entry) -> None:
        """Adds one entry; on return it is on disk. StoreError if it cannot be written; then nothing has changed."""
        with self._exclusively():
            now = self._current()
            entries = [*now.interactions.get(conversation_id, ()), entry]
            self._replace(now, {**now.interactions, conversation_id: entries})

    def remove(self, conversation_id: str) -> bool:
        """Removes a conversation; False if there was none. On return it is gone from disk."""
        if conversation_id not in self.interactions():
            return False
        with self._exclusively():
            now = self._current()
            if conversation_id not in now.interactions:
                return False
            self._replace(now, {name: kept for name, kept in now.interactions.items() if name != conversation_id})
            return True

    def remove_entries(self, conversation_id: str, contents: frozenset[str]) -> int:
        """Removes the entries with these contents, all at once; how many there were."""
        if conversation_id not in self.interactions():
            return 0
        with self._exclusively():
            now = self._current()
            entries = now.interactions.get(conversation_id, [])
            kept = [entry for entry in entries if entry["content"] not in contents]
            if len(kept) < len(entries):
                others = {name: those for name, those in now.interactions.items() if name != conversation_id or kept}
                self._replace(now, {**others, conversation_id: kept} if kept else others)
            return len(entries) - len(kept)

    # Reading

    def _current(self) -> _Content:
        try:
            stamp = _stamp(os.stat(self.path))
        except FileNotFoundError:
            stamp = None
        except OSError as error:
            raise self._unusable("cannot be read", error) from error
        if stamp != self._content.stamp:
            self._content = self._load()
        return self._content

    def _load(self) -> _Content:
        try:
            with open(self.path, "rb") as file:
                stamp = _stamp(os.fstat(file.fileno()))
                data = file.read()
        except FileNotFoundError:
            return _Content(None, new_document(self.agent_id))
        except OSError as error:
            raise self._unusable("cannot be read", error) from error
        try:
            return _Content(stamp, parse(data, self.agent_id))
        except ValueError as error:
            raise MemoryFileError(self.path, str(error), REMEDY) from error

    # Writing

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """One writer among the threads and processes that use this file."""
        with self._writing:
            try:
                _make_directory(self.path.parent)
                # The lock is a file of its own: the memory file is another one after every change. It is never removed,
                # since somebody may be waiting for it.
                lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise self._unusable("cannot be written", error) from error
            try:
                self._lock(lock)
                yield
            finally:
                os.close(lock)  # which also unlocks

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise self._unusable("cannot be locked", error) from error

    def _replace(self, before: _Content, interactions: Interactions) -> None:
        document = {**before.document, "interactions": interactions}
        # Only who holds the lock writes, so one name is enough, and what a killed process left is overwritten.
        beside = self.path.with_name(f".{self.path.name}.tmp")
        try:
            try:
                stamp = self._write(beside, dump(document), before.stamp)
                os.replace(beside, self.path)
            except OSError:
                beside.unlink(missing_ok=True)
                raise
            _sync_directory(self.path.parent)
        except OSError as error:
            raise self._unusable("cannot be written", error) from error
        self._content = _Content(stamp, document)

    def _write(self, beside: Path, data: bytes, before: Stamp | None) -> Stamp:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if before is not None:
                os.fchmod(descriptor, os.stat(self.path).st_mode & 0o777)
                # Inode numbers come back soon, and a clock may stand still or go back: only a time that always grows
                # lets other processes see every change.
                status = os.fstat(descriptor)
                if status.st_mtime_ns <= before[1]:
                    os.utime(descriptor, ns=(status.st_atime_ns, before[1] + 1))
            os.fsync(descriptor)
            return _stamp(os.fstat(descriptor))

    def _unusable(self, what: str, error: OSError) -> StoreError:
        cause = error.strerror or str(error)
        return StoreError(f"{self.path}: {what}: {cause}; what was stored is kept; see to the directory, and try again")


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _make_directory(directory: Path) -> None:
    """Makes it with its parents, for the owner only, so that it is still there after a power cut."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
