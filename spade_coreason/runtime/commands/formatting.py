"""Conversations, turns, deletions and exports as texts for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from ...contracts import ConversationState, Interaction
from ...domain.identifiers import recover_thread
from ...domain.texts.text import FENCE
from ...domain.texts.translation import N_, translate, translate_plural
from ...memory import ErasureReport
from ...operations.people import KeptReason, PersonDeletion
from ...operations.sessions import SessionSummary

_PART_CHARACTERS = 8_000

Variables: TypeAlias = Mapping[str, str]


_STATES: Mapping[ConversationState, str] = {
    ConversationState.ACTIVE: N_("active"),
    ConversationState.COMPLETED: N_("completed"),
    ConversationState.ERROR: N_("ended after errors"),
    ConversationState.TIMEOUT: N_("ended by a timeout"),
    ConversationState.MAX_INTERACTIONS_REACHED: N_("at its limit"),
}


def describe_state(state: ConversationState) -> str:
    """Return the state of a conversation in words."""
    return translate(_STATES[state])


def format_conversation(session: SessionSummary, *, is_own: bool) -> str:
    """Format a conversation in one line.

    The person's own are shown with their thread, all others with their owner and id.
    """
    thread = recover_thread(session.conversation_id, session.user_id, session.agent_id)
    thread_label = translate("thread {thread}", thread=thread) if thread is not None else translate("no thread")
    label = thread_label if is_own else f"{session.user_id}   {session.conversation_id}"
    last = datetime.fromisoformat(session.last_interaction).astimezone()
    turns = translate_plural("{number} turn", "{number} turns", session.turns)
    return f"{last:%Y-%m-%d %H:%M}   {turns}   {describe_state(ConversationState(session.state))}   {label}"


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


def describe_deleted(report: ErasureReport) -> str:
    """Describe the deleted data in one sentence."""
    if report.is_empty:
        return translate("There was nothing to delete.")
    parts: list[str] = []
    if number := len(report.conversation_ids):
        parts.append(translate_plural("{number} conversation", "{number} conversations", number))
    if number := report.interactions:
        parts.append(translate_plural("{number} turn", "{number} turns", number))
    if number := report.variables:
        parts.append(translate_plural("{number} variable", "{number} variables", number))
    if number := report.memories:
        parts.append(translate_plural("memory of {number} conversation", "memory of {number} conversations", number))
    if number := report.documents:
        parts.append(translate_plural("{number} document", "{number} documents", number))
    if number := report.audit_entries:
        parts.append(translate_plural("the record of {number} audited step", "the record of {number} audited steps", number))
    if number := report.incidents:
        parts.append(translate_plural("the record of {number} failure", "the record of {number} failures", number))
    if number := report.subscriptions:
        parts.append(translate_plural("{number} subscription", "{number} subscriptions", number))
    if number := report.items:
        parts.append(translate_plural("your name at {number} published item", "your name at {number} published items", number))
    if number := report.deleted_items:
        parts.append(translate_plural("{number} published item", "{number} published items", number))
    if number := report.schedules:
        parts.append(translate_plural("{number} reminder or schedule", "{number} reminders or schedules", number))
    if number := report.notifications:
        parts.append(translate_plural("{number} notification", "{number} notifications", number))
    if number := report.questions:
        parts.append(translate_plural("{number} question", "{number} questions", number))
    if report.preferences:
        parts.append(translate("your settings"))
    return translate("Deleted: {list}.", list=", ".join(parts)) if parts else translate("Deleted.")


def describe_deletion(deletion: PersonDeletion) -> str:
    """Describe the deletion of all about a person: what was deleted by agent, what may hold more, and what stays."""
    deleted = [(one.agent, one.report) for one in deletion.erasures if not one.report.is_empty]
    lines = [f"{agent}: {describe_deleted(report)}" for agent, report in deleted] or [translate("There was nothing to delete.")]
    for unknown in deletion.may_hold_more:
        text = translate_plural(
            "{agent} may hold more: {number} turn of which it is not known from whom it came ({first} to {last}).",
            "{agent} may hold more: {number} turns of which it is not known from whom they came ({first} to {last}).",
            unknown.turns,
            agent=unknown.agent,
            first=unknown.first[:10],
            last=unknown.last[:10],
        )
        lines.append(text)
    lines += [translate(_KEPT[kept.reason], agent=kept.agent) for kept in deletion.kept]
    return "\n".join(lines)


_KEPT: dict[KeptReason, str] = {
    "access": N_("{agent}: an operator's decision about access stays."),
    "keys": N_("{agent}: keys that stand for this person stay, and so does what was asked with them."),
    "operator": N_("{agent}: what was done as an operator stays in the audit trail."),
    "unreachable": N_("{agent}: was not reached, because you are not its operator."),
    "running": N_("{agent}: an answer does not end, and may store more. Try again later."),
    "log": N_("The log of the database still has deleted data, because another program reads it. They go when that ends."),
}


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
