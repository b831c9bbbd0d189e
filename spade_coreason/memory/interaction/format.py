"""The name and the format of an agent's memory file (seed: Memory API, Storage Format): pure functions, no I/O.

In memory a conversation is its text from the file without white space: one line of JSON per entry. That takes less space than
the file in any alphabet, and it is written back exactly as it was read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO, TypeAlias, TypedDict

from pydantic_core import from_json, to_json


class Entry(TypedDict):
    """One stored fact. `timestamp` is UTC with milliseconds: 2025-01-09T10:30:00.000Z."""

    content: str
    timestamp: str


LinesByConversation: TypeAlias = dict[str, bytearray]

"""The lines of the entries by conversation id, both in the order in which they were added."""

MAX_FILE_NAME_CHARACTERS = 195  # file systems allow 255 bytes; the rest is for suffixes

ESCAPED_CHARACTERS = re.compile(r"[^a-z0-9@._-]|^\.")

JSON_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'

"""A regular expression for a JSON string."""

# The file as `dump` writes it, line by line. `parse` reads a file in any other layout as a whole, which takes several times
# the memory and the time.
_HEAD = re.compile(rb'\{\n    "agent_id": (%b),\n    "interactions": \{\n' % JSON_STRING)

_CONVERSATION = re.compile(rb"        (%b): \[\n" % JSON_STRING)

_ENTRY = re.compile(
    rb' {12}\{\n {16}"content": (%b),\n {16}"timestamp": (%b)\n {12}\}(?:(,)\n|\n {8}\](,?)\n)' % (JSON_STRING, JSON_STRING)
)

_TAIL = b"    }\n}\n"

ENTRY_LINE = re.compile(rb'\{"content":(%b),"timestamp":(%b)\}\n' % (JSON_STRING, JSON_STRING))

_INDENTED = rb"""            {
                "content": \1,
                "timestamp": \2
            },
"""

_CHUNK_BYTES = 1 << 18

"""The number of bytes that are read or indented at once."""


def file_name(agent_id: str) -> str:
    """Return the name of an agent's file. It differs for every agent, even on file systems that ignore case.

    A JID in lower case stays readable: `notes@example.org.json`. Other characters are percent-encoded in lower case. A name
    that is too long is cut, and ends in `~` and a SHA-256 of the whole id, which no short name contains.
    """
    name = ESCAPED_CHARACTERS.sub(lambda match: "".join(f"%{byte:02x}" for byte in match[0].encode()), agent_id)
    if len(name) > MAX_FILE_NAME_CHARACTERS:
        digest = hashlib.sha256(agent_id.encode()).hexdigest()
        name = f"{name[: MAX_FILE_NAME_CHARACTERS - len(digest) - 1]}~{digest}"
    return f"{name}.json"


class ForeignFileError(ValueError):
    """The file belongs to another agent."""


# Entries


def format_timestamp(moment: datetime) -> str:
    """Format a moment like 2025-01-09T10:30:00.000Z. Without a time zone it is local time."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode_entry(entry: Mapping[str, Any]) -> bytes:
    """Encode an entry as a line."""
    return _encode_json(entry) + b"\n"


def decode_entries(lines: bytes | bytearray) -> list[Entry]:
    """Decode the entries in lines."""
    array = b"[%b]" % bytes(lines).replace(b"\n", b",")[:-1]
    entries: list[Entry]
    try:
        entries = from_json(array)
    except ValueError:  # another program's file may have escaped lone surrogates
        entries = json.loads(array)
    return entries


def find_new_lines(lines: bytes | bytearray, stored: bytes | bytearray) -> list[bytes]:
    """Return the lines that are not among the stored ones."""
    known = set(bytes(stored).splitlines())
    return [line for line in bytes(lines).splitlines(keepends=True) if line[:-1] not in known]


