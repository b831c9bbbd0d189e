"""The command `spade-coreason sessions`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...exceptions import ConfigError
from ..agent_storage import ALL_AGENTS, AgentStorage, confirm, open_storage, parse_person, storage_options
from ..completion import complete_conversations
from ..context import CLIGroup, run_async
from ..terminal.console import encode_json, format_time, one_line, paint, print_json, print_line, print_table, print_text

if TYPE_CHECKING:
    from ...contracts import Interaction
    from ...memory import ErasureReport
    from ...storage import StoredConversation


@click.group("sessions", cls=CLIGroup)
def command() -> None:
    """List, show or delete the stored sessions of agents.

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
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_(file: Path | None, data: Path | None, agent: str | None, person: str | None, limit: int, as_json: bool) -> None:
    """List the sessions, newest first. Works while the platform runs.

    \b
      spade-coreason sessions list --agent notes --person alice@example.org
    """
    run_async(_list(file, data, agent, person, limit, as_json))


async def _list(file: Path | None, data: Path | None, agent: str | None, person: str | None, limit: int, as_json: bool) -> None:
    owner = parse_person(person) if person else None
    async with open_storage(file, data, agent) as storage:
        found = []
        for jid in storage.agents:
            repository = storage.repository(jid)
            found += (
                [(jid, record) for record in await repository.list_conversations(owner=owner, limit=limit)]
                if repository
                else []
            )
    if as_json:
        print_json([_session_record(jid, record) for jid, record in found])
    elif not found:
        print_line(storage.describe_none("sessions"))
    else:
        rows = [
            (j, record.owner, record.conversation_id, record.turns, format_time(record.status.last_interaction))
            for j, record in found
        ]
        print_table(("agent", "person", "conversation", "turns", "last"), rows)


def _session_record(agent: str, conversation: StoredConversation) -> dict[str, Any]:
    from ...contracts.base import format_rfc3339

    return {
        "session_id": conversation.session_id,
        "agent_id": agent,
        "user_id": conversation.owner,
        "conversation_id": conversation.conversation_id,
        "turns": conversation.turns,
        "created_at": format_rfc3339(conversation.status.created_at),
        "last_interaction": format_rfc3339(conversation.status.last_interaction),
    }


@command.command("show")
@click.argument("conversation", shell_complete=complete_conversations)
@storage_options
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="Show at most this many turns, the newest."
)
@click.option("--json", "as_json", is_flag=True, help="Print the session as JSON.")
def show(file: Path | None, data: Path | None, agent: str | None, conversation: str, limit: int, as_json: bool) -> None:
    """Show a session: its turns and its variables. Works while the platform runs.

    CONVERSATION is an id from `sessions list`.

    \b
      spade-coreason sessions show alice@example.org_notes@example.org
    """
    run_async(_show(file, data, agent, conversation, limit, as_json))


async def _show(file: Path | None, data: Path | None, agent: str | None, conversation: str, limit: int, as_json: bool) -> None:
    from ...domain.history import parse_interactions

    async with open_storage(file, data, agent) as storage:
        jid, record = await _find_conversation(storage, conversation)
        repository = storage.repository(jid)
        if repository is None:
            raise ConfigError("CONVERSATION", "nothing is stored here")
        turns = parse_interactions(await repository.load_history(record.id, limit))
        own = {
            name: json.loads(value) for name, value in (await repository.load_variables("conversation", conversation)).items()
        }
        person = {name: json.loads(value) for name, value in (await repository.load_variables("person", record.owner)).items()}
    if as_json:
        whole = {
            **_session_record(jid, record),
            "variables": own,
            "person_variables": person,
            "history": [turn.dump() for turn in turns],
        }
        print_json(whole)
        return
    about = f"{record.owner} with {jid}, {record.status.state}, {record.turns} turns, session {record.session_id}"
    print_line(paint(conversation, "bold"), f"  {about}")
    for turn in turns:
        print_text(_input_text(turn), f"\n{paint(format_time(turn.timestamp), 'dim')}  {paint('▸', 'cyan')} ", "  ")
        print_text(_output_text(turn), "  ", "  ")
    for title, variables in (("Variables of the conversation", own), ("Variables of the person", person)):
        if variables:
            print_line()
            print_line(paint(title, "bold"))
            for name, value in variables.items():
                print_line(f"  {name} = {one_line(encode_json(value), 200)}")


