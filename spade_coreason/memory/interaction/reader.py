"""What an agent's memory file and its journal hold: read once, then only what is new."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ...exceptions import MemoryFileError
from . import journal
from .disk import Stamp, Unusable, stamp_of
from .format import AnotherAgents, Memories, new_document, parse, parse_spade_llm, spade_llm_name
from .journal import Read

log = logging.getLogger(__name__)

REMEDY = "repair it, or move it aside to go on with an empty memory"
JOURNAL_REMEDY = "repair it, or move it aside to go on without what was added since the memory file was written"

UNREAD: Stamp = (-1, -1, -1)


@dataclass(slots=True)
class Content:
    """What file and journal held when their stamps were taken."""

    file: Stamp | None = None
    journal: Stamp | None = None
    document: dict[str, Any] = field(default_factory=dict)
    """The document without its memories."""
    memories: Memories = field(default_factory=dict)
    read: Read = field(default_factory=Read)
    """Up to where the journal was read; its memories are among the others."""
    is_imported: bool = False

    @property
    def stamps(self) -> tuple[Stamp | None, Stamp | None]:
        """Of file and journal."""
        return self.file, self.journal


class MemoryReader:
    """Reads the memory of one agent. `content` is what was read last; `refresh` makes it what is there now.

    Reading costs two `stat` as long as nobody has changed anything, and the new end of the journal when something was
    added.
    """

    def __init__(self, path: Path, journal: Path, agent_id: str) -> None:
        self._path = path
        self._journal = journal
        self._agent_id = agent_id
        self.content = Content(file=UNREAD)
        self.reading = Unusable(path, "cannot be read")

    def read_anew(self) -> None:
        """Nothing of what was read counts any more: the next `refresh` reads all of it."""
        self.content = Content(file=UNREAD)

    def stamps(self) -> tuple[Stamp | None, Stamp | None]:
        """Of file and journal as they are now; None for one that is not there."""
        return self._stamp(self._path), self._stamp(self._journal)

    def _stamp(self, path: Path) -> Stamp | None:
        with self.reading:
            try:
                return stamp_of(os.stat(path))
            except FileNotFoundError:
                return None

    def refresh(self, *, is_locked: bool = True) -> Content:
        """What is there now. MemoryFileError for what cannot be understood; whoever `is_locked` sees no writer at work."""
        content, (file, journal_now) = self.content, self.stamps()
        if (file, journal_now) == content.stamps:
            return content
        if not (file == content.file and journal_now and self._read_on(content)):
            content = self.content = self._load()
        if is_locked and content.journal and content.journal[2] > content.read.end:
            left = content.journal[2] - content.read.end
            log.warning(
                "%s: the last line is not whole (%d bytes): an addition was interrupted and never confirmed; it is left out",
                self._journal,
                left,
            )
        return content

    def _read_on(self, content: Content) -> bool:
        """Takes in what was added to the journal; False if it is another journal."""
        known = content.read
        with self._opened(self._journal) as file:
            if file is None:
                return False
            stamp = stamp_of(os.fstat(file.fileno()))
            if content.journal and (stamp[2] <= content.journal[2] or file.read(len(known.head)) != known.head):
                return False
            file.seek(known.end)
            data = file.read()
        more = self._parsed(lambda: journal.read_on(data)) if known.end else self._read_journal(data)
        _add(content.memories, more.memories)
        content.read = journal.Read(known.end + more.end, known.head or more.head, {}, known.is_folded)
        content.journal = stamp
        return True

    def _load(self) -> Content:
        content = Content(document=new_document(self._agent_id))
        with self._opened(self._path) as file:
            if file is None:
                self._import(content)
            else:
                content.file = stamp_of(os.fstat(file.fileno()))
                try:
                    content.document, content.memories = parse(file, self._agent_id)
                except ValueError as error:
                    raise MemoryFileError(self._path, str(error), REMEDY) from error
        with self._opened(self._journal) as file:
            if file is not None:
                content.journal = stamp_of(os.fstat(file.fileno()))
                content.read = self._read_journal(file.read())
                _add(content.memories, content.read.memories)
                content.read.memories = {}
        return content

    def _read_journal(self, data: bytes) -> journal.Read:
        digest = self._digest() if b'\n{"folded":"' in data else None
        return self._parsed(lambda: journal.read(data, self._agent_id, digest))

    def _digest(self) -> str | None:
        with self._opened(self._path) as file:
            return hashlib.sha256(file.read()).hexdigest() if file is not None else None

    def _import(self, content: Content) -> None:
        """Where the agent has no file, one of spade_llm's in the same directory is what it remembers."""
        name = spade_llm_name(self._agent_id)
        if name is None:
            return
        theirs = self._path.with_name(name)
        with self._opened(theirs) as file:
            if file is None:
                return
            try:
                content.memories = parse_spade_llm(file, self._agent_id)
            except AnotherAgents:  # spade_llm gives a_b@c and a@b_c one name
                return
            except ValueError as error:
                raise MemoryFileError(theirs, str(error), REMEDY) from error
        content.is_imported = True
        log.info("%s: imported what spade_llm remembered; that file is kept as it is", theirs)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[BinaryIO | None]:
        with ExitStack() as stack, self.reading:
            try:
                file = stack.enter_context(open(path, "rb"))
            except FileNotFoundError:
                yield None
            else:
                yield file

    def _parsed(self, parse: Callable[[], journal.Read]) -> journal.Read:
        try:
            return parse()
        except ValueError as error:
            raise MemoryFileError(self._journal, str(error), JOURNAL_REMEDY) from error


def _add(memories: Memories, more: Memories) -> None:
    for name, lines in more.items():
        if name in memories:
            memories[name] += lines
        else:
            memories[name] = lines
