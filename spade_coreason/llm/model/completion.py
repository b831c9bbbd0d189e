"""A completion of a language model, built from its deltas (OpenAI chat completions, `chat.completion.chunk`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ..structured import parse_json

_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")
_USAGE_FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(slots=True)
class ToolCall:
    """A call of a tool that a model asks for.

    `arguments` is JSON, or the model's attempt at it. A call with a `refusal` is not run.
    """

    id: str
    name: str = ""
    arguments: str = ""
    refusal: str = ""

    @property
    def message(self) -> dict[str, Any]:
        """The call as the next request repeats it, without odd names and invalid arguments, on which servers fail."""
        arguments = self.arguments if self.arguments and isinstance(self.parsed_arguments, dict) and not self.refusal else "{}"
        return {"id": self.id, "type": "function", "function": {"name": self.valid_name, "arguments": arguments}}

    @property
    def valid_name(self) -> str:
        """The name as a tool can have it."""
        return _INVALID_NAME_CHARACTERS.sub("_", self.name)[:64] or "unknown"

    @property
    def parsed_arguments(self) -> Any:
        """The arguments as a value; None if they are invalid JSON."""
        try:
            return parse_json(self.arguments or "{}")
        except ValueError:
            return None


@dataclass(slots=True)
class Completion:
    """One answer of a model. `finish_reason` is None until its end; `usage` has the server's token counts, if it sent any."""

    model: str
    text: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    chunk_count: int = 0
    character_count: int = 0
    """Characters of its text, its reasoning and its tool calls."""
    _choice_index: int | None = None
    _texts: list[str] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _latest_by_index: dict[int, ToolCall] = field(default_factory=dict)
    _by_id: dict[tuple[int, str], ToolCall] = field(default_factory=dict)

    def dump(self) -> dict[str, Any]:
        """Return a completion that has ended as JSON, for the journal of the turn."""
        calls = [[call.id, call.name, call.arguments] for call in self.tool_calls]
        return {"model": self.model, "text": self.text, "tool_calls": calls, "finish_reason": self.finish_reason}

    @classmethod
    def load(cls, fields: dict[str, Any]) -> Completion:
        """Return the completion that `dump` has written."""
        calls = [ToolCall(*call) for call in fields["tool_calls"]]
        return cls(fields["model"], fields["text"], calls, fields["finish_reason"])

    def add_chunk(self, chunk: Any) -> tuple[str, str]:
        """Add a chunk, and return its text and its reasoning. A part that the server leaves out counts as empty.

        AttributeError, KeyError or TypeError for an invalid chunk.
        """
        self.chunk_count += 1
        if (usage := getattr(chunk, "usage", None)) is not None:
            counted = {name: getattr(usage, name, None) for name in _USAGE_FIELDS}
            self.usage = {name: number for name, number in counted.items() if isinstance(number, int) and number >= 0}
        choices = getattr(chunk, "choices", None)
        if not choices:
            return "", ""
        choice = choices[0]
        number = getattr(choice, "index", None) or 0
        self._choice_index = number if self._choice_index is None else self._choice_index
        if number != self._choice_index:
            return "", ""  # a further answer, which was not requested
        if choice.finish_reason:
            self.finish_reason = str(choice.finish_reason)
        delta = choice.delta
        if delta is None:
            return "", ""
        for fragment in delta.tool_calls or ():
            self._add_call_fragment(fragment)
        text = _require_text(delta.content or getattr(delta, "refusal", None))
        if text:
            self._texts.append(text)
        # DeepSeek and vLLM use the first name, Ollama and OpenRouter the second.
        reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None) or ""
        reasoning = reasoning if isinstance(reasoning, str) else ""
        self.character_count += len(text) + len(reasoning)
        return text, reasoning

    def truncate(self) -> None:
        """End a completion that is too long, and drop its tool calls."""
        self.finish_reason = "length"
        self.tool_calls.clear()

    def close(self) -> None:
        """End the completion after the last chunk."""
        self.text = "".join(self._texts)

    def _add_call_fragment(self, fragment: Any) -> None:
        number = getattr(fragment, "index", None)
        index = number if isinstance(number, int) else 0
        key = (index, _require_text(fragment.id))
        function = fragment.function
        name, arguments = (
            (_require_text(function.name), _require_text(function.arguments)) if function is not None else ("", "")
        )
        call = self._by_id.get(key) or self._latest_by_index.get(index)
        if call is None or self._is_new_call(call, key, name, arguments):
            call = self._start_call(key)
        call.name = call.name or name
        call.arguments += arguments
        self.character_count += len(name) + len(arguments)

    def _is_new_call(self, call: ToolCall, key: tuple[int, str], name: str, arguments: str) -> bool:
        """True if a fragment with the index of a call starts another one.

        Some servers do not number their calls or give them ids. Others give each fragment a new id, or repeat the name.
        """
        if not (name and call.name):
            return False
        return bool(key[1] and key not in self._by_id) or bool(
            arguments and call.arguments and call.parsed_arguments is not None
        )

    def _start_call(self, key: tuple[int, str]) -> ToolCall:
        index, call_id = key
        if not call_id or call_id in self._ids:
            call_id = f"{call_id or 'call'}_{len(self.tool_calls)}"
        self._ids.add(call_id)
        call = ToolCall(call_id)
        self.tool_calls.append(call)
        self._latest_by_index[index] = call
        if key[1]:
            self._by_id[key] = call
        self.character_count += len(call_id)
        return call


def _require_text(value: Any) -> str:
    if value and not isinstance(value, str):
        raise TypeError(f"where a text is to be, there is {type(value).__name__}")
    return value or ""
