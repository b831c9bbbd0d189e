"""The command `spade-coreason memory`."""

from __future__ import annotations

from pathlib import Path

import click

from ...exceptions import ConfigError
from ..agent_storage import confirm, open_storage, storage_options
from ..context import CLIGroup, run_async
from ..terminal.console import one_line, print_json, print_line, print_table, print_text


@click.group("memory", cls=CLIGroup)
def command() -> None:
    """List, show, delete, import or compact the interaction memories of agents.

    \b
      spade-coreason memory list
      spade-coreason memory show alice@example.org_notes@example.org
      spade-coreason memory clear --agent notes --all
      spade-coreason memory compact
    """


@command.command("list")
@storage_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_(file: Path | None, data: Path | None, agent: str | None, as_json: bool) -> None:
    """List the conversations with interaction memories. Works while the platform runs.

    \b
      spade-coreason memory list --agent notes
    """
    run_async(_list(file, data, agent, as_json))


async def _list(file: Path | None, data: Path | None, agent: str | None, as_json: bool) -> None:
    found = []
    async with open_storage(file, data, agent) as storage:
        for jid in storage.agents:
            memory = storage.memory(jid)
            for name in await memory.aget_all_conversations():
                found.append((jid, name, await memory.aget_information(name)))
    if as_json:
        records = [{"agent_id": jid, "conversation_id": name, "information": texts} for jid, name, texts in found]
        print_json(records)
    elif not found:
        print_line("No interaction memories.")
    else:
        rows = [(jid, name, len(texts), one_line(texts[-1])) for jid, name, texts in found]
        print_table(("agent", "conversation", "entries", "newest"), rows, texts=("newest",))


@command.command("show")
@click.argument("conversation")
@storage_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def show(file: Path | None, data: Path | None, agent: str | None, conversation: str, as_json: bool) -> None:
    """Show the interaction memory of a conversation, oldest entry first. Works while the platform runs.

    CONVERSATION is an id from `memory list`.

    \b
      spade-coreason memory show alice@example.org_notes@example.org
    """
    run_async(_show(file, data, agent, conversation, as_json))


async def _show(file: Path | None, data: Path | None, agent: str | None, conversation: str, as_json: bool) -> None:
    async with open_storage(file, data, agent) as storage:
        found = {jid: await storage.memory(jid).aget_information(conversation) for jid in storage.agents}
    found = {jid: texts for jid, texts in found.items() if texts}
    if not found:
        raise ConfigError("CONVERSATION", f'no memory of the conversation "{conversation}"; `memory list` shows them all')
    if len(found) > 1:
        raise ConfigError("--agent", f"is missing: {' and '.join(found)} have a memory of this conversation; name one")
    [texts] = found.values()
    if as_json:
        print_json(texts)
        return
    for text in texts:
        print_text(text, "- ", "  ")


@command.command("clear")
@storage_options
@click.option("--conversation", metavar="ID", help="Delete the memory of this conversation.")
@click.option("--all", "everything", is_flag=True, help="Delete the memories of all conversations.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def clear(
    file: Path | None, data: Path | None, agent: str | None, conversation: str | None, everything: bool, yes: bool
) -> None:
    """Delete interaction memories of an agent, but not its sessions (see `sessions clear`).

    Stop the platform first. --agent is required if there are several agents.

    \b
      spade-coreason memory clear --agent notes --conversation alice@example.org_notes@example.org
    """
    if bool(conversation) == everything:
        raise ConfigError("memory clear", "needs either --conversation ID or --all")
    run_async(_clear(file, data, agent, conversation, yes))


async def _clear(file: Path | None, data: Path | None, agent: str | None, conversation: str | None, yes: bool) -> None:
    async with open_storage(file, data, agent, is_exclusive=True) as storage:
        jid = storage.only_agent
        memory = storage.memory(jid)
        remembered = await memory.aget_all_conversations()
        names = remembered if conversation is None else [name for name in remembered if name == conversation]
        if not names:
            print_line(f"{jid}: no memories to delete.")
            return
        confirm(f"delete what {jid} remembers of {conversation or f'{len(names)} conversations'}", yes)
        await memory.aclear_conversations(names)
    print_line(f"{jid}: deleted the memories of {len(names)} conversation{'' if len(names) == 1 else 's'}.")
    for name in names:
        print_line(f"  {name}")


@command.command("compact")
@storage_options
def compact(file: Path | None, data: Path | None, agent: str | None) -> None:
    """Merge the journals into the memory files, which are then complete. Works while the platform runs.

    \b
      spade-coreason memory compact --agent notes
    """
    run_async(_compact(file, data, agent))


async def _compact(file: Path | None, data: Path | None, agent: str | None) -> None:
    async with open_storage(file, data, agent) as storage:
        for jid in storage.agents:
            memory = storage.memory(jid)
            await memory.aflush()
            conversations = await memory.aget_all_conversations()
            print_line(f"{jid}: {memory.path} is complete." if conversations else f"{jid}: no memories.")


@command.command("import")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@storage_options
def import_(file: Path | None, data: Path | None, agent: str | None, source: Path) -> None:
    """Import the memory FILE of a spade_llm agent. Works while the platform runs.

    FILE is not changed. A second import of it adds nothing. --agent is required if there are several agents.

    \b
      spade-coreason memory import spade_llm/data/agent_memory/notes_example.org_interactions.json --agent notes@example.org
    """
    run_async(_import(file, data, agent, source))


async def _import(file: Path | None, data: Path | None, agent: str | None, source: Path) -> None:
    async with open_storage(file, data, agent) as storage:
        jid = storage.only_agent
        count = await storage.memory(jid).aimport_file(source)
    print_line(f"{jid}: imported {count} {'entry' if count == 1 else 'entries'}; {source} is unchanged and no longer needed.")
