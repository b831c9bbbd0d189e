"""Values of agents as JSON text. Only values that come back equal are accepted."""

from __future__ import annotations

import json


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
