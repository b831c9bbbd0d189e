"""JSON that a language model wrote, read as everybody reads it who hears of it afterwards."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import from_json

_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.S)


def value_of(text: str) -> Any:
    """The value. ValueError for what others do not take: NaN, a number without end, half a character, over 200 levels."""
    value = from_json(text.encode(), allow_inf_nan=False)
    json.dumps(value, allow_nan=False)  # 1e999
    return value


def fenced_value_of(text: str) -> Any:
    """The same for a text that may stand in a fence of Markdown."""
    fenced = _FENCE.fullmatch(text)
    return value_of(fenced[1] if fenced else text)


def unescaped(text: str) -> str:
    """A text that is JSON, also in a fence, without the escapes that JSON does without; any other as it is."""
    if "\\" not in text:
        return text
    try:
        value = fenced_value_of(text)
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else text
    except ValueError:
        return text
