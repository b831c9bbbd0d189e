"""The answer to an event, as JSON."""

from __future__ import annotations

from typing import Any

from ..answer_parts import AnswerParts
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
    answer = AnswerParts()
    async for event in reply:
        answer.add(event)
        if (state := _STATES.get(event.type)) is None:
            continue
        texts = [part.text for part in answer.parts if part.kind != "data" and part.text and not part.is_cut]
        data = [{"title": part.text or None, "data": part.data} for part in answer.parts if part.kind == "data"]
        found = {"state": state, "text": "\n\n".join(texts), "data": data}
        error = {name: event.data[name] for name in ("code", "message", "incident") if event.data.get(name)}
        return found if state == "completed" else {**found, "error": error}
    return None
