"""`spade-coreason sessions`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...exceptions import ConfigError
from ..agent_storage import ALL_AGENTS, AgentStorage, confirm, open_storage, storage_options
from ..completion import complete_conversations
from ..console import encode_json, format_time, one_line, paint, print_table, strip_control_characters
from ..context import CLIGroup, run_async

if TYPE_CHECKING:
    from ...contracts import Interaction
    from ...memory import ErasureReport
    from ...storage import StoredConversation


@click.group("sessions", cls=CLIGroup)
def command() -> None:
    """See or delete what the agents said with whom.

    \b
      spade-coreason sessions list
      spade-coreason sessions show alice@example.org_notes@example.org
      spade-coreason sessions clear --person alice@example.org
    """


@command.command("list")
@storage_options
@click.option("--person", metavar="JID", help="Only those of this person.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="At most so many of each agent, the newest."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_(file: Path | None, data: Path | None, agent: str | None, person: str | None, limit: int, as_json: bool) -> None:
    """List the sessions, the newest first. Works beside a running platform.

    \b
      spade-coreason sessions list --agent notes --person alice@example.org
    """
    run_async(_list(file, data, agent, person, limit, as_json))


async def _list(file: Path | None, data: Path | None, agent: str | None, person: str | None, limit: int, as_json: bool) -> None:
    async with open_storage(file, data, agent) as storage:
        found = []
        for jid in storage.agents:
            store = storage.repository(jid)
            found += [(jid, row) for row in await store.list_conversations(owner=person, limit=limit)] if store else []
    if as_json:
        print(encode_json([_session_record(jid, row) for jid, row in found], indent=2))
    elif not found:
        print("There are none.")
    else:
        rows = [(j, row.owner, row.conversation_id, row.turns, format_time(row.status.last_interaction)) for j, row in found]
        print_table(("agent", "person", "conversation", "turns", "last"), rows)


def _session_record(agent: str, row: StoredConversation) -> dict[str, Any]:
    from ...contracts.base import format_rfc3339

    return {
        "session_id": row.session_id,
        "agent_id": agent,
        "user_id": row.owner,
        "conversation_id": row.conversation_id,
        "turns": row.turns,
        "created_at": format_rfc3339(row.status.created_at),
        "last_interaction": format_rfc3339(row.status.last_interaction),
    }


@command.command("show")
@click.argument("conversation", shell_complete=complete_conversations)
@storage_options
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="At most so many turns, the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print the session as JSON.")
def show(file: Path | None, data: Path | None, agent: str | None, conversation: str, limit: int, as_json: bool) -> None:
    """Show a session: its turns and its variables. Works beside a running platform.

    CONVERSATION is its id, as `sessions list` shows it.

    \b
      spade-coreason sessions show alice@example.org_notes@example.org
    """
    run_async(_show(file, data, agent, conversation, limit, as_json))


async def _show(file: Path | None, data: Path | None, agent: str | None, conversation: str, limit: int, as_json: bool) -> None:
    from ...domain.history import parse_interactions as turns_of

    async with open_storage(file, data, agent) as storage:
        jid, row = await _find_conversation(storage, conversation)
        store = storage.repository(jid)
        if store is None:
            raise ConfigError("CONVERSATION", "nothing is stored here")
        turns = turns_of(await store.load_history(row.id, limit))
        own = {name: json.loads(value) for name, value in (await store.load_variables("conversation", conversation)).items()}
        person = {name: json.loads(value) for name, value in (await store.load_variables("person", row.owner)).items()}
    if as_json:
        whole = {
            **_session_record(jid, row),
            "variables": own,
            "person_variables": person,
            "history": [turn.dump() for turn in turns],
        }
        print(encode_json(whole, indent=2))
        return
    print(
        f"{paint(conversation, 'bold')}   {row.owner} with {jid}, {row.status.state}, {row.turns} turns, session {row.session_id}"
    )
    for turn in turns:
        print(
            f"\n{paint(format_time(turn.timestamp), 'dim')}  {paint('▸', 'cyan')} {strip_control_characters(_input_text(turn))}"
        )
        print("  " + strip_control_characters(_output_text(turn)).replace("\n", "\n  "))
    for title, variables in (("Variables of the conversation", own), ("Variables of the person", person)):
        if variables:
            print(f"\n{paint(title, 'bold')}")
            for name, value in variables.items():
                print(f"  {name} = {one_line(encode_json(value), 200)}")


def _input_text(turn: Interaction) -> str:
    asked = turn.input
    if isinstance(asked, dict) and isinstance(asked.get("query"), str):
        return str(asked["query"])
    return encode_json(turn.dump().get("input"))


def _output_text(turn: Interaction) -> str:
    output = turn.output
    said = [str(output["text"])] if output.get("text") else []
    if output.get("data"):
        said.append(encode_json(output["data"]))
    if isinstance(problem := output.get("error"), dict):
        said.append(f"✗ {problem.get('user_message')}")
    return "\n".join(said) or "(nothing)"


async def _find_conversation(storage: AgentStorage, conversation: str) -> tuple[str, StoredConversation]:
    found = []
    for jid in storage.agents:
        store = storage.repository(jid)
        rows = await store.find_conversations([conversation]) if store is not None else {}
        found += [(jid, row) for row in rows.values()]
    if not found:
        raise ConfigError("CONVERSATION", f'there is no "{conversation}"; `sessions list` shows what there is')
    if len(found) > 1:
        raise ConfigError("--agent", f"is missing; {' and '.join(jid for jid, _ in found)} have a conversation of this id")
    return found[0]


@command.command("clear")
@storage_options
@click.option(
    "--person", metavar="JID", help="Forget this person: all that is theirs, but what they told through another agent."
)
@click.option(
    "--conversation", metavar="ID", shell_complete=complete_conversations, help="Delete this conversation with its memory."
)
@click.option("--all", "everything", is_flag=True, help="Delete all that the agent has of anybody.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(
    file: Path | None,
    data: Path | None,
    agent: str | None,
    person: str | None,
    conversation: str | None,
    everything: bool,
    yes: bool,
) -> None:
    """Delete sessions with all that belongs to them, interaction memories included.

    The platform has to be stopped. --agent "*" means every agent; it may be left out where there is only one.

    \b
      spade-coreason sessions clear --person alice@example.org --agent "*"
      spade-coreason sessions clear --conversation alice@example.org_notes@example.org
      spade-coreason sessions clear --agent notes --all
    """
    if [bool(person), bool(conversation), everything].count(True) != 1:
        raise ConfigError("sessions clear", "say what: --person JID, --conversation ID or --all, one of them")
    run_async(_clear(file, data, agent, person, conversation, yes))


async def _clear(
    file: Path | None, data: Path | None, agent: str | None, person: str | None, conversation: str | None, yes: bool
) -> None:
    from ...memory import ErasureReport, forget_conversation, forget_everybody, forget_person

    who = _parse_person(person) if person else None
    async with open_storage(file, data, agent, is_exclusive=True) as storage:
        if conversation is not None:
            jid, row = await _find_conversation(storage, conversation)
            confirm(f"delete the conversation {conversation} of {row.owner} with {jid}", yes)
            store = storage.repository(jid)
            if store is not None:
                _print_erasure(jid, await forget_conversation(store, storage.memory(jid), row))
            return
        agents = storage.agents if agent == ALL_AGENTS else (storage.only_agent,)
        whose = f"of {who}" if who else "of everybody"
        confirm(f"delete everything {whose} with {', '.join(agents)}", yes)
        for jid in agents:
            store = storage.repository(jid)
            if store is None:
                _print_erasure(jid, ErasureReport())
            elif who:
                _print_erasure(jid, await forget_person(store, storage.memory(jid), who))
            else:
                _print_erasure(jid, await forget_everybody(store, storage.memory(jid)))


def _parse_person(person: str) -> str:
    from ...domain.jid import bare_jid, parse_jid

    try:
        return bare_jid(parse_jid(person))
    except ValueError as error:
        raise ConfigError("--person", str(error)) from error


def _print_erasure(agent: str, erasure: ErasureReport) -> None:
    if erasure.is_empty:
        print(f"{agent}: there was nothing.")
        return
    parts = [
        _count_text(len(erasure.conversation_ids), "conversation"),
        _count_text(erasure.interactions, "turn"),
        _count_text(erasure.variables, "variable"),
        f"memories of {_count_text(erasure.memories, 'conversation')}",
        _count_text(erasure.requests, "waiting request"),
        *([_count_text(erasure.documents, "document")] if erasure.documents else []),
        *([_count_text(erasure.audit_entries, "audited step")] if erasure.audit_entries else []),
    ]
    if erasure.preferences:
        parts.append("what they preferred")
    print(f"{agent}: deleted {', '.join(parts)}.")
    for name in erasure.conversation_ids:
        print(f"  {name}")


def _count_text(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
