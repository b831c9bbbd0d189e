"""Responses, as OpenAI's clients read them: whole, and as a stream of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal
from uuid import UUID

from .answers import Answer, Piece
from .chat import describe_usage
from .errors import AnswerError, response_id

Status = Literal["in_progress", "completed", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


def read_response_id(text: object) -> UUID | None:
    """Return the request of a response; None for another text."""
    if not isinstance(text, str) or not text.startswith("resp_") or len(text) != len("resp_") + 32:
        return None
    try:
        return UUID(hex=text.removeprefix("resp_"))
    except ValueError:
        return None


class ResponseWriter:
    """The response to one request. `created_at` is in seconds."""

    def __init__(self, request_id: UUID, model: str, created_at: int, previous: UUID | None = None) -> None:
        self._request_id = request_id
        self._model = model
        self._created_at = created_at
        self._previous = previous
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._open_kind: str | None = None

    def write(self, answer: Answer, status: Status = "completed", error: AnswerError | None = None) -> dict[str, Any]:
        """Return the whole response."""
        items: list[dict[str, Any]] = []
        if answer.thoughts:
            items.append(self._make_item("thought", len(items), answer.thoughts, "completed"))
        if answer.text or (status == "completed" and not items):
            items.append(self._make_item("text", len(items), answer.text, "completed"))
        if items and status != "completed":
            items[-1]["status"] = "incomplete"
        return self._make_response(status, items, answer.usage, error)

    def begin(self) -> Iterable[dict[str, Any]]:
        """Return the first events."""
        response = self._make_response("in_progress", [])
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def write_pieces(self, pieces: Iterable[Piece]) -> Iterable[dict[str, Any]]:
        """Return the events with pieces of the answer. A change between thoughts and text begins a new item."""
        for piece in pieces:
            if piece.kind != self._open_kind:
                yield from self._close_item()
                yield from self._open_item(piece.kind)
            item = self._items[-1]
            part = (item["content"] if piece.kind == "text" else item["summary"])[0]
            part["text"] += piece.text
            kind = "response.output_text.delta" if piece.kind == "text" else "response.reasoning_summary_text.delta"
            yield self._event(kind, **self._place_of_part(), delta=piece.text, **self._logprobs())

    def end(self, answer: Answer) -> Iterable[dict[str, Any]]:
        """Return the last events."""
        if not self._items:
            yield from self._open_item("text")
        yield from self._close_item()
        yield self._event("response.completed", response=self._make_response("completed", self._items, answer.usage))

    def fail(self, error: AnswerError) -> Iterable[dict[str, Any]]:
        """Return the last events of a stream that fails. Its last item stays incomplete."""
        yield from self._close_item("incomplete")
        if error.code == "interrupted":  # the response goes on, and can be fetched
            yield self._event("error", code=error.code, message=error.detail, param=None, error=error.body)
            return
        status: Status = "cancelled" if error.code == "cancelled" else "failed"
        yield self._event("response.failed", response=self._make_response(status, self._items, None, error))

    def _open_item(self, kind: Literal["text", "thought"]) -> Iterable[dict[str, Any]]:
        self._open_kind = kind
        item = self._make_item(kind, len(self._items), "", "in_progress")
        part = (item["content"] if kind == "text" else item["summary"])[0]
        shown = {**item, ("content" if kind == "text" else "summary"): []}
        self._items.append(item)
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=shown)
        name = "response.content_part.added" if kind == "text" else "response.reasoning_summary_part.added"
        yield self._event(name, **self._place_of_part(), part=dict(part))

    def _close_item(self, status: ItemStatus = "completed") -> Iterable[dict[str, Any]]:
        if self._open_kind is None:
            return
        item, is_text = self._items[-1], self._open_kind == "text"
        part = (item["content"] if is_text else item["summary"])[0]
        item["status"] = status
        place = self._place_of_part()
        name = "response.output_text.done" if is_text else "response.reasoning_summary_text.done"
        yield self._event(name, **place, text=part["text"], **self._logprobs())
        name = "response.content_part.done" if is_text else "response.reasoning_summary_part.done"
        yield self._event(name, **place, part=dict(part))
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)
        self._open_kind = None

    def _logprobs(self) -> dict[str, list[Any]]:
        return {"logprobs": []} if self._open_kind == "text" else {}

    def _place_of_part(self) -> dict[str, Any]:
        index = "content_index" if self._open_kind == "text" else "summary_index"
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1, index: 0}

    def _make_item(self, kind: str, index: int, text: str, status: ItemStatus) -> dict[str, Any]:
        if kind == "thought":
            name = f"rs_{self._request_id.hex}_{index}"
            return {"id": name, "type": "reasoning", "summary": [{"type": "summary_text", "text": text}], "status": status}
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        name = f"msg_{self._request_id.hex}_{index}"
        return {"id": name, "type": "message", "role": "assistant", "status": status, "content": [part]}

    def _make_response(
        self,
        status: Status,
        items: list[dict[str, Any]],
        usage: Mapping[str, int] | None = None,
        error: AnswerError | None = None,
    ) -> dict[str, Any]:
        return {
            "id": response_id(self._request_id),
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "model": self._model,
            "output": list(items),
            "error": None if error is None else {"code": "server_error", "message": error.detail, **error.fields},
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": False,
            "previous_response_id": None if self._previous is None else response_id(self._previous),
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": None,
            "usage": _describe_usage(usage),
        }

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}


def _describe_usage(usage: Mapping[str, int] | None) -> dict[str, Any]:
    found = describe_usage(usage)
    return {
        "input_tokens": found["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": found["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": found["total_tokens"],
    }
