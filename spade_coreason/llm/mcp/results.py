"""The result of an MCP tool as a text for a language model."""

from __future__ import annotations

import json
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

_MAX_COMPARED_CHARACTERS = 2**20


def render_result(result: CallToolResult) -> str:
    """Join the texts of a result, and its data unless a text repeats them.

    Images, sounds and files are named, not shown.
    """
    texts = [_render_part(part) for part in result.content]
    data = result.structured_content
    is_wrapped_text = isinstance(data, dict) and data.keys() == {"result"} and texts  # servers wrap plain values like this
    if data is not None and not is_wrapped_text and not any(_has_same_data(part, data) for part in result.content):
        texts.append(json.dumps(data, ensure_ascii=False))
    return "\n".join(texts) or "(no text)"


def _render_part(part: Any) -> str:
    match part:
        case TextContent(text=text) | EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case ImageContent(data=data, mime_type=kind) | AudioContent(data=data, mime_type=kind):
            return f"({kind}, {_format_size(data)}; not shown)"
        case EmbeddedResource(resource=BlobResourceContents(uri=uri, blob=blob, mime_type=kind)):
            return f"({uri}: {kind or 'a file'}, {_format_size(blob)}; not shown)"
        case ResourceLink(name=name, uri=uri):
            return f"(a link, {name}: {uri})"
        case _:
            return f"({type(part).__name__}; not shown)"


def _has_same_data(part: Any, data: Any) -> bool:
    if not isinstance(part, TextContent) or len(part.text) > _MAX_COMPARED_CHARACTERS:
        return False
    try:
        return bool(json.loads(part.text) == data)
    except ValueError:
        return False


def _format_size(encoded: str) -> str:
    return f"{len(encoded) * 3 // 4:,} bytes"
