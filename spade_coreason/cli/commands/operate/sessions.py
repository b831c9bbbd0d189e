"""The command `spade-coreason sessions`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....exceptions import ConfigError
from ...completion import complete_conversations
from ...context import CLIGroup, json_option
from ...operations import confirm, describe_none, open_platform, parse_person, print_stopped, storage_options, yes_option
from ...terminal.console import (
    encode_json,
    format_timestamp,
    one_line,
    paint,
    print_json,
    print_line,
    print_table,
    print_text,
    progress_bar,
)

if TYPE_CHECKING:
    from ....memory import ErasureReport


@click.group("sessions", cls=CLIGroup)
def command() -> None:
    """List, show, export or delete the stored sessions of agents.

    \b
      spade-coreason sessions list
      spade-coreason sessions show alice@example.org_notes@example.org
      spade-coreason sessions clear --person alice@example.org
    """


@command.command("list")
@storage_options
@click.option("--person", metavar="JID", help="Show only sessions of this person.")
@click.option(
    "--limit",
    default=100,
    show_default=True,
    type=click.IntRange(1),
    help="Show at most this many sessions of each agent, the newest.",
)
@json_option()
def list_(file: Path | None, data: Path | None, agent: str | None, person: str | None, limit: int, as_json: bool) -> None:
    """List the sessions, newest first. Works while the platform runs.

    \b
      spade-coreason sessions list --agent notes --person alice@example.org
    """
    from ....operations.sessions import ListSessions, list_sessions

    owner = parse_person(person) if person else None
    with open_platform(file, data) as platform:
        found = platform.perform(list_sessions, ListSessions(agent=agent, person=owner, limit=limit))
    if as_json:
        print_json([asdict(session) for session in found])
    elif not found:
        print_line(describe_none(platform, "sessions"))
    else:
        rows = [
            (one.agent_id, one.user_id, one.conversation_id, one.turns, format_timestamp(one.last_interaction)) for one in found
        ]
        print_table(("agent", "person", "conversation", "turns", "last"), rows)


@command.command("show")
@click.argument("conversation", shell_complete=complete_conversations)
@storage_options
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="Show at most this many turns, the newest."
)
@json_option("Print the session as JSON.")
def show(file: Path | None, data: Path | None, agent: str | None, conversation: str, limit: int, as_json: bool) -> None:
    """Show a session: its turns and its variables. Works while the platform runs.

    CONVERSATION is an id from `sessions list`.

    \b
      spade-coreason sessions show alice@example.org_notes@example.org
    """
    from ....operations.sessions import ShowSession, show_session

    with open_platform(file, data) as platform:
        found = platform.perform(show_session, ShowSession(agent=agent, conversation=conversation, limit=limit))
    summary = found.summary
    if as_json:
        whole = {"variables": found.variables, "person_variables": found.person_variables, "history": found.history}
        print_json({**asdict(summary), **whole})
        return
    about = f"{summary.user_id} with {summary.agent_id}, {summary.state}, {summary.turns} turns, session {summary.session_id}"
    print_line(paint(conversation, "bold"), f"  {about}")
    for turn in found.history:
        time = paint(format_timestamp(turn["timestamp"]), "dim")
        if turn.get("input") is None:  # a notification
            print_line(f"\n{time}  (without a question)")
        else:
            print_text(_input_text(turn), f"\n{time}  {paint('▸', 'cyan')} ", "  ")
        print_text(_output_text(turn), "  ", "  ")
    for title, variables in (
        ("Variables of the conversation", found.variables),
        ("Variables of the person", found.person_variables),
    ):
        if variables:
            print_line()
            print_line(paint(title, "bold"))
            for name, value in variables.items():
                print_line(f"  {name} = {one_line(encode_json(value), 200)}")


def _input_text(turn: dict[str, Any]) -> str:
    request = turn.get("input")
    if isinstance(request, dict) and isinstance(request.get("query"), str):
        return str(request["query"])
    return encode_json(request)


def _output_text(turn: dict[str, Any]) -> str:
    output = turn.get("output", {})
    parts = [str(output["text"])] if output.get("text") else []
    if output.get("data"):
        parts.append(encode_json(output["data"]))
    if isinstance(problem := output.get("error"), dict):
        parts.append(f"✗ {problem.get('user_message')}")
    return "\n".join(parts) or "(nothing)"


@command.command("export")
@storage_options
@click.option("--person", metavar="JID", required=True, help="The person.")
def export(file: Path | None, data: Path | None, agent: str | None, person: str) -> None:
    """Print everything that an agent stores about a person as JSON. Works with and without a running platform.

    The person gets the same with /export. The audit trail has an entry of it.

    \b
      spade-coreason sessions export --agent notes --person alice@example.org
    """
    from ....operations.sessions import OfPerson, export_sessions

    owner = parse_person(person)
    with open_platform(file, data, changes=True) as platform:
        print_json(platform.perform(export_sessions, OfPerson(agent=agent, person=owner)))


@command.command("clear")
@storage_options
@click.option("--person", metavar="JID", help="Delete all data of this person, except what they sent through another agent.")
@click.option(
    "--conversation", metavar="ID", shell_complete=complete_conversations, help="Delete this conversation and its memory."
)
@click.option("--all", "everything", is_flag=True, help="Delete the data of all people.")
@yes_option
def clear(
    file: Path | None,
    data: Path | None,
    agent: str | None,
    person: str | None,
    conversation: str | None,
    everything: bool,
    yes: bool,
) -> int:
    """Delete sessions with their turns, variables, documents and interaction memories.

    Works while the platform runs: turns of the person end first, and what waits is dropped. Ctrl-C stops after the current
    person. --agent is required if there are several agents; --agent "*" means all of them. --person deletes what agents store
    under the name of a person. `people delete` also deletes what reached them through other agents and rooms.

    \b
      spade-coreason sessions clear --person alice@example.org --agent "*"
      spade-coreason sessions clear --conversation alice@example.org_notes@example.org
      spade-coreason sessions clear --agent notes --all
    """
    if [bool(person), bool(conversation), everything].count(True) != 1:
        raise ConfigError("sessions clear", "needs exactly one of --person JID, --conversation ID and --all")
    from ....operations.sessions import ClearSessions, FindTargets, clear_sessions, find_targets

    owner = parse_person(person) if person else None
    with open_platform(file, data, changes=True) as platform:
        targets = platform.perform(find_targets, FindTargets(agent=agent, conversation=conversation))
        agents = ", ".join(targets.agents)
        confirm(
            f"delete the conversation {conversation} of {targets.owner} with {agents}"
            if conversation is not None
            else f"delete everything of {'all people' if everything else owner} with {agents}",
            yes,
        )
        with progress_bar(1) as progress:
            progress.start_item("deleting")
            cleared = platform.perform(
                clear_sessions,
                ClearSessions(agent=agent, person=owner, everyone=everything, conversation=conversation),
                progress.update_item,
            )
    for erasure in cleared.erasures:
        print_erasure(erasure.agent, erasure.report)
    return 0 if cleared.is_complete else print_stopped()


def print_erasure(agent: str, erasure: ErasureReport) -> None:
    """Print what was deleted of an agent."""
    if erasure.is_empty:
        print_line(f"{agent}: nothing to delete.")
        return
    parts = [
        _count_text(len(erasure.conversation_ids), "conversation"),
        _count_text(erasure.interactions, "turn"),
        _count_text(erasure.variables, "variable"),
        f"memories of {_count_text(erasure.memories, 'conversation')}",
        _count_text(erasure.requests, "waiting request"),
        *([_count_text(erasure.documents, "document")] if erasure.documents else []),
        *([_count_text(erasure.audit_entries, "audited step")] if erasure.audit_entries else []),
        *([_count_text(erasure.incidents, "incident")] if erasure.incidents else []),
        *([_count_text(erasure.subscriptions, "subscription")] if erasure.subscriptions else []),
        *([f"the name at {_count_text(erasure.items, 'item')}"] if erasure.items else []),
        *([_count_text(erasure.deleted_items, "published item")] if erasure.deleted_items else []),
        *([_count_text(erasure.schedules, "schedule")] if erasure.schedules else []),
        *([_count_text(erasure.notifications, "notification")] if erasure.notifications else []),
        *([_count_text(erasure.questions, "question")] if erasure.questions else []),
    ]
    if erasure.preferences:
        parts.append("preferences")
    print_line(f"{agent}: deleted {', '.join(parts)}.")
    for name in erasure.conversation_ids:
        print_line(f"  {name}")


def _count_text(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
