"""Values of agents as JSON text. Only values that come back equal are accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dump_json(value: object, *, is_canonical: bool = False) -> str:
    """Return the JSON text of a value. ValueError for a value that is no JSON, or cannot be stored.

    The canonical text is the same for equal values: it has sorted keys and no spaces.
    """
    try:
        text = json.dumps(
            value,
            ensure_ascii=False,
            allow_nan=False,
            sort_keys=is_canonical,
            separators=(",", ":") if is_canonical else None,
        )
        _require_text_keys(value)
        text.encode()  # a lone surrogate cannot be stored
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return text


def read_json(text: str) -> Any:
    """Return the value of a JSON text; the text itself if it is nested deeper, or has longer numbers, than Python reads."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_table(data: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]] | None:
    """Return the columns of a data block, and the cells of its rows; None if it is no table."""
    columns, rows = data.get("columns"), data.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return None
    if any(isinstance(column, list | dict) for column in columns):
        return None
    return [str(column) for column in columns], [[row.get(column, "") for column in columns] for row in rows]


def _require_text_keys(value: object) -> None:
    """Raise TypeError if an object has keys that are no texts.

    `json.dumps` writes such keys as texts, so that other keys would come back.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the keys of an object must be texts, not {key!r}")
            _require_text_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _require_text_keys(inner)
