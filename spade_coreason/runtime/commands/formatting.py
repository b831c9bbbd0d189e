"""How commands put things: conversations, turns, what was deleted, an export as text."""

from __future__ import annotations

import json

from ...codec import FENCE
from ...contracts import Interaction
from ...domain.identifiers import thread_of
from ...memory import Forgotten
from ...storage import ConversationRow

_PART_CHARACTERS = 8_000


def count(number: int, what: str) -> str:
    """So many of something."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def conversation_line(row: ConversationRow, agent: str, *, is_own: bool) -> str:
    """A conversation in a line: one's own by its thread, anybody's by its id and owner."""
    thread = thread_of(row.conversation_id, row.owner, agent)
    named = f"thread {thread}" if thread is not None else "no thread"
    which = named if is_own else f"{row.owner}   {row.conversation_id}"
    last = row.life.last_interaction.astimezone()
    return f"{last:%Y-%m-%d %H:%M}   {count(row.turns, 'turn')}   {row.life.state.value.replace('_', ' ')}   {which}"


def turn_text(turn: Interaction) -> str:
    """A turn, with what was asked before what was answered."""
    asked = turn.input.get("query") if isinstance(turn.input, dict) else None
    shown = asked if isinstance(asked, str) else json.dumps(turn.dump()["input"], ensure_ascii=False)
    answered = turn.output.get("text") or turn.output.get("error", {}).get("user_message", "")
    return f"{turn.timestamp.astimezone():%Y-%m-%d %H:%M}\n> {shown}\n{answered}".rstrip()


def variable_lines(name: str, text: str) -> list[str]:
    """A variable, of which the JSON is given: an object or a list with a line for each of its values."""
    value = json.loads(text)
    if isinstance(value, dict) and value:
        return [f"- {name}:", *(f"  - {key}: {_shown(inner)}" for key, inner in value.items())]
    if isinstance(value, list) and value:
        return [f"- {name}:", *(f"  - {_shown(inner)}" for inner in value)]
    return [f"- {name}: {text}"]


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def deleted(gone: Forgotten) -> str:
    """What was deleted."""
    if gone.is_nothing:
        return "There was nothing to forget."
    numbers = {
        "conversation": len(gone.conversation_ids),
        "turn": gone.interactions,
        "variable": gone.variables,
    }
    parts = [count(number, what) for what, number in numbers.items() if number]
    if gone.memories:
        parts.append(f"what I remembered of {count(gone.memories, 'conversation')}")
    if gone.documents:
        parts.append(count(gone.documents, "document"))
    if gone.audit_entries:
        parts.append(f"what I did in {count(gone.audit_entries, 'audited step')}")
    if gone.preferences:
        parts.append("your settings")
    return f"Forgotten: {', '.join(parts)}." if parts else "Forgotten."


def marked_json(text: str) -> tuple[str, ...]:
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
