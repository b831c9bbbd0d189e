"""The answer to an event, as JSON."""

from __future__ import annotations

from typing import Any

from ..channel import DoorReply

_STATES = {
    "request.completed": "completed",
    "request.failed": "failed",
    "request.cancelled": "cancelled",
}


async def read_answer(reply: DoorReply) -> dict[str, Any] | None:
    """Return an answer with its `state`, the `text` in Markdown, and `data`: a list of objects with `title` and `data`.

    One that failed has an `error` with `code` and `message`. None if the answer is not complete, or cannot be read now.
    """
    texts: list[str] = []
    streams: dict[str, int] = {}
    data: list[dict[str, Any]] = []
    async for event in reply:
        values = event.data
        match event.type:
            case "block.markdown" | "block.error":
                texts.append(values.get("content") or values.get("user_message") or "")
            case "block.data":
                data.append({"title": values.get("title"), "data": values["data"]})
            case "stream.start":
                streams[values["stream_id"]] = len(texts)
                texts.append("")
            case "stream.chunk":
                texts[streams[values["stream_id"]]] += values["chunk"]
            case "stream.abort":
                texts[streams[values["stream_id"]]] = values.get("replacement") or ""
            case kind if kind in _STATES:
                answer = {"state": _STATES[kind], "text": "\n\n".join(filter(None, texts)), "data": data}
                error = {name: values[name] for name in ("code", "message", "incident") if values.get(name)}
                return answer if kind == "request.completed" else {**answer, "error": error}
    return None
