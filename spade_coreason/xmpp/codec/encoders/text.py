"""Blocks as readable plain text with Message Styling (XEP-0393), for people."""

from __future__ import annotations

import json
from typing import Any

from ....contracts import DataBlock, ThinkingBlock, UserErrorBlock
from ....domain.texts.json_text import read_table
from ..markdown.tables import align_columns, fence_lines
from ..xml import clean


def render_block(block: ThinkingBlock | DataBlock | UserErrorBlock) -> str:
    """Render a block for people; empty for a thought, which shows as typing."""
    if isinstance(block, UserErrorBlock):
        return block.user_message
    if isinstance(block, DataBlock):
        text = _RENDERERS.get(str(block.view_hint), _render_json)(block.data)
        return f"{title}\n{text}" if (title := _title(block.title or "")) else text
    return ""


def render_thought(content: str) -> str:
    """Render a thought in italics, for people who want to read it."""
    # The parser is loaded only if it is needed.
    from ..markdown.spans import EMPHASIS, wrap_in_mark

    return wrap_in_mark(EMPHASIS, content)


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _title(title: str) -> str:
    text = " ".join(clean(title).split())
    return text if "*" in text or not text else f"*{text}*"


def _render_json(data: dict[str, Any]) -> str:
    return "\n".join(fence_lines(json.dumps(data, indent=2, ensure_ascii=False, default=str).split("\n")))


def _list(data: dict[str, Any]) -> str:
    items = data.get("items")
    if not isinstance(items, list):
        return _key_value(data)
    return "\n".join("- " + _scalar(item).replace("\n", "\n  ") for item in items)


def _key_value(data: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {_scalar(value)}" for name, value in data.items())


def _table(data: dict[str, Any]) -> str:
    table = read_table(data)
    if table is None:
        return _render_json(data)
    cells = [table[0], *([_scalar(cell) for cell in row] for row in table[1])]
    # A line break in a cell would break its row.
    return "\n".join(fence_lines(align_columns([[" ".join(cell.splitlines()) for cell in row] for row in cells])))


_RENDERERS = {"TABLE": _table, "LIST": _list, "KEY_VALUE": _key_value, "JSON": _render_json}
