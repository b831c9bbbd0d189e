"""Results of operations with a form of their own in the terminal. Each function prints one, and may return an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import click

from ..operations.view import format_time
from .settings import load_storage_settings, warn_of_closed_doors
from .terminal.console import (
    encode_json,
    format_timestamp,
    one_line,
    paint,
    print_cleaned,
    print_line,
    print_table,
    print_text,
    verdict_sign,
)

if TYPE_CHECKING:
    from ..operations.audit import TrailVerdict
    from ..operations.doors.keys import IssuedKey
    from ..operations.doors.webhooks import IssuedWebhook
    from ..operations.incidents import IncidentContents
    from ..operations.initiative.topics import AgentTopics
    from ..operations.knowledge import DocumentList, FoundPassage
    from ..operations.memory import RememberedConversation
    from ..operations.people import KeptReason, PersonDeletion
    from ..operations.requests import FailedRequestContents
    from ..operations.sessions import SessionContents

_KEPT: dict[KeptReason, str] = {
    "access": "an operator's decision about their access stays. `spade-coreason access list` shows it.",
    "keys": "keys that stand for them stay, and so does what was asked with them: see `spade-coreason keys list`.",
    "operator": "what they did as an operator stays in the audit trail.",
    "unreachable": "was not reached.",
    "running": "a turn does not end, and may store more. Run the command again when it has ended.",
    "log": "another program reads the database, so its log still has deleted data. It goes when that program ends.",
    "file": "the database has more than 128 MiB, and copies of deleted rows may be in it. Stop the platform, and run `VACUUM`.",
}


def _show_session(found: SessionContents) -> None:
    summary = found.summary
    about = f"{summary.user_id} with {summary.agent_id}, {summary.state}, {summary.turns} turns, session {summary.session_id}"
    print_line(paint(summary.conversation_id, "bold"), f"  {about}")
    for turn in found.history:
        time, request, output = paint(format_timestamp(turn["timestamp"]), "dim"), turn.get("input"), turn.get("output", {})
        if request is None:  # a notification
            print_line(f"\n{time}  (without a question)")
        else:
            print_text(_find_query(request), f"\n{time}  {paint('▸', 'cyan')} ", "  ")
        parts = [str(output["text"])] if output.get("text") else []
        parts += [encode_json(output["data"])] if output.get("data") else []
        parts += [f"✗ {problem.get('user_message')}"] if isinstance(problem := output.get("error"), dict) else []
        print_text("\n".join(parts) or "(nothing)", "  ", "  ")
    for title, variables in (
        ("Variables of the conversation", found.variables),
        ("Variables of the person", found.person_variables),
    ):
        if variables:
            print_line()
            print_line(paint(title, "bold"))
            for name, value in variables.items():
                print_line(f"  {name} = {one_line(encode_json(value), 200)}")


def _find_query(payload: Any) -> str:
    query = payload.get("query") if isinstance(payload, dict) else None
    return query if isinstance(query, str) else encode_json(payload)


def _show_request(found: FailedRequestContents) -> None:
    request = found.request
    ends = f"{request.crashes} crashes, {request.stops} stops"
    print_line(f"{request.id}: {request.sender} to {request.agent_id}, {format_timestamp(request.received_at)}, {ends}")
    print_text(_find_query(found.payload))


def _show_memory(found: RememberedConversation) -> None:
    for text in found.information:
        print_text(text, "- ", "  ")


def _show_deletion(found: PersonDeletion) -> None:
    from ..operations.people import list_deletion_lines
    from ..operations.sessions import describe_erasure

    for line in list_deletion_lines(found, describe_erasure, _KEPT):
        print_line(line)


def _show_documents(found: DocumentList) -> None:
    columns = ("document", "passages", *(("indexed",) if found.has_vectors else ()), "characters", "added")
    rows = [
        (
            one.document,
            one.passages,
            *((one.indexed,) if found.has_vectors else ()),
            one.characters,
            format_timestamp(one.added_at),
        )
        for one in found.documents
    ]
    if rows:
        print_table(columns, rows)
    else:
        print_line("No documents.")
    if found.missing:
        remedy = f"run: spade-coreason knowledge reindex {found.agent}"
        print_line(f"{found.missing} passages have no vector of the configured model; {remedy}")


def _show_passages(found: list[FoundPassage]) -> None:
    for hit in found:
        print_line(f"{hit.score:.2f}  {hit.document} ({hit.passage})")
        print_text(hit.text, "      ", "      ")


def _show_incident(found: IncidentContents) -> None:
    from ..domain.texts.error_chain import load_error_chain
    from .terminal.tracebacks import format_traceback

    conversation = f", conversation {found.conversation_id}" if found.conversation_id is not None else ""
    when = format_timestamp(found.occurred_at)
    print_line(f"incident {found.id}: {found.agent_id}, {when}, with {found.person}{conversation}")
    print_cleaned(format_traceback(load_error_chain(found.errors), shows_text=True))


def _show_verdicts(found: list[TrailVerdict]) -> int:
    for one in found:
        forgotten = f", {one.erased:,} of them forgotten" if one.erased else ""
        entries = f"{one.entries:,} {'entry' if one.entries == 1 else 'entries'}"
        text = f"{entries}{forgotten}; hash of the last {one.head}" if one.entries else "no entries"
        print_line(verdict_sign("bad" if one.problems else "good"), f"{one.agent}: {text}")
        for problem in one.problems:
            print_line(f"    {problem}")
    return int(any(one.problems for one in found))


def _show_topics(found: list[AgentTopics]) -> None:
    topics = [(each.agent, one.topic, one.items, format_time(one.newest_at)) for each in found for one in each.topics]
    subscribers = [
        (
            each.agent,
            one.subscriber,
            " ".join(one.patterns),
            one.waiting,
            format_time(one.oldest_at) if one.oldest_at else "",
            one.error,
        )
        for each in found
        for one in each.subscribers
    ]
    if topics:
        print_table(("agent", "topic", "items", "newest"), topics)
    if topics and subscribers:
        print_line()
    if subscribers:
        print_table(("agent", "subscriber", "patterns", "waiting", "oldest", "problem"), subscribers, texts=("problem",))


def _show_key(found: IssuedKey) -> None:
    from ..config import KeyDoor

    key = found.key
    url = _print_secret(found.secret, key.agents, get_args(KeyDoor))
    if url:
        end = "never ends" if key.expires_at is None else f"works until {format_time(key.expires_at)}"
        print_line(f"This is the secret of the key {key.name} for {', '.join(key.agents)}. It is shown this once, and {end}.")
        print_line("Try it, if the agent has the door `openai`:")
        print_line(paint(f'  curl {url}/v1/models -H "Authorization: Bearer {found.secret}"', "dim"))


def _show_webhook(found: IssuedWebhook) -> None:
    webhook = found.webhook
    url = _print_secret(found.secret, [webhook.agent], ["webhook"])
    if url:
        print_line(f"This is the secret of the webhook {webhook.name} for {webhook.agent}. It is shown this once.")
        print_line(f"Its sender needs it, and this address: {url}{webhook.path}")


def _print_secret(secret: str, agents: Sequence[str], doors: Sequence[str]) -> str:
    """Print a secret, and warn if it opens nothing yet. Return the address of the doors on a terminal, else ""."""
    print_cleaned(secret)
    given = click.get_current_context().params
    settings = load_storage_settings(given["file"], given["data"])
    warn_of_closed_doors(settings, agents, doors)
    if not sys.stdout.isatty():
        return ""
    from ..config import WebSettings

    print_line()
    return (settings.web or WebSettings()).public_url


SHOWS: Mapping[str, Callable[[Any], int | None]] = {
    "sessions.show": _show_session,
    "requests.show": _show_request,
    "memory.show": _show_memory,
    "people.delete": _show_deletion,
    "knowledge.list": _show_documents,
    "knowledge.search": _show_passages,
    "incidents.show": _show_incident,
    "incidents.messages": _show_incident,
    "audit.verify": _show_verdicts,
    "topics.list": _show_topics,
    "keys.create": _show_key,
    "keys.rotate": _show_key,
    "webhooks.create": _show_webhook,
    "webhooks.rotate": _show_webhook,
}
"""The functions by the names of their operations."""
