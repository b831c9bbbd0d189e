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
_MAX_NUMBER = sys.float_info.max
_KEY_END = re.compile(r'"\s*:')


def parse_foreign_json(text: str) -> Any:
    """Parse JSON. Raise ValueError if it is malformed, exceeds a limit, or has a key twice in one object.

    A number beyond the range of a float is malformed, NaN and Infinity too: no JSON text could repeat them.
    """
    if len(text) > MAX_JSON_CHARACTERS:
        raise ValueError(f"more than {MAX_JSON_CHARACTERS} characters")
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
