"""A completion of a language model, built from its deltas (OpenAI chat completions, `chat.completion.chunk`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...domain.texts.model_text import ThoughtSplitter, require_text, split_content
from ...domain.texts.text import SurrogateJoiner, replace_lone_surrogates
from ..structured import parse_json

_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")
_USAGE_FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens")
_FINISH_REASONS = {
    "model_length": "length",  # Mistral
    "max_tokens": "length",
    "sensitive": "content_filter",  # Zhipu
    "safety": "content_filter",  # Gemini: these six
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
    "image_safety": "content_filter",
    "network_error": "error",  # Zhipu
    "insufficient_system_resource": "error",  # DeepSeek
}
"""Finish reasons that some servers use, and what they are called elsewhere. All others end an answer."""
CARRIED = "carried"
"""The key of a message with what only its own model gets back; see `Completion.carried_fields`."""
_NAMING_KEYS = frozenset({"type", "id", "index", "format", "name"})
"""Keys whose values a stream repeats. Texts of other keys come in pieces."""
_MAX_DEPTH = 32


@dataclass(slots=True)
class ToolCall:
    """A call of a tool that a model asks for.

    `arguments` is JSON, or the model's attempt at it. A call with a `refusal` is not run.
    """

    id: str
    name: str = ""
    arguments: str = ""
    refusal: str = ""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """Fields that its server has added, such as Gemini's thought signature. They go back as they came.

    While a stream has not ended, each is a list of its pieces.
    """

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
class _ChunkState:
    """The state of a stream of chunks."""

    choice_index: int | None = None
    texts: list[str] = field(default_factory=list)
    text_joiner: SurrogateJoiner = field(default_factory=SurrogateJoiner)
    reasoning_joiner: SurrogateJoiner = field(default_factory=SurrogateJoiner)
    call_ids: set[str] = field(default_factory=set)
    latest_by_index: dict[int, ToolCall] = field(default_factory=dict)
    by_id: dict[tuple[int, str], ToolCall] = field(default_factory=dict)


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
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the message that its server has added, such as `reasoning_content`; in pieces, as those of a call."""
    error: Any = None
    """The error that the server has sent with the finish reason "error"."""
    is_done: bool = False
    """True if the server has said that the answer is complete, with a finish reason or without."""
    thoughts: ThoughtSplitter = field(default_factory=ThoughtSplitter)
    _stream: _ChunkState = field(default_factory=_ChunkState)

    def dump(self) -> dict[str, Any]:
        """Return a completion that has ended as JSON, for the journal of the turn."""
        calls = [[call.id, call.name, call.arguments, call.extra_fields] for call in self.tool_calls]
        fields = {"model": self.model, "text": self.text, "tool_calls": calls, "finish_reason": self.finish_reason}
        # A text without calls of tools goes back without them.
        return {**fields, "extra_fields": self.extra_fields} if calls and self.extra_fields else fields

    @classmethod
    def load(cls, fields: dict[str, Any]) -> Completion:
        """Return the completion that `dump` has written."""
        calls = [
            ToolCall(call_id, name, arguments, extra_fields=extra[0] if extra else {})
            for call_id, name, arguments, *extra in fields["tool_calls"]
        ]
        extra_fields = fields.get("extra_fields", {})
        return cls(fields["model"], fields["text"], calls, fields["finish_reason"], extra_fields=extra_fields)

    def carried_fields(self, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """Return the entry of a message with these calls that has the fields which its server has added; empty if none.

        Models that think fail without them until the turn ends. `restore_carried_fields` puts them in their places.
        """
        extra_of_calls = [call.extra_fields for call in calls]
        if not self.extra_fields and not any(extra_of_calls):
            return {}
        return {CARRIED: {"model": self.model, "fields": dict(self.extra_fields), "calls": extra_of_calls}}

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
            if error := getattr(chunk, "error", None):
                self.finish_reason, self.error = "error", error
            return "", ""
        choice = choices[0]
        number, stream = getattr(choice, "index", None) or 0, self._stream
        stream.choice_index = number if stream.choice_index is None else stream.choice_index
        if number != stream.choice_index:
            return "", ""  # a further answer, which was not requested
        if choice.finish_reason:
            self._finish(str(choice.finish_reason), choice)
        delta = choice.delta
        if delta is None:
            return "", ""
        for fragment in delta.tool_calls or ():
            self._add_call_fragment(fragment)
        text, reasoning = split_content(delta.content or getattr(delta, "refusal", None))
        text = stream.text_joiner.feed(text)
        extra_characters = 0
        if extra := getattr(delta, "model_extra", None):
            extra_characters = _add_pieces(self.extra_fields, extra)
            # DeepSeek and vLLM use the first name, Ollama and OpenRouter the second.
            given = extra.get("reasoning_content") or extra.get("reasoning")
            reasoning += given if isinstance(given, str) else ""
        self.character_count += len(text) + max(len(reasoning), extra_characters - len(reasoning))
        if text:
            text, thought = self.thoughts.feed(text)
            reasoning += thought
            stream.texts.append(text)
        return text, stream.reasoning_joiner.feed(reasoning)

    def truncate(self) -> None:
        """End a completion that is too long, and drop its tool calls."""
        self.finish_reason = "length"
        self.tool_calls.clear()

    def close(self) -> tuple[str, str]:
        """End the completion after the last chunk, and return the rest of its text and of its reasoning."""
        text, thought = self.thoughts.end(is_truncated=self.finish_reason == "length")
        self.text = "".join([*self._stream.texts, text])
        self.extra_fields = _join_pieces(self.extra_fields)
        for call in self.tool_calls:
            call.extra_fields = _join_pieces(call.extra_fields)
        if self.finish_reason is None and self.is_done and (self.text or self.tool_calls):
            self.finish_reason = "stop"  # some servers leave it out
        return text, thought

    def _finish(self, reason: str, choice: Any) -> None:
        # Gemini adds its own reason, as in "content_filter: RECITATION".
        begin = reason.partition(":")[0].strip().lower()
        self.finish_reason = _FINISH_REASONS.get(begin, begin if begin == "content_filter" else reason)
        if self.finish_reason == "error":
            self.error = getattr(choice, "error", None) or begin

    def _add_call_fragment(self, fragment: Any) -> None:
        number = getattr(fragment, "index", None)
        index = number if isinstance(number, int) else 0
        key = (index, require_text(fragment.id))
        function = fragment.function
        name, arguments = (require_text(function.name), require_text(function.arguments)) if function is not None else ("", "")
        call = self._stream.by_id.get(key) or self._stream.latest_by_index.get(index)
        if call is None or self._is_new_call(call, key, name, arguments):
            call = self._start_call(key)
        call.name = call.name or name
        call.arguments += arguments
        self.character_count += len(name) + len(arguments)
        if extra := getattr(fragment, "model_extra", None):
            extra = {name: value for name, value in extra.items() if name != "index"}  # of a call that comes whole
            self.character_count += _add_pieces(call.extra_fields, extra)
        if extra := getattr(function, "model_extra", None):
            self.character_count += _add_pieces(call.extra_fields, {"function": extra})

    def _is_new_call(self, call: ToolCall, key: tuple[int, str], name: str, arguments: str) -> bool:
        """True if a fragment with the index of a call starts another one.

        Some servers do not number their calls or give them ids. Others give each fragment a new id, or repeat the name.
        """
        if not (name and call.name):
            return False
        return bool(key[1] and key not in self._stream.by_id) or bool(
            arguments and call.arguments and call.parsed_arguments is not None
        )

    def _start_call(self, key: tuple[int, str]) -> ToolCall:
        index, call_id = key
        if not call_id or call_id in self._stream.call_ids:
            call_id = f"{call_id or 'call'}_{len(self.tool_calls)}"
        self._stream.call_ids.add(call_id)
        call = ToolCall(call_id)
        self.tool_calls.append(call)
        self._stream.latest_by_index[index] = call
        if key[1]:
            self._stream.by_id[key] = call
        self.character_count += len(call_id)
        return call


def restore_carried_fields(
    messages: Sequence[Mapping[str, Any]], model: str, *, is_bare: bool = False
) -> Sequence[Mapping[str, Any]]:
    """Return messages with the carried fields of `model` in their places, and without those of other models.

    `is_bare`: without any.
    """
    if not any(CARRIED in message for message in messages):
        return messages
    return [_restore(message, model, is_bare=is_bare) if CARRIED in message else message for message in messages]


def carried_names(messages: Sequence[Mapping[str, Any]], model: str) -> set[str]:
    """Return the names of the fields that messages carry for `model`."""
    names: set[str] = set()
    for message in messages:
        if (carried := message.get(CARRIED)) is not None and carried["model"] == model:
            names.update(carried["fields"])
            for fields in carried["calls"]:
                names.update(fields.keys() - {"function"}, fields.get("function", ()))
    return names


def _restore(message: Mapping[str, Any], model: str, *, is_bare: bool) -> dict[str, Any]:
    restored = {key: value for key, value in message.items() if key != CARRIED}
    carried = message[CARRIED]
    if is_bare or carried["model"] != model:
        return restored
    calls = [
        {**extra, **call, "function": {**extra.get("function", {}), **call["function"]}}
        for extra, call in zip(carried["calls"], message["tool_calls"], strict=True)
    ]
    return {**carried["fields"], **restored, "tool_calls": calls}


def _add_pieces(pieces: dict[str, list[Any]], fields: Mapping[str, Any]) -> int:
    """Add the fields of a chunk, and return their characters. ValueError for a value that JSON cannot repeat."""
    characters = 0
    for name, value in fields.items():
        # An empty text counts: DeepSeek wants its reasoning back even if there was none.
        if value is not None and (value or name not in pieces):
            characters += _count_characters(value)
            pieces.setdefault(name, []).append(value)
    return characters


def _join_pieces(pieces: Mapping[str, list[Any]]) -> dict[str, Any]:
    joined = {name: replace_lone_surrogates(_merge(values)) for name, values in pieces.items()}
    return {name: value for name, value in joined.items() if value not in ([], {})}


def _count_characters(value: Any, depth: int = 0) -> int:
    if depth > _MAX_DEPTH or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("a field of the message is no plain JSON")
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return 1 + sum(_count_characters(item, depth + 1) for key, item in value.items() if key not in _NAMING_KEYS)
    return 1 + (sum(_count_characters(item, depth + 1) for item in value) if isinstance(value, list) else 0)


def _merge(values: Sequence[Any]) -> Any:
    """Merge the pieces of a value: join texts, and merge objects and the items of lists. Otherwise the last one counts."""
    values = [value for value in values if value is not None]
    if len(values) < 2:
        return values[0] if values else None
    if all(isinstance(value, str) for value in values):
        return "".join(values)
    if all(isinstance(value, dict) for value in values):
        pieces: dict[str, list[Any]] = {}
        for value in values:
            for key, item in value.items():
                pieces.setdefault(key, []).append(item)
        return {key: _merge(items[-1:] if key in _NAMING_KEYS else items) for key, items in pieces.items()}
    if all(isinstance(value, list) for value in values):
        return [_merge(items) for items in _group_items(values)]
    return values[-1]


def _group_items(chunks: Sequence[list[Any]]) -> list[list[Any]]:
    """Group the items of lists that belong together: those of one index (OpenRouter), else one type in a row (LiteLLM)."""
    groups: list[list[Any]] = []
    numbered: dict[tuple[Any, ...], list[Any]] = {}
    for chunk in chunks:
        for position, item in enumerate(chunk):
            key = tuple(str(item.get(name)) for name in ("index", "type", "id")) if isinstance(item, dict) else ()
            if key and item.get("index") is not None:
                if key not in numbered:
                    groups.append(numbered.setdefault(key, []))
                numbered[key].append(item)
            elif key and not position and groups and _continues(groups[-1][-1], item):
                groups[-1].append(item)
            else:
                groups.append([item])
    return groups


def _continues(previous: Any, item: Mapping[str, Any]) -> bool:
    return (
        isinstance(previous, dict)
        and item.get("type") is not None
        and previous.get("type") == item["type"]
        and previous.get("index") is None
        and not previous.get("signature")  # it ends a thought
    )