def find_new(lines_by_conversation: LinesByConversation, read_lines: Callable[[str], bytes]) -> LinesByConversation:
    """Return the entries that are not stored yet. `read_lines` returns the stored lines of a conversation."""
    found = {name: find_new_lines(lines, read_lines(name)) for name, lines in lines_by_conversation.items()}
    return {name: bytearray(b"".join(new)) for name, new in found.items() if new}


# Writing


def new_document(agent_id: str) -> dict[str, Any]:
    """Return the document of an agent without entries."""
    return {"agent_id": agent_id, "interactions": {}}


def dump(document: Mapping[str, Any], lines_by_conversation: LinesByConversation) -> Iterator[bytes]:
    """Yield the text of the file, piece by piece: the document with these entries."""
    separator = b"{\n"
    for key, value in document.items():
        yield b"%b    %b: " % (separator, _encode_json(key))
        if key != "interactions":
            yield _encode_indented(value, 4)
        elif not lines_by_conversation:
            yield b"{}"
        else:
            yield from _dump_conversations(lines_by_conversation)
        separator = b",\n"
    yield b"\n}\n"


def _dump_conversations(lines_by_conversation: LinesByConversation) -> Iterator[bytes]:
    separator = b"{\n"
    for conversation_id, lines in lines_by_conversation.items():
        yield b"%b        %b: [" % (separator, _encode_json(conversation_id))
        separator = b",\n"
        if not lines:
            yield b"]"
            continue
        yield b"\n"
        begin = 0
        while begin < len(lines):
            end = lines.find(b"\n", min(begin + _CHUNK_BYTES, len(lines) - 1)) + 1
            indented = _indent_lines(bytes(lines[begin:end]))
            yield indented if end < len(lines) else indented[:-2] + b"\n"
            begin = end
        yield b"        ]"
    yield b"\n    }"


def _indent_lines(lines: bytes) -> bytes:
    """Indent entries, with a comma and a line break after each."""
    indented, count = ENTRY_LINE.subn(_INDENTED, lines)
    if count == lines.count(b"\n"):
        return indented
    return b"".join(b"            %b,\n" % _encode_indented(entry, 12) for entry in decode_entries(lines))


def _encode_indented(value: object, depth: int) -> bytes:
    try:
        # Same text as from json.dumps, which indents in Python code and takes many times as long.
        text = to_json(value, indent=4, inf_nan_mode="constants")
    except ValueError:
        text = json.dumps(value, ensure_ascii=False, indent=4).encode("utf-8", "backslashreplace")
    return text.replace(b"\n", b"\n" + b" " * depth)


def _encode_json(value: object) -> bytes:
    try:
        return to_json(value, inf_nan_mode="constants")
    except ValueError:
        # Entries of ours have no lone surrogates. Another program's file may have escaped ones, which stay escaped.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


# Reading


def parse(file: BinaryIO, agent_id: str) -> tuple[dict[str, Any], LinesByConversation]:
    """Parse a file of this agent. Return its document, including keys of other programs, and its entries.

    Raises ValueError if the file is invalid or another agent's. The message continues a sentence that begins with the file's
    name. Raises OSError if it cannot be read.
    """
    lines_by_conversation = _OwnFormatParser(file).parse(agent_id)
    if lines_by_conversation is not None:
        return new_document(agent_id), lines_by_conversation
    file.seek(0)
    document = _parse_document(file.read(), agent_id)
    interactions, document["interactions"] = document["interactions"], {}
    return document, {name: bytearray().join(map(encode_entry, entries)) for name, entries in interactions.items()}


