"""Conversations, turns, deletions and exports as texts for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ...contracts import Interaction
from ...domain.texts.text import FENCE
from ...domain.texts.translation import translate

_PART_CHARACTERS = 8_000

Variables: TypeAlias = Mapping[str, str]


def format_turn(turn: Interaction) -> str:
    """Format a turn: the request, if there was one, then the reply."""
    lines = [f"{turn.timestamp.astimezone():%Y-%m-%d %H:%M}"]
    if turn.input is not None:
        query = turn.input.get("query") if isinstance(turn.input, dict) else None
        lines.append(f"> {query if isinstance(query, str) else json.dumps(turn.dump()['input'], ensure_ascii=False)}")
    lines.append(turn.output.get("text") or turn.output.get("error", {}).get("user_message", ""))
    return "\n".join(lines).rstrip()


def format_memory(facts: Sequence[str], conversation_variables: Variables, person_variables: Variables) -> list[str]:
    """Format what is remembered in a conversation: its facts and the variables (JSON by name) that its agent reads there.

    Each is listed once. A variable that is stored for the person says so; one of the conversation hides another value of the
    person. If an object has facts as keys, such as the dates of notes, its values stand beside these facts.
    """
    details: dict[str, list[str]] = {fact: [] for fact in facts}
    lines: list[str] = []
    for name, text in {**person_variables, **conversation_variables}.items():
        value = json.loads(text)
        place = _describe_place(conversation_variables.get(name), person_variables.get(name))
        if isinstance(value, dict):
            beside = [key for key in value if key in details]
            for fact in beside:
                details[fact].append(f"{name}: {_format_value(value.pop(fact))}{f', {place}' if place else ''}")
            if beside and not value:
                continue
        lines += _format_variable(f"- {name}{f' ({place})' if place else ''}:", value, text)
    return [f"- {fact} ({'; '.join(beside)})" if beside else f"- {fact}" for fact, beside in details.items()] + lines


def _describe_place(conversation_text: str | None, person_text: str | None) -> str:
    if conversation_text is None:
        return translate("for all your conversations")
    return translate("here and for all your conversations") if conversation_text == person_text else ""


def _format_variable(head: str, value: object, text: str) -> list[str]:
    """Format a variable, `text` as JSON. An object or a list has a line for each of its values."""
    if isinstance(value, dict) and value:
        return [head, *(f"  - {key}: {_format_value(inner)}" for key, inner in value.items())]
    if isinstance(value, list) and value:
        return [head, *(f"  - {_format_value(inner)}" for inner in value)]
    return [f"{head} {text}"]


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fence_json(text: str) -> tuple[str, ...]:
    """Split JSON into messages at line ends, each a block of code of its own."""
    parts: list[list[str]] = []
    lines: list[str] = []
    size = 0
    for line in text.split("\n"):  # other line ends are parts of values
        if size + len(line) > _PART_CHARACTERS and lines:
            parts.append(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    return tuple("\n".join([FENCE, *part, FENCE]) for part in [*parts, lines])
