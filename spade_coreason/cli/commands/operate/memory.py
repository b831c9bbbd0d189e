"""The command `spade-coreason memory`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ....exceptions import ConfigError
from ...context import CLIGroup, json_option
from ...operations import confirm, describe_none, open_platform, storage_options, yes_option
from ...terminal.console import one_line, print_json, print_line, print_table, print_text


@click.group("memory", cls=CLIGroup)
def command() -> None:
    """List, show, delete, export, import or compact the interaction memories of agents.

    \b
      spade-coreason memory list
      spade-coreason memory show alice@example.org_notes@example.org
      spade-coreason memory clear --agent notes --all
      spade-coreason memory compact
    """


@command.command("list")
@storage_options
@json_option()
def list_(file: Path | None, data: Path | None, agent: str | None, as_json: bool) -> None:
    """List the conversations with interaction memories. Works while the platform runs.

    \b
      spade-coreason memory list --agent notes
    """
    from ....operations.memory import OfAgents, list_memories

    with open_platform(file, data) as platform:
        found = platform.perform(list_memories, OfAgents(agent=agent))
    if as_json:
        print_json([asdict(one) for one in found])
    elif not found:
        print_line(describe_none(platform, "interaction memories"))
    else:
        rows = [(one.agent_id, one.conversation_id, len(one.information), one_line(one.information[-1])) for one in found]
        print_table(("agent", "conversation", "entries", "newest"), rows, texts=("newest",))


@command.command("show")
@click.argument("conversation")
@storage_options
@json_option()
def show(file: Path | None, data: Path | None, agent: str | None, conversation: str, as_json: bool) -> None:
    """Show the interaction memory of a conversation, oldest entry first. Works while the platform runs.

    CONVERSATION is an id from `memory list`.

    \b
      spade-coreason memory show alice@example.org_notes@example.org
    """
    from ....operations.memory import OfConversation, show_memory

    with open_platform(file, data) as platform:
        found = platform.perform(show_memory, OfConversation(agent=agent, conversation=conversation))
    if as_json:
        print_json(found.information)
        return
    for text in found.information:
        print_text(text, "- ", "  ")


@command.command("clear")
@storage_options
@click.option("--conversation", metavar="ID", help="Delete the memory of this conversation.")
@click.option("--all", "everything", is_flag=True, help="Delete the memories of all conversations.")
@yes_option
def clear(
    file: Path | None, data: Path | None, agent: str | None, conversation: str | None, everything: bool, yes: bool
) -> None:
    """Delete interaction memories of an agent, but not its sessions (see `sessions clear`).

    Works while the platform runs. --agent is required if there are several agents.

    \b
      spade-coreason memory clear --agent notes --conversation alice@example.org_notes@example.org
    """
    if bool(conversation) == everything:
        raise ConfigError("memory clear", "needs either --conversation ID or --all")
    from ....operations.memory import ClearMemory, clear_memory, find_memories

    with open_platform(file, data, changes=True) as platform:
        wanted = ClearMemory(agent=agent, conversation=conversation)
        found = platform.perform(find_memories, wanted)
        if not found.conversation_ids:
            print_line(f"{found.agent}: no memories to delete.")
            return
        confirm(f"delete what {found.agent} remembers of {conversation or f'{len(found.conversation_ids)} conversations'}", yes)
        deleted = platform.perform(clear_memory, wanted)
    count = len(deleted.conversation_ids)
    print_line(f"{deleted.agent}: deleted the memories of {count} conversation{'' if count == 1 else 's'}.")
    for name in deleted.conversation_ids:
        print_line(f"  {name}")


@command.command("compact")
@storage_options
def compact(file: Path | None, data: Path | None, agent: str | None) -> None:
    """Merge the journals into the memory files, which are then complete. Works while the platform runs.

    With PostgreSQL there are no such files.

    \b
      spade-coreason memory compact --agent notes
    """
    from ....operations.memory import OfAgents, compact_memory

    with open_platform(file, data) as platform:
        for found in platform.perform(compact_memory, OfAgents(agent=agent)):
            complete = f"{found.path} is complete." if found.path else "the database has everything; there is no file."
            print_line(f"{found.agent}: {complete if found.conversations else 'no memories.'}")


@command.command("export")
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path))
@storage_options
def export(file: Path | None, data: Path | None, agent: str | None, target: Path) -> None:
    """Write the interaction memory of an agent to FILE, in the JSON of spade_llm. Works while the platform runs.

    FILE must not exist. `memory import` reads it. --agent is required if there are several agents.

    \b
      spade-coreason memory export notes.json --agent notes@example.org
    """
    from ....operations.memory import ExportMemory, export_memory

    with open_platform(file, data) as platform:
        found = platform.perform(export_memory, ExportMemory(agent=agent, target=target.absolute()))
    entries = f"{found.entries} {'entry' if found.entries == 1 else 'entries'}"
    print_line(f"{found.agent}: wrote {entries} to {target}.")


@command.command("import")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@storage_options
def import_(file: Path | None, data: Path | None, agent: str | None, source: Path) -> None:
    """Import FILE, the exported memory of an agent or that of spade_llm. Works while the platform runs.

    FILE is not changed. A second import of it adds nothing. --agent is required if there are several agents.

    \b
      spade-coreason memory import spade_llm/data/agent_memory/notes_example.org_interactions.json --agent notes@example.org
    """
    from ....operations.memory import ImportMemory, import_memory

    with open_platform(file, data, changes=True) as platform:
        found = platform.perform(import_memory, ImportMemory(agent=agent, source=source.absolute()))
    entries = f"{found.entries} {'entry' if found.entries == 1 else 'entries'}"
    print_line(f"{found.agent}: imported {entries}; {source} is unchanged and no longer needed.")
