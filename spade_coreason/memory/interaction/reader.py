"""Reading an agent's memory file and its journal: once completely, then only the additions."""

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
from .disk import FileStamp, OSErrorTranslator, stamp_of
from .format import ForeignFileError, LinesByConversation, new_document, parse, parse_spade_llm, spade_llm_file_name
from .journal import ParsedJournal

log = logging.getLogger(__name__)

REMEDY = "repair it, or move it away to continue with an empty memory"
JOURNAL_REMEDY = "repair it, or move it away to continue without the entries added since the memory file was written"

UNREAD_STAMP: FileStamp = (-1, -1, -1)


@dataclass(slots=True)
class MemoryContent:
    """The content of file and journal at the time of their stamps."""

    file_stamp: FileStamp | None = None
    journal_stamp: FileStamp | None = None
    document: dict[str, Any] = field(default_factory=dict)
    """The document without its memories."""
    lines_by_conversation: LinesByConversation = field(default_factory=dict)
    parsed_journal: ParsedJournal = field(default_factory=ParsedJournal)
    """The position up to which the journal was read. Its entries are in `lines_by_conversation`."""
    is_imported: bool = False

    @property
    def stamps(self) -> tuple[FileStamp | None, FileStamp | None]:
        """The stamps of file and journal. None for one that does not exist."""
        return self.file_stamp, self.journal_stamp


class MemoryReader:
    """The reader of one agent's memory. `content` is the state of the last read; `refresh` brings it up to date.

    Without a change a refresh costs two `stat` calls. After an addition it also reads the new end of the journal.
    """

    def __init__(self, path: Path, journal_path: Path, agent_id: str) -> None:
        self._path = path
        self._journal_path = journal_path
        self._agent_id = agent_id
        self.content = MemoryContent(file_stamp=UNREAD_STAMP)
        self.read_errors = OSErrorTranslator(path, "cannot be read")

    def invalidate(self) -> None:
        """Discard `content`: the next `refresh` reads everything."""
        self.content = MemoryContent(file_stamp=UNREAD_STAMP)

    def current_stamps(self) -> tuple[FileStamp | None, FileStamp | None]:
        """Return the stamps of file and journal as they are now. None for one that does not exist."""
        return self._read_stamp(self._path), self._read_stamp(self._journal_path)

    def _read_stamp(self, path: Path) -> FileStamp | None:
        with self.read_errors:
            try:
                return stamp_of(os.stat(path))
            except FileNotFoundError:
                return None

    def refresh(self, *, is_locked: bool = True) -> MemoryContent:
        """Return the current content. Raises MemoryFileError for a file that cannot be parsed.

        `is_locked`: the caller holds the lock, so that no writer is at work.
        """
        content, (file_stamp, journal_stamp) = self.content, self.current_stamps()
        if (file_stamp, journal_stamp) == content.stamps:
            return content
        if not (file_stamp == content.file_stamp and journal_stamp and self._read_appended(content)):
            content = self.content = self._load()
        if is_locked and content.journal_stamp and content.journal_stamp[2] > content.parsed_journal.end:
            unread_bytes = content.journal_stamp[2] - content.parsed_journal.end
            log.warning(
                "%s: ignored the incomplete last line (%d bytes): its write was interrupted and never confirmed",
                self._journal_path,
                unread_bytes,
            )
        return content

    def _read_appended(self, content: MemoryContent) -> bool:
        """Read the additions to the journal. Return False if it is another journal than before."""
        parsed = content.parsed_journal
        with self._open_if_there(self._journal_path) as file:
            if file is None:
                return False
            stamp = stamp_of(os.fstat(file.fileno()))
            if content.journal_stamp and (stamp[2] <= content.journal_stamp[2] or file.read(len(parsed.head)) != parsed.head):
                return False
            file.seek(parsed.end)
            data = file.read()
        appended = self._parse_or_raise(lambda: journal.parse_appended(data)) if parsed.end else self._read_journal(data)
        _append_lines(content.lines_by_conversation, appended.lines_by_conversation)
        content.parsed_journal = journal.ParsedJournal(
            parsed.end + appended.end, parsed.head or appended.head, {}, parsed.is_folded
        )
        content.journal_stamp = stamp
        return True

    def _load(self) -> MemoryContent:
        content = MemoryContent(document=new_document(self._agent_id))
        with self._open_if_there(self._path) as file:
            if file is None:
                self._import(content)
            else:
                content.file_stamp = stamp_of(os.fstat(file.fileno()))
                try:
                    content.document, content.lines_by_conversation = parse(file, self._agent_id)
                except ValueError as error:
                    raise MemoryFileError(self._path, str(error), REMEDY) from error
        with self._open_if_there(self._journal_path) as file:
            if file is not None:
                content.journal_stamp = stamp_of(os.fstat(file.fileno()))
                content.parsed_journal = self._read_journal(file.read())
                _append_lines(content.lines_by_conversation, content.parsed_journal.lines_by_conversation)
                content.parsed_journal.lines_by_conversation = {}
        return content

    def _read_journal(self, data: bytes) -> journal.ParsedJournal:
        digest = self._file_digest() if b'\n{"folded":"' in data else None
        return self._parse_or_raise(lambda: journal.parse_journal(data, self._agent_id, digest))

    def _file_digest(self) -> str | None:
        with self._open_if_there(self._path) as file:
            return hashlib.sha256(file.read()).hexdigest() if file is not None else None

    def _import(self, content: MemoryContent) -> None:
        """Import the file of spade_llm in the same directory, because the agent has no file of its own."""
        name = spade_llm_file_name(self._agent_id)
        if name is None:
            return
        spade_llm_path = self._path.with_name(name)
        with self._open_if_there(spade_llm_path) as file:
            if file is None:
                return
            try:
                content.lines_by_conversation = parse_spade_llm(file, self._agent_id)
            except ForeignFileError:  # spade_llm gives a_b@c and a@b_c one name
                return
            except ValueError as error:
                raise MemoryFileError(spade_llm_path, str(error), REMEDY) from error
        content.is_imported = True
        log.info("%s: imported the memory file of spade_llm, which is left unchanged", spade_llm_path)

    @contextmanager
    def _open_if_there(self, path: Path) -> Iterator[BinaryIO | None]:
        with ExitStack() as stack, self.read_errors:
            try:
                file = stack.enter_context(open(path, "rb"))
            except FileNotFoundError:
                yield None
            else:
                yield file

    def _parse_or_raise(self, parse: Callable[[], journal.ParsedJournal]) -> journal.ParsedJournal:
        try:
            return parse()
        except ValueError as error:
            raise MemoryFileError(self._journal_path, str(error), JOURNAL_REMEDY) from error


def _append_lines(lines_by_conversation: LinesByConversation, appended: LinesByConversation) -> None:
    for name, lines in appended.items():
        if name in lines_by_conversation:
            lines_by_conversation[name] += lines
        else:
            lines_by_conversation[name] = lines
