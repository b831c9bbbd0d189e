"""JSON that a language model wrote, read as everybody reads it who hears of it afterwards."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json


def value_of(text: str) -> Any:
    """The value. ValueError for what others do not take: NaN, a number without end, half a character, over 200 levels."""
    value = from_json(text.encode(), allow_inf_nan=False)
    json.dumps(value, allow_nan=False)  # 1e999
    return value