class _OwnFormatParser:
    """A parser of files in exactly the layout of `dump`. It reads piece by piece, so that a file is never in memory twice."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = file.read(_CHUNK_BYTES)
        self._position = 0

    def parse(self, agent_id: str) -> LinesByConversation | None:
        """Return the entries, or None if the file has another layout."""
        head = self._match_next(_HEAD)
        if head is None or head[1] != _encode_json(agent_id):
            return None
        lines_by_conversation: LinesByConversation = {}
        try:
            while True:
                name = self._match_next(_CONVERSATION)
                if name is None or (conversation_id := decode_string(name[1])) in lines_by_conversation:
                    return None
                has_more = self._read_entries(lines_by_conversation.setdefault(conversation_id, bytearray()))
                if not has_more:
                    is_whole = has_more is not None and self._buffer[self._position :] + self._file.read() == _TAIL
                    return lines_by_conversation if is_whole else None
        except UnicodeDecodeError:
            return None

    def _read_entries(self, lines: bytearray) -> bool | None:
        """Append the entries of a conversation to `lines`.

        Return True if another conversation follows, False if not, and None if the entries have another layout.
        """
        while match := self._match_next(_ENTRY):
            content, timestamp, comma, end = match.groups()
            entry = b'{"content":%b,"timestamp":%b}\n' % (content, timestamp)
            entry.decode()  # raises UnicodeDecodeError if it is not UTF-8
            lines += entry
            if not comma:
                return bool(end)
        return None

    def _match_next(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Match at the end of the last match, and read more of the file until there is one."""
        while (match := pattern.match(self._buffer, self._position)) is None:
            more = self._file.read(max(_CHUNK_BYTES, len(self._buffer)))
            if not more:
                return None
            self._buffer = self._buffer[self._position :] + more
            self._position = 0
        self._position = match.end()
        return match


def decode_string(raw: bytes) -> str:
    """Decode a JSON string (a match of `JSON_STRING`)."""
    text: str = json.loads(raw) if b"\\" in raw else raw[1:-1].decode()
    return text


def _parse_document(data: bytes, agent_id: str) -> dict[str, Any]:
    try:
        document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_require_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ValueError("is empty" if not data.strip() else f"is not complete JSON ({error})") from error
    if isinstance(document, dict) and document.get("agent_id") != agent_id:
        raise ForeignFileError(f"belongs to the agent {document.get('agent_id')!r}, not to {agent_id!r}")
    problem = _find_problem(document)
    if problem:
        raise ValueError(problem)
    checked: dict[str, Any] = document
    return checked


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):  # the first of two equal keys would be lost silently
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {duplicate!r} is defined twice")
    return unique


def _find_problem(document: object) -> str | None:
    """Return the reason why a document is no memory file, or None."""
    if not isinstance(document, dict):
        return "contains no JSON object"
    interactions = document.get("interactions")
    if not isinstance(interactions, dict):
        return 'has no object "interactions"'
    for conversation_id, entries in interactions.items():
        if not isinstance(entries, list):
            return f"has no list of entries for the conversation {conversation_id!r}"
        for number, entry in enumerate(entries, 1):
            for key in Entry.__annotations__:
                if not (isinstance(entry, dict) and isinstance(entry.get(key), str)):
                    return f"has no {key} in entry {number} of the conversation {conversation_id!r}"
    return None


MAX_SPADE_LLM_NAME_BYTES = 255


def spade_llm_file_name(agent_id: str) -> str | None:
    """Return the name that spade_llm gives an agent's file, or None if no file can have it. Several agents may share one."""
    name = agent_id.replace("@", "_").replace("/", "_") + "_interactions.json"
    return None if "\0" in name or len(name.encode()) > MAX_SPADE_LLM_NAME_BYTES else name


def parse_spade_llm(file: BinaryIO, agent_id: str) -> LinesByConversation:
    """Parse a file that spade_llm wrote on this machine. Its timestamps have no zone and are local; they become UTC.

    Raises ValueError as `parse` does.
    """
    _, lines_by_conversation = parse(file, agent_id)
    return {
        name: bytearray().join(
            encode_entry({**entry, "timestamp": _timestamp_in_utc(entry["timestamp"])}) for entry in decode_entries(lines)
        )
        for name, lines in lines_by_conversation.items()
    }


def _timestamp_in_utc(timestamp: str) -> str:
    try:
        return format_timestamp(datetime.fromisoformat(timestamp))
    except ValueError:  # another program's format stays as it is
        return timestamp