def _input_text(turn: Interaction) -> str:
    request = turn.input
    if isinstance(request, dict) and isinstance(request.get("query"), str):
        return str(request["query"])
    return encode_json(turn.dump().get("input"))


def _output_text(turn: Interaction) -> str:
    output = turn.output
    parts = [str(output["text"])] if output.get("text") else []
    if output.get("data"):
        parts.append(encode_json(output["data"]))
    if isinstance(problem := output.get("error"), dict):
        parts.append(f"✗ {problem.get('user_message')}")
    return "\n".join(parts) or "(nothing)"


async def _find_conversation(storage: AgentStorage, conversation: str) -> tuple[str, StoredConversation]:
    found = []
    for jid in storage.agents:
        repository = storage.repository(jid)
        conversations = await repository.find_conversations([conversation]) if repository is not None else {}
        found += [(jid, record) for record in conversations.values()]
    if not found:
        raise ConfigError("CONVERSATION", f'there is no conversation "{conversation}"; `sessions list` shows them all')
    if len(found) > 1:
        raise ConfigError(
            "--agent", f"is missing; {' and '.join(jid for jid, _ in found)} have a conversation with this id; name one"
        )
    return found[0]


@command.command("clear")
@storage_options
@click.option("--person", metavar="JID", help="Delete all data of this person, except what they sent through another agent.")
@click.option(
    "--conversation", metavar="ID", shell_complete=complete_conversations, help="Delete this conversation and its memory."
)
@click.option("--all", "everything", is_flag=True, help="Delete the data of all people.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def clear(
    file: Path | None,
    data: Path | None,
    agent: str | None,
    person: str | None,
    conversation: str | None,
    everything: bool,
    yes: bool,
) -> None:
    """Delete sessions with their turns, variables, documents and interaction memories.

    Stop the platform first. --agent is required if there are several agents; --agent "*" means all of them.

    \b
      spade-coreason sessions clear --person alice@example.org --agent "*"
      spade-coreason sessions clear --conversation alice@example.org_notes@example.org
      spade-coreason sessions clear --agent notes --all
    """
    if [bool(person), bool(conversation), everything].count(True) != 1:
        raise ConfigError("sessions clear", "needs exactly one of --person JID, --conversation ID and --all")
    run_async(_clear(file, data, agent, person, conversation, yes))


async def _clear(
    file: Path | None, data: Path | None, agent: str | None, person: str | None, conversation: str | None, yes: bool
) -> None:
    from ...memory import ErasureReport, erase_conversation, erase_everyone, erase_person

    owner = parse_person(person) if person else None
    async with open_storage(file, data, agent, is_exclusive=True) as storage:
        if conversation is not None:
            jid, record = await _find_conversation(storage, conversation)
            confirm(f"delete the conversation {conversation} of {record.owner} with {jid}", yes)
            repository = storage.repository(jid)
            if repository is not None:
                _print_erasure(jid, await erase_conversation(repository, storage.memory(jid), record))
            return
        agents = storage.agents if agent == ALL_AGENTS else (storage.only_agent,)
        scope = f"of {owner}" if owner else "of all people"
        confirm(f"delete everything {scope} with {', '.join(agents)}", yes)
        for jid in agents:
            repository = storage.repository(jid)
            if repository is None:
                _print_erasure(jid, ErasureReport())
            elif owner:
                _print_erasure(jid, await erase_person(repository, storage.memory(jid), owner))
            else:
                _print_erasure(jid, await erase_everyone(repository, storage.memory(jid)))


def _print_erasure(agent: str, erasure: ErasureReport) -> None:
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
    ]
    if erasure.preferences:
        parts.append("preferences")
    print_line(f"{agent}: deleted {', '.join(parts)}.")
    for name in erasure.conversation_ids:
        print_line(f"  {name}")


def _count_text(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
