"""A streamed reply of a language model, put together from its deltas (OpenAI chat completions, `chat.completion.chunk`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(slots=True)
class ToolCall:
    """What a model wants called; `arguments` is JSON, or what it took for it."""

    id: str
    name: str = ""
    arguments: str = ""

    @property
    def message(self) -> dict[str, Any]:
        """As the next request says it again. Arguments that are no JSON object are left out: some servers fail on them."""
        arguments = self.arguments if isinstance(self.parsed, dict) else "{}"
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}

    @property
    def parsed(self) -> Any:
        """The arguments; None where they are no JSON."""
        try:
            return json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None


@dataclass(slots=True)
class Reply:
    """What a model said. `finish` is None until it has ended; `usage` has the tokens that the server counted, if it did."""

    model: str
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    _texts: list[str] = field(default_factory=list)
    _places: dict[int, ToolCall] = field(default_factory=dict)

    def take(self, chunk: Any) -> tuple[str, str]:
        """Takes a chunk; gives its text and its reasoning. Whatever a server leaves out of one is as good as empty."""
        self.chunks += 1
        if (usage := getattr(chunk, "usage", None)) is not None:
            counted = {name: getattr(usage, name, None) for name in _USAGE}
            self.usage = {name: number for name, number in counted.items() if isinstance(number, int)}
        choices = getattr(chunk, "choices", None)
        if not choices:
            return "", ""
        choice = choices[0]
        if choice.finish_reason:
            self.finish = str(choice.finish_reason)
        delta = choice.delta
        if delta is None:
            return "", ""
        for fragment in delta.tool_calls or ():
            self._take_fragment(fragment)
        text = delta.content or getattr(delta, "refusal", None) or ""
        if text:
            self._texts.append(text)
        # The first is DeepSeek's and vLLM's name for it, the second Ollama's and OpenRouter's.
        return text, getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None) or ""

    def end(self) -> None:
        """After the last chunk."""
        self.text = "".join(self._texts)

    def _take_fragment(self, fragment: Any) -> None:
        index = fragment.index if isinstance(fragment.index, int) else 0
        call = self._places.get(index)
        # Some servers give every call of a reply the same index; a new id is a new call.
        if call is None or (fragment.id and fragment.id != call.id and call.name):
            call = ToolCall(fragment.id or f"call_{len(self.calls)}")
            self._places[index] = call
            self.calls.append(call)
        function = fragment.function
        if function is not None:
            call.name = call.name or function.name or ""
            call.arguments += function.arguments or ""
