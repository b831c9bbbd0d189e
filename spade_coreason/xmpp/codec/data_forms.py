"""Data blocks as data forms (XEP-0004) of type `result`, for programs that do not read our JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .markdown.tables import table_of
from .namespaces import FORM_NAMESPACE, RESULT_FORM, SPADE_FORM
from .xml import clean, escape, escape_attribute


def result_form(block: Mapping[str, Any]) -> str:
    """Encode a dumped data block that is a table, or keys with values, as a form.

    The result is empty for other data, and if two fields would have the same name. A list of values, or a text of
    several lines, becomes a field with several values. Null becomes a field without a value. Other objects are JSON.
    """
    title = clean(block.get("title") or "")
    if title == SPADE_FORM:
        return ""  # a SPADE agent would read the form as its metadata
    encode = _ENCODERS.get(block["view_hint"])
    inner = encode(block["data"]) if encode is not None else ""
    if not inner:
        return ""
    head = f"<title>{escape(title)}</title>" if title else ""
    return f"<x xmlns='{FORM_NAMESPACE}' type='{RESULT_FORM}'>{head}{inner}</x>"


def _key_value(data: dict[str, Any]) -> str:
    if not _are_valid_names(data):
        return ""
    return "".join(
        f"<field var='{name}' label='{name}' type='{_type([value])}'>{_values(value)}</field>"
        for name, value in ((escape_attribute(key), value) for key, value in data.items())
    )


def _table(data: dict[str, Any]) -> str:
    table = table_of(data)
    if table is None or not _are_valid_names(map(str, table[0])):
        return ""
    columns, rows = table
    reported = "".join(
        f"<field var='{escape_attribute(str(column))}' label='{escape_attribute(str(column))}'"
        f" type='{_type(row.get(column) for row in rows)}'/>"
        for column in columns
    )
    items = "".join(f"<item>{''.join(_cell(column, row.get(column)) for column in columns)}</item>" for row in rows)
    return f"<reported>{reported}</reported>{items}"


def _cell(column: Any, value: Any) -> str:
    return f"<field var='{escape_attribute(str(column))}'>{_values(value)}</field>"


def _are_valid_names(names: Iterable[str]) -> bool:
    cleaned = [clean(name) for name in names]
    return bool(cleaned) and all(cleaned) and len(set(cleaned)) == len(cleaned)


def _type(values: Iterable[Any]) -> str:
    return "text-multi" if any(len(_texts(value)) > 1 for value in values) else "text-single"


def _values(value: Any) -> str:
    return "".join(f"<value>{escape(text)}</value>" for text in _texts(value))


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return value.splitlines() or [""]
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return [line for item in value for line in _texts(item)]
    return [json.dumps(value, ensure_ascii=False)]


_ENCODERS = {"KEY_VALUE": _key_value, "TABLE": _table}
