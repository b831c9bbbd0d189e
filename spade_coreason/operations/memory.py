"""List, show, delete, export, import or compact the interaction memories of agents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from .. import storage
from ..exceptions import ConfigError, StoreError
from .definition import PERSON, About, Call, OfAgents, operation
from .host import OperationHost, owner_of, select_agent, select_agents
from .lists import choose_one
from .view import TableView, View, count

if TYPE_CHECKING:
    from ..memory import AgentInteractionMemory


_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class RememberedConversation:
    """The memory of a conversation, oldest entry first."""

    agent_id: str
    conversation_id: str
    information: list[str]


@dataclass(frozen=True, slots=True)
class ForgottenMemories:
    """The conversations whose memories were deleted."""

    agent: str
    conversation_ids: list[str]


@dataclass(frozen=True, slots=True)
class CompactedMemory:
    """The memory file of an agent, which has all that the agent remembers; "" if the database has it instead."""

    agent: str
    path: str
    conversations: int


@dataclass(frozen=True, slots=True)
class CopiedEntries:
    """The number of entries that an export has written, or that were new in an import, and the file."""

    agent: str
    entries: int
    file: str


def _count_entries(found: CopiedEntries) -> str:
    return f"{found.entries:,} {'entry' if found.entries == 1 else 'entries'}"


@operation(
    "memory.list",
    view=View(
        examples=["memory list --agent notes"],
        table=TableView(
            "interaction memories",
            columns=[
                ("agent", "agent_id"),
                ("conversation", "conversation_id"),
                ("entries", lambda one: len(one.information)),
                ("newest", lambda one: " ".join(one.information[-1].split())[:_SHOWN_CHARACTERS]),
            ],
            texts=["newest"],
        ),
        links=["memory.show", "memory.clear"],
        role="content",
    ),
)
async def list_memories(call: Call, arguments: OfAgents) -> list[RememberedConversation]:
    """List the conversations with interaction memories."""
    found = []
    for agent in await select_agents(call.host, arguments.agent):
        entries = await _memory_of(call.host, agent).aget_entries()
        found += [RememberedConversation(agent, name, [text for text, _ in known]) for name, known in entries.items()]
    return found


class OfConversation(OfAgents):
    """A conversation, by its id."""

    conversation: str


@operation(
    "memory.show",
    view=View(
        examples=["memory show alice@example.org_notes@example.org"],
        given=["conversation"],
        dump=lambda found: found.information,
        role="content",
    ),
)
async def show_memory(call: Call, arguments: OfConversation) -> RememberedConversation:
    """Show the interaction memory of a conversation, oldest entry first.

    CONVERSATION is an id from `memory list`.
    """
    name = arguments.conversation
    agents = await select_agents(call.host, arguments.agent)
    found = {agent: await _memory_of(call.host, agent).aget_information(name) for agent in agents}
    agent, texts = choose_one(found, name, "memory of the conversation", "memory list")
    return RememberedConversation(agent, name, texts)


@dataclass(frozen=True, slots=True)
class Recollection:
    """The memory that an agent reads in a conversation of a person: facts, and variables as JSON by name.

    `summary` is that of the turns which are no longer sent to its language model.
    """

    facts: list[str]
    variables: dict[str, str]
    person_variables: dict[str, str]
    summary: str


class RecallMemory(OfAgents):
    """A person (a bare JID), and a conversation of theirs by its id."""

    person: str
    conversation: str | None = None


@operation("memory.recall", PERSON)
async def recall_memory(call: Call, arguments: RecallMemory) -> Recollection:
    """Show what an agent remembers in a conversation of a person, and of the person."""
    agent = await select_agent(call.host, arguments.agent)
    repository, name = call.host.repository(agent), arguments.conversation
    memory = call.host.memory(agent)
    facts = [] if name is None or memory is None else await memory.aget_information(name)
    variables = {} if name is None else await repository.load_variables("conversation", name)
    of_person = await repository.load_variables("person", arguments.person)
    window = variables.get(storage.COMPACTION_VARIABLE)
    for found in (variables, of_person):
        for internal in storage.INTERNAL_VARIABLES & found.keys():
            del found[internal]
    summary = "" if window is None else storage.CompactionState.from_json(window).summary
    return Recollection(facts, variables, of_person, summary)


class FindMemories(OfAgents):
    """The conversation whose memory is meant; without one, those of all are."""

    conversation: str | None = None


@operation("memory.find_targets")
async def find_memories(call: Call, arguments: FindMemories) -> ForgottenMemories:
    """Find what a deletion would be about."""
    agent = await select_agent(call.host, arguments.agent)
    names = await _memory_of(call.host, agent).aget_all_conversations()
    return ForgottenMemories(agent, [name for name in names if arguments.conversation in (None, name)])


class ClearMemory(OfAgents):
    """The conversation whose memory is deleted, or everything."""

    conversation: Annotated[str | None, About("Delete the memory of this conversation.")] = None
    everything: Annotated[bool, About("Delete the memories of all conversations.", option="all")] = False

    def __post_init__(self) -> None:
        if (self.conversation is not None) is self.everything:
            raise ConfigError("memory clear", "needs either --conversation ID or --all")


def _ask_to_clear(wanted: ClearMemory, found: ForgottenMemories) -> str:
    what = wanted.conversation or count(len(found.conversation_ids), "conversation")
    return f"delete what {found.agent} remembers of {what}" if found.conversation_ids else ""


def _describe_cleared(found: ForgottenMemories) -> list[str]:
    if not found.conversation_ids:
        return [f"{found.agent}: no memories to delete."]
    cleared = f"{found.agent}: deleted the memories of {count(len(found.conversation_ids), 'conversation')}."
    return [cleared, *(f"  {conversation}" for conversation in found.conversation_ids)]


@operation(
    "memory.clear",
    is_change=True,
    view=View(
        examples=[
            "memory clear --agent notes --conversation alice@example.org_notes@example.org",
            "memory clear --agent notes --all",
        ],
        question=_ask_to_clear,
        asks=find_memories,
        done=_describe_cleared,
    ),
)
async def clear_memory(call: Call, arguments: ClearMemory) -> ForgottenMemories:
    """Delete interaction memories of an agent, but not its sessions (see `sessions clear`).

    --agent is required if there are several agents.
    """
    only = arguments.conversation
    found = await find_memories(call, FindMemories(agent=arguments.agent, conversation=only))
    if found.conversation_ids:
        person = "" if only is None else await owner_of(call.host, found.agent, only)
        resource = "all conversations" if only is None else f"conversation {only}" if person else "a conversation"
        await call.record(found.agent, "memory.clear", resource, person=person)
        await _memory_of(call.host, found.agent).aclear_conversations(found.conversation_ids)
    return found


def _describe_compacted(found: CompactedMemory) -> str:
    complete = f"{found.path} is complete." if found.path else "the database has everything; there is no file."
    return f"{found.agent}: {complete if found.conversations else 'no memories.'}"


@operation("memory.compact", view=View(examples=["memory compact", "memory compact --agent notes"], done=_describe_compacted))
async def compact_memory(call: Call, arguments: OfAgents) -> list[CompactedMemory]:
    """Merge the journals into the memory files, which are then complete.

    With PostgreSQL there are no such files.
    """
    found = []
    for agent in await select_agents(call.host, arguments.agent):
        memory = _memory_of(call.host, agent)
        await memory.aflush()
        found.append(
            CompactedMemory(agent, str(memory.path) if memory.has_file else "", len(await memory.aget_all_conversations()))
        )
    return found


class ExportMemory(OfAgents):
    """The new file, as a path on the machine of the platform."""

    target: Annotated[Path, About("The new file.", "FILE")]


@operation(
    "memory.export",
    view=View(
        examples=["memory export notes.json --agent notes@example.org"],
        given=["target"],
        done=lambda found: f"{found.agent}: wrote {_count_entries(found)} to {found.file}.",
        role="content",
    ),
)
async def export_memory(call: Call, arguments: ExportMemory) -> CopiedEntries:
    """Write the interaction memory of an agent to FILE, in the JSON of spade_llm.

    FILE must not exist. `memory import` reads it. --agent is required if there are several agents.
    """
    agent = await select_agent(call.host, arguments.agent)
    memory = _memory_of(call.host, agent)
    if call.host.database is None and not await memory.aget_all_conversations():
        raise StoreError(
            "nothing is stored here yet; name the platform's configuration with -c FILE, or its data with --data DIR"
        )
    return CopiedEntries(agent, await memory.aexport_file(arguments.target), str(arguments.target))


class ImportMemory(OfAgents):
    """The file of a spade_llm agent, as a path on the machine of the platform."""

    source: Annotated[Path, About("The file.", "FILE")]


@operation(
    "memory.import",
    is_change=True,
    view=View(
        examples=["memory import spade_llm/data/agent_memory/notes_example.org_interactions.json --agent notes@example.org"],
        given=["source"],
        done=lambda found: f"{found.agent}: imported {_count_entries(found)}; {found.file} is unchanged and no longer needed.",
    ),
)
async def import_memory(call: Call, arguments: ImportMemory) -> CopiedEntries:
    """Import FILE, the exported memory of an agent or that of spade_llm.

    FILE is not changed. A second import of it adds nothing. --agent is required if there are several agents.
    """
    agent = await select_agent(call.host, arguments.agent)
    memory = _memory_of(call.host, agent)
    if not (new := await memory.aread_new(arguments.source)):
        return CopiedEntries(agent, 0, str(arguments.source))
    await call.record(agent, "memory.import", arguments.source.name)
    return CopiedEntries(agent, await memory.amerge(new), str(arguments.source))


def _memory_of(host: OperationHost, agent: str) -> AgentInteractionMemory:
    if (memory := host.memory(agent)) is None:
        raise StoreError(f"{agent} has no interaction memory")
    return memory
