"""A streamed reply of a language model, put together from its deltas (OpenAI chat completions, `chat.completion.chunk`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ..structured import value_of

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(slots=True)
class ToolCall:
    """What a model wants called; `arguments` is JSON, or what it took for it. One with a `refusal` is not made."""

    id: str
    name: str = ""
    arguments: str = ""
    refusal: str = ""

    @property
    def message(self) -> dict[str, Any]:
        """As the next request says it again, without what servers fail on: arguments that are no JSON object, odd names."""
        arguments = self.arguments if self.arguments and isinstance(self.parsed, dict) and not self.refusal else "{}"
        name = _NOT_IN_A_NAME.sub("_", self.name)[:64] or "unknown"
        return {"id": self.id, "type": "function", "function": {"name": name, "arguments": arguments}}

    @property
    def parsed(self) -> Any:
        """The arguments; None where they are no JSON."""
        try:
            return value_of(self.arguments or "{}")
        except ValueError:
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
    size: int = 0
    """Characters of its text, its reasoning and what it wants called."""
    _choice: int | None = None
    _texts: list[str] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _latest: dict[int, ToolCall] = field(default_factory=dict)
    _by_id: dict[tuple[int, str], ToolCall] = field(default_factory=dict)

    def take(self, chunk: Any) -> tuple[str, str]:
        """Takes a chunk; gives its text and its reasoning. Whatever a server leaves out of one is as good as empty.

        AttributeError, KeyError or TypeError for what is no chunk.
        """
        self.chunks += 1
        if (usage := getattr(chunk, "usage", None)) is not None:
            counted = {name: getattr(usage, name, None) for name in _USAGE}
            self.usage = {name: number for name, number in counted.items() if isinstance(number, int) and number >= 0}
        choices = getattr(chunk, "choices", None)
        if not choices:
            return "", ""
        choice = choices[0]
        number = getattr(choice, "index", None) or 0
        self._choice = number if self._choice is None else self._choice
        if number != self._choice:
            return "", ""  # another answer, for which nobody asked
        if choice.finish_reason:
            self.finish = str(choice.finish_reason)
        delta = choice.delta
        if delta is None:
            return "", ""
        for fragment in delta.tool_calls or ():
            self._take_fragment(fragment)
        text = _text(delta.content or getattr(delta, "refusal", None))
        if text:
            self._texts.append(text)
        # The first is DeepSeek's and vLLM's name for it, the second Ollama's and OpenRouter's.
        reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None) or ""
        reasoning = reasoning if isinstance(reasoning, str) else ""
        self.size += len(text) + len(reasoning)
        return text, reasoning

    def cut(self) -> None:
        """It is longer than anybody wants: it ends here, and calls nothing."""
        self.finish = "length"
        self.calls.clear()

    def end(self) -> None:
        """After the last chunk."""
        self.text = "".join(self._texts)

    def _take_fragment(self, fragment: Any) -> None:
        number = getattr(fragment, "index", None)
        index = number if isinstance(number, int) else 0
        key = (index, _text(fragment.id))
        function = fragment.function
        name, arguments = (_text(function.name), _text(function.arguments)) if function is not None else ("", "")
        call = self._by_id.get(key) or self._latest.get(index)
        if call is None or self._is_another(call, key, name, arguments):
            call = self._begun(key)
        call.name = call.name or name
        call.arguments += arguments
        self.size += len(name) + len(arguments)

    def _is_another(self, call: ToolCall, key: tuple[int, str], name: str, arguments: str) -> bool:
        """Whether a fragment with the index of a call begins another.

        Not all servers number their calls or give them ids, and some give each fragment a new id or the name again.
        """
        if not (name and call.name):
            return False
        return bool(key[1] and key not in self._by_id) or bool(arguments and call.arguments and call.parsed is not None)

    def _begun(self, key: tuple[int, str]) -> ToolCall:
        index, ident = key
        if not ident or ident in self._ids:
            ident = f"{ident or 'call'}_{len(self.calls)}"
        self._ids.add(ident)
        call = ToolCall(ident)
        self.calls.append(call)
        self._latest[index] = call
        if key[1]:
            self._by_id[key] = call
        self.size += len(ident)
        return call


def _text(value: Any) -> str:
    if value and not isinstance(value, str):
        raise TypeError(f"where a text is to be, there is {type(value).__name__}")
    return value or ""
