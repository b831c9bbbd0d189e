"""How commands put things: conversations, turns, what was deleted, an export as text."""

from __future__ import annotations

import json

from ...codec import FENCE
from ...contracts import Interaction
from ...domain.identifiers import recover_thread
from ...memory import ErasureReport
from ...storage import StoredConversation

_PART_CHARACTERS = 8_000


def pluralise(number: int, what: str) -> str:
    """So many of something."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def format_conversation(record: StoredConversation, agent: str, *, is_own: bool) -> str:
    """A conversation in a line: one's own by its thread, anybody's by its id and owner."""
    thread = recover_thread(record.conversation_id, record.owner, agent)
    named = f"thread {thread}" if thread is not None else "no thread"
    which = named if is_own else f"{record.owner}   {record.conversation_id}"
    last = record.status.last_interaction.astimezone()
    return (
        f"{last:%Y-%m-%d %H:%M}   {pluralise(record.turns, 'turn')}   {record.status.state.value.replace('_', ' ')}   {which}"
    )


def format_turn(turn: Interaction) -> str:
    """A turn, with what was asked before what was answered."""
    asked = turn.input.get("query") if isinstance(turn.input, dict) else None
    shown = asked if isinstance(asked, str) else json.dumps(turn.dump()["input"], ensure_ascii=False)
    answered = turn.output.get("text") or turn.output.get("error", {}).get("user_message", "")
    return f"{turn.timestamp.astimezone():%Y-%m-%d %H:%M}\n> {shown}\n{answered}".rstrip()


def format_variable(name: str, text: str) -> list[str]:
    """A variable, of which the JSON is given: an object or a list with a line for each of its values."""
    value = json.loads(text)
    if isinstance(value, dict) and value:
        return [f"- {name}:", *(f"  - {key}: {_format_value(inner)}" for key, inner in value.items())]
    if isinstance(value, list) and value:
        return [f"- {name}:", *(f"  - {_format_value(inner)}" for inner in value)]
    return [f"- {name}: {text}"]


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def describe_deleted(report: ErasureReport) -> str:
    """What was deleted."""
    if report.is_empty:
        return "There was nothing to forget."
    numbers = {
        "conversation": len(report.conversation_ids),
        "turn": report.interactions,
        "variable": report.variables,
    }
    parts = [pluralise(number, what) for what, number in numbers.items() if number]
    if report.memories:
        parts.append(f"what I remembered of {pluralise(report.memories, 'conversation')}")
    if report.documents:
        parts.append(pluralise(report.documents, "document"))
    if report.audit_entries:
        parts.append(f"what I did in {pluralise(report.audit_entries, 'audited step')}")
    if report.preferences:
        parts.append("your settings")
    return f"Forgotten: {', '.join(parts)}." if parts else "Forgotten."


def fence_json(text: str) -> tuple[str, ...]:
    """JSON of several lines as messages, each a block of code of its own."""
    parts: list[list[str]] = []
    lines: list[str] = []
    taken = 0
    for line in text.splitlines():
        if taken + len(line) > _PART_CHARACTERS and lines:
            parts.append(lines)
            lines, taken = [], 0
        lines.append(line)
        taken += len(line) + 1
    return tuple("\n".join([FENCE, *part, FENCE]) for part in [*parts, lines])
