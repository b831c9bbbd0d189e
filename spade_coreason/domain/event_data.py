"""The events of a turn as programs receive them: a type and its data, which are JSON (docs/reference/events.md)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ..contracts import ErrorCode
from .messages import (
    BlockEmitted,
    Completed,
    Failed,
    Parked,
    Refused,
    Repeated,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TextEmitted,
    TurnEvent,
    derive_part_id,
)


def event_data(event: TurnEvent, key: UUID) -> tuple[str, dict[str, Any]]:
    """Return the type (without its prefix) and the data of an event. `key` is that of the request."""
    match event:
        case StreamChunk(stream_id, seq, chunk):
            return "stream.chunk", {"stream_id": stream_id, "seq": seq, "chunk": chunk}
        case StreamStarted(stream_id, title):
            return "stream.start", {"stream_id": stream_id, "title": title}
        case StreamEnded(stream_id):
            return "stream.end", {"stream_id": stream_id}
        case StreamAborted(stream_id, reason, replacement):
            replacement_data = {} if replacement is None else {"replacement": replacement}
            return "stream.abort", {"stream_id": stream_id, "reason": reason, **replacement_data}
        case TextEmitted(content, number, _, _, choices):
            choice_data = {"choices": [{"value": value, "label": label} for value, label in choices]} if choices else {}
            return "block.markdown", {
                "id": derive_part_id(key, number),
                "block_type": "MARKDOWN",
                "content": content,
                **choice_data,
            }
        case BlockEmitted(block):
            return f"block.{block.block_type.lower()}", block.dump()
        case Repeated():
            return "request.repeated", {}
        case Parked():
            return "request.parked", {}
        case Completed(conversation_id, state, usage):
            usage_data = {} if usage is None else {"usage": dict(usage)}
            return "request.completed", {"conversation_id": conversation_id, "state": state, **usage_data}
        case Failed(message, code, recoverable, incident):
            failure = {"message": message, "code": code, "recoverable": recoverable, "incident": incident}
            return "request.failed", {**failure, "has_asked": True} if event.has_asked else failure
        case Refused(message, code, retry_after_s):
            refusal = {"message": message, "code": code, "retry_after_s": retry_after_s}
            if code == ErrorCode.TOO_MANY_REQUESTS:
                refusal["condition"] = "resource-constraint"  # as a stanza error names it (RFC 6120, 8.3.3.18)
            return "request.refused", refusal
