"""Forgetting, over all stores: a conversation or a person goes from the sessions and from the interaction memory together."""

from __future__ import annotations

from dataclasses import dataclass

from ..domain.identifiers import possible_ids
from ..domain.jid import bare
from ..storage import AgentStore, ConversationRow, ForgetReport
from .interaction.store import AgentInteractionMemory

_ALL = 2**31


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was deleted of one agent: how many of each.

    `memories` are the conversations in its interaction memory, `documents` what was known of the person or the conversations
    alone, turns in the knowledge included. Of `audit_entries` the hashes stay.
    """

    conversation_ids: tuple[str, ...] = ()
    interactions: int = 0
    variables: int = 0
    requests: int = 0
    memories: int = 0
    preferences: int = 0
    documents: int = 0
    audit_entries: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether there was nothing to delete."""
        return self == Forgotten()

    def and_also(self, report: ForgetReport, memories: int) -> Forgotten:
        """The sum with another report."""
        return Forgotten(
            self.conversation_ids + report.conversation_ids,
            self.interactions + report.interactions,
            self.variables + report.variables,
            self.requests + report.requests,
            self.memories + memories,
            self.preferences + report.preferences,
            self.documents + report.documents,
            self.audit_entries + report.audit_entries,
        )


async def forget_conversation(
    store: AgentStore, memory: AgentInteractionMemory | None, row: ConversationRow, *, with_copies: bool = True
) -> Forgotten:
    """Deletes a conversation with its turns, its variables and its memory entry.

    A variable that is kept for the person too goes there likewise, `with_copies`, if it has the value that it has here, and
    has it in no other conversation of theirs.
    What else its owner told the agent for all their conversations (the person scope) stays.
    """
    # The memory goes first: were it left behind by a crash, nobody could say any more whose it is.
    memories = int(await memory.aclear_conversation(row.conversation_id)) if memory is not None else 0
    return Forgotten().and_also(await store.delete_conversation(row, with_copies=with_copies), memories)


async def held_of(store: AgentStore, person: str) -> tuple[str, list[ConversationRow], list[str]]:
    """Under what an agent has anything about a person (a JID): their name there, conversations, and names in its memory."""
    if not await store.conversations(owner=person, limit=1):  # as an occupant of a room may have one
        person = bare(person)
    rows = await store.conversations(owner=person, limit=_ALL)
    # The conversation without a thread may be in the memory alone.
    names = dict.fromkeys([*(row.conversation_id for row in rows), possible_ids(None, person, store.agent)[0]])
    return person, rows, list(names)


async def forget_person(store: AgentStore, memory: AgentInteractionMemory | None, person: str) -> Forgotten:
    """Deletes everything that one agent has about a person (a JID), requests that still wait included."""
    person, _, names = await held_of(store, person)
    memories = await memory.aclear_conversations(names) if memory is not None else 0
    return Forgotten().and_also(await store.forget(person), memories)


async def forget_everybody(store: AgentStore, memory: AgentInteractionMemory) -> Forgotten:
    """Deletes everything that one agent has about anybody it talked with."""
    total = Forgotten(memories=await memory.aclear_conversations(await memory.aget_all_conversations()))
    for person in await store.people():
        total = total.and_also(await store.forget(person), 0)
    return total
