"""Conversations, turns, deletions and exports as texts for people."""

from __future__ import annotations

import json

from ...contracts import Interaction
from ...domain.identifiers import recover_thread
from ...domain.text import FENCE
from ...memory import ErasureReport
from ...storage import StoredConversation

_PART_CHARACTERS = 8_000


def pluralise(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_conversation(record: StoredConversation, agent: str, *, is_own: bool) -> str:
    """Format a conversation in one line.

    The person's own are shown with their thread, all others with their owner and id.
    """
    thread = recover_thread(record.conversation_id, record.owner, agent)
    thread_label = f"thread {thread}" if thread is not None else "no thread"
    label = thread_label if is_own else f"{record.owner}   {record.conversation_id}"
    last = record.status.last_interaction.astimezone()
    return (
        f"{last:%Y-%m-%d %H:%M}   {pluralise(record.turns, 'turn')}   {record.status.state.value.replace('_', ' ')}   {label}"
    )


def format_turn(turn: Interaction) -> str:
    """Format a turn: the request, then the reply."""
    query = turn.input.get("query") if isinstance(turn.input, dict) else None
    request = query if isinstance(query, str) else json.dumps(turn.dump()["input"], ensure_ascii=False)
    reply = turn.output.get("text") or turn.output.get("error", {}).get("user_message", "")
    return f"{turn.timestamp.astimezone():%Y-%m-%d %H:%M}\n> {request}\n{reply}".rstrip()


def format_variable(name: str, text: str) -> list[str]:
    """Format a variable from its JSON. An object or a list has a line for each of its values."""
    value = json.loads(text)
    if isinstance(value, dict) and value:
        return [f"- {name}:", *(f"  - {key}: {_format_value(inner)}" for key, inner in value.items())]
    if isinstance(value, list) and value:
        return [f"- {name}:", *(f"  - {_format_value(inner)}" for inner in value)]
    return [f"- {name}: {text}"]


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def describe_deleted(report: ErasureReport) -> str:
    """Describe the deleted data in one sentence."""
    if report.is_empty:
        return "There was nothing to forget."
    numbers = {
        "conversation": len(report.conversation_ids),
        "turn": report.interactions,
        "variable": report.variables,
    }
    parts = [pluralise(number, noun) for noun, number in numbers.items() if number]
    if report.memories:
        parts.append(f"what I remembered of {pluralise(report.memories, 'conversation')}")
    if report.documents:
        parts.append(pluralise(report.documents, "document"))
    if report.audit_entries:
        parts.append(f"what I did in {pluralise(report.audit_entries, 'audited step')}")
    if report.incidents:
        parts.append(f"what I noted of {pluralise(report.incidents, 'failure')}")
    if report.preferences:
        parts.append("your settings")
    return f"Forgotten: {', '.join(parts)}." if parts else "Forgotten."


def fence_json(text: str) -> tuple[str, ...]:
    """Split JSON into messages at line ends, each a block of code of its own."""
    parts: list[list[str]] = []
    lines: list[str] = []
    size = 0
    for line in text.splitlines():
        if size + len(line) > _PART_CHARACTERS and lines:
            parts.append(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    return tuple("\n".join([FENCE, *part, FENCE]) for part in [*parts, lines])
