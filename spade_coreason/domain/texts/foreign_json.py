"""JSON that another account sent: parsed within limits."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from pydantic_core import from_json

MAX_JSON_CHARACTERS = 16 * 2**20
"""The most characters. A stanza holds fewer; a reply of a peer in fragments may be longer than a stanza."""
MAX_JSON_DEPTH = 64
"""The most arrays and objects within each other."""
MAX_JSON_VALUES = 150_000
"""The most values that peers, MCP servers and models send at once. A table of 10,000 rows by six has 130,000."""
_MAX_NUMBER = sys.float_info.max
_KEY_END = re.compile(r'"\s*:')


class TooManyValuesError(ValueError):
    """JSON has too many values. The text names the limit."""


def check_values(data: bytes, limit: int = MAX_JSON_VALUES, setting: str = "", *, is_event: bool = False) -> None:
    """Raise TooManyValuesError if JSON has more values than a limit, that of `setting` if it has one. It is not parsed.

    A parser takes up to some microseconds for a value, and nothing for a character. Counted are the commas, colons and opening
    brackets outside texts, so that the key of an object is a value too, and a list counts twice. Each line of a server-sent
    event is JSON for itself.
    """
    if 2 * len(data) <= limit or _count_marks(data) <= limit:
        return
    # Some of these are in texts. Readers of events may end a line where others do not, so that such lines are not trusted.
    lines = data.splitlines() if is_event else [data]
    is_ambiguous = is_event and len(data.decode(errors="replace").splitlines()) > len(lines)
    if is_ambiguous or sum(_count_values(line, limit) for line in lines) > limit:
        source = f", the limit {setting}; raise it, or send long data as a file" if setting else ""
        raise TooManyValuesError(f"the JSON has more than {limit:,} values{source}")


def _count_values(data: bytes, limit: int) -> int:
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    # It may be UTF-16, where a letter looks like a quote. An escape counts as a twentieth: each is another piece of a text.
    if b"\0" in data or data.count(b"\\") > 20 * limit or plain.count(b'"') > 2 * limit:
        return limit + 1
    return _count_marks(b"".join(plain.split(b'"')[::2]))


def _count_marks(data: bytes) -> int:
    return sum(map(data.count, (b",", b":", b"[", b"[", b"{")))


def parse_foreign_json(text: str) -> Any:
    """Parse JSON. Raise ValueError if it is malformed, exceeds a limit, or has a key twice in one object.

    A number beyond the range of a float is malformed, NaN and Infinity too: no JSON text could repeat them.
    """
    if len(text) > MAX_JSON_CHARACTERS:
        raise ValueError(f"more than {MAX_JSON_CHARACTERS} characters")
    if len(text) > MAX_JSON_VALUES:
        check_values(text.encode(errors="replace"))
    # The parser ends at 200 levels and at integers of more than 4,300 digits, before they cost anything.
    value = from_json(text, allow_inf_nan=False)
    # Of equal keys it keeps the last one, where another reader may keep the first. A hook for the pairs of each object takes
    # a slower parser. So the keys are counted in the text and in the value. The first count is never too low; it is too high
    # for equal keys, and for a string that looks like a key. Only then does the slower parser decide.
    if len(_KEY_END.findall(text)) != _count_keys(value):
        json.loads(text, object_pairs_hook=_require_unique_keys)
    return value


def _count_keys(value: Any) -> int:
    """Return the number of keys in all objects. Raise ValueError if a number is too large, or the value is too deep."""
    count = 0
    level: list[Any] = [[value]]
    for _ in range(MAX_JSON_DEPTH + 1):
        inner: list[Any] = []
        for container in level:
            if type(container) is dict:
                count += len(container)
                container = container.values()
            for item in container:
                kind = type(item)
                if kind is dict or kind is list:
                    inner.append(item)
                elif (kind is int or kind is float) and not -_MAX_NUMBER <= item <= _MAX_NUMBER:
                    raise ValueError("a number is beyond the range of a float")
        if not inner:
            return count
        level = inner
    raise ValueError(f"more than {MAX_JSON_DEPTH} levels")


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("an object has the same key twice")
