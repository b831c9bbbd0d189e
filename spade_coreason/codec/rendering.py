"""Blocks as readable plain text, for people."""

from __future__ import annotations

import json
from typing import Any

from ..contracts import DataBlock, MarkdownBlock, ThinkingBlock, UserErrorBlock


def block_text(block: ThinkingBlock | DataBlock | MarkdownBlock | UserErrorBlock) -> str:
    """What a person reads of a block; empty for a thought, which shows as typing."""
    if isinstance(block, MarkdownBlock):
        return block.content
    if isinstance(block, UserErrorBlock):
        return block.user_message
    if isinstance(block, DataBlock):
        text = _RENDERERS.get(str(block.view_hint), _fenced)(block.data)
        return f"{block.title}\n{text}" if block.title else text
    return ""


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _fenced(data: dict[str, Any]) -> str:
    return "```\n" + json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n```"


def _list(data: dict[str, Any]) -> str:
    items = data.get("items")
    if not isinstance(items, list):
        return _key_value(data)
    return "\n".join(f"- {_scalar(item)}" for item in items)


def _key_value(data: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {_scalar(value)}" for name, value in data.items())


def _table(data: dict[str, Any]) -> str:
    columns, rows = data.get("columns"), data.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        return _fenced(data)
    if any(isinstance(c, list | dict) for c in columns):
        return _fenced(data)
    lines = [[str(c) for c in columns]] + [[_scalar(row.get(c, "")) for c in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    aligned = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "```\n" + "\n".join(aligned) + "\n```"


_RENDERERS = {"TABLE": _table, "LIST": _list, "KEY_VALUE": _key_value, "JSON": _fenced}
