"""The operations on interaction memories."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..domain.texts.enumeration import join_names
from ..exceptions import ConfigError, StoreError
from ..memory import AgentInteractionMemory
from ..storage import COMPACTION_VARIABLE, INTERNAL_VARIABLES, CompactionState
from .definition import PERSON, Arguments, Call, operation
from .host import OperationHost, owner_of, select_agent, select_agents


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
class ExportedMemory:
    """The number of entries in the file."""

    agent: str
    entries: int


@dataclass(frozen=True, slots=True)
class ImportedMemory:
    """The number of entries that were new."""

    agent: str
    entries: int


class OfAgents(Arguments):
    """The agents; all without a name."""

    agent: str | None = None


@operation("memory.list")
async def list_memories(call: Call, arguments: OfAgents) -> list[RememberedConversation]:
    """List the conversations with interaction memories."""
    found = []
    for agent in await select_agents(call.host, arguments.agent):
        entries = await _memory_of(call.host, agent).aget_entries()
        found += [RememberedConversation(agent, name, [text for text, _ in known]) for name, known in entries.items()]
    return found


class OfConversation(Arguments):
    """A conversation, by its id."""

    conversation: str
    agent: str | None = None


@operation("memory.show")
async def show_memory(call: Call, arguments: OfConversation) -> RememberedConversation:
    """Show the interaction memory of a conversation."""
    name = arguments.conversation
    agents = await select_agents(call.host, arguments.agent)
    found = {agent: await _memory_of(call.host, agent).aget_information(name) for agent in agents}
    having = [agent for agent, texts in found.items() if texts]
    if not having:
        raise ConfigError("conversation", f'no memory of the conversation "{name}"; `memory list` shows them all')
    if len(having) > 1:
        raise ConfigError("agent", f"is missing: {join_names(having)} have a memory of this conversation; name one")
    return RememberedConversation(having[0], name, found[having[0]])


@dataclass(frozen=True, slots=True)
class Recollection:
    """The memory that an agent reads in a conversation of a person: facts, and variables as JSON by name.

    `summary` is that of the turns which are no longer sent to its language model.
    """

    facts: list[str]
    variables: dict[str, str]
    person_variables: dict[str, str]
    summary: str


class RecallMemory(Arguments):
    """A person (a bare JID), and a conversation of theirs by its id."""

    person: str
    conversation: str | None = None
    agent: str | None = None


@operation("memory.recall", PERSON)
async def recall_memory(call: Call, arguments: RecallMemory) -> Recollection:
    """Show what an agent remembers in a conversation of a person, and of the person."""
    agent = await select_agent(call.host, arguments.agent)
    repository, name = call.host.repository(agent), arguments.conversation
    memory = call.host.memory(agent)
    facts = [] if name is None or memory is None else await memory.aget_information(name)
    variables = {} if name is None else await repository.load_variables("conversation", name)
    of_person = await repository.load_variables("person", arguments.person)
    window = variables.get(COMPACTION_VARIABLE)
    for found in (variables, of_person):
        for internal in INTERNAL_VARIABLES & found.keys():
            del found[internal]
    summary = "" if window is None else CompactionState.from_json(window).summary
    return Recollection(facts, variables, of_person, summary)


class ClearMemory(Arguments):
    """The conversation whose memory is deleted; without one, those of all are."""

    agent: str | None = None
    conversation: str | None = None


@operation("memory.find_targets")
async def find_memories(call: Call, arguments: ClearMemory) -> ForgottenMemories:
    """Find what a deletion would be about."""
    agent = await select_agent(call.host, arguments.agent)
    names = await _memory_of(call.host, agent).aget_all_conversations()
    return ForgottenMemories(agent, [name for name in names if arguments.conversation in (None, name)])


@operation("memory.clear", is_change=True)
async def clear_memory(call: Call, arguments: ClearMemory) -> ForgottenMemories:
    """Delete interaction memories of an agent, but not its sessions."""
    found, only = await find_memories(call, arguments), arguments.conversation
    if found.conversation_ids:
        person = "" if only is None else await owner_of(call.host, found.agent, only)
        resource = "all conversations" if only is None else f"conversation {only}" if person else "a conversation"
        await call.record(found.agent, "memory.clear", resource, person=person)
        await _memory_of(call.host, found.agent).aclear_conversations(found.conversation_ids)
    return found


@operation("memory.compact")
async def compact_memory(call: Call, arguments: OfAgents) -> list[CompactedMemory]:
    """Merge the journals into the memory files, which are then complete."""
    found = []
    for agent in await select_agents(call.host, arguments.agent):
        memory = _memory_of(call.host, agent)
        await memory.aflush()
        found.append(
            CompactedMemory(agent, str(memory.path) if memory.has_file else "", len(await memory.aget_all_conversations()))
        )
    return found


class ExportMemory(Arguments):
    """The new file, as a path on the machine of the platform."""

    target: Path
    agent: str | None = None


@operation("memory.export")
async def export_memory(call: Call, arguments: ExportMemory) -> ExportedMemory:
    """Write the interaction memory of an agent to a file in the format of spade_llm."""
    agent = await select_agent(call.host, arguments.agent)
    memory = _memory_of(call.host, agent)
    if call.host.database is None and not await memory.aget_all_conversations():
        raise StoreError(
            "nothing is stored here yet; name the platform's configuration with -c FILE, or its data with --data DIR"
        )
    return ExportedMemory(agent, await memory.aexport_file(arguments.target))


class ImportMemory(Arguments):
    """The file of a spade_llm agent, as a path on the machine of the platform."""

    source: Path
    agent: str | None = None


@operation("memory.import", is_change=True)
async def import_memory(call: Call, arguments: ImportMemory) -> ImportedMemory:
    """Import the memory file of a spade_llm agent. A second import of it adds nothing."""
    agent = await select_agent(call.host, arguments.agent)
    memory = _memory_of(call.host, agent)
    if not (new := await memory.aread_new(arguments.source)):
        return ImportedMemory(agent, 0)
    await call.record(agent, "memory.import", arguments.source.name)
    return ImportedMemory(agent, await memory.amerge(new))


def _memory_of(host: OperationHost, agent: str) -> AgentInteractionMemory:
    if (memory := host.memory(agent)) is None:
        raise StoreError(f"{agent} has no interaction memory")
    return memory
