"""Chat completions, as OpenAI's clients read them: whole, and as chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .answers import Answer, Piece


class ChatWriter:
    """The chat completion of one request. `created_at` is in seconds."""

    def __init__(self, completion_id: str, model: str, created_at: int, *, includes_usage: bool = False) -> None:
        self._id = completion_id
        self._model = model
        self._created_at = created_at
        self._includes_usage = includes_usage

    def write(self, answer: Answer) -> dict[str, Any]:
        """Return the whole completion."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.thoughts:
            message["reasoning_content"] = answer.thoughts
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return {**self._head("chat.completion"), "choices": [choice], "usage": describe_usage(answer.usage)}

    def begin(self) -> Iterable[dict[str, Any]]:
        """Return the first chunk."""
        yield self._chunk({"role": "assistant", "content": ""})

    def write_pieces(self, pieces: Iterable[Piece]) -> Iterable[dict[str, Any]]:
        """Return the chunks with pieces of the answer."""
        for piece in pieces:
            yield self._chunk({"content" if piece.kind == "text" else "reasoning_content": piece.text})

    def end(self, answer: Answer) -> Iterable[dict[str, Any]]:
        """Return the last chunks."""
        yield self._chunk({}, "stop")
        if self._includes_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": describe_usage(answer.usage)}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        usage = {"usage": None} if self._includes_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created_at, "model": self._model}


def describe_usage(usage: Mapping[str, int] | None) -> dict[str, int]:
    """Return the tokens of an answer in OpenAI's names; zeros if the agent reported none, as clients crash without them."""
    usage = usage or {}
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    total = usage.get("total_tokens", prompt + completion)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
