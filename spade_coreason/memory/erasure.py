"""Forgetting, over all stores: a conversation or a person goes from the sessions and from the interaction memory together."""

from __future__ import annotations

from dataclasses import dataclass

from ..domain.identifiers import candidate_conversation_ids
from ..domain.jid import bare_jid
from ..storage import AgentRepository, DeletionReport, StoredConversation
from .interaction.store import AgentInteractionMemory

_NO_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class ErasureReport:
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
    def is_empty(self) -> bool:
        """Whether there was nothing to delete."""
        return self == ErasureReport()

    def plus(self, report: DeletionReport, memories: int) -> ErasureReport:
        """The sum with another report."""
        return ErasureReport(
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
    repository: AgentRepository, memory: AgentInteractionMemory | None, record: StoredConversation, *, with_copies: bool = True
) -> ErasureReport:
    """Deletes a conversation with its turns, its variables and its memory entry.

    A variable that is kept for the person too goes there likewise, `with_copies`, if it has the value that it has here, and
    has it in no other conversation of theirs.
    What else its owner told the agent for all their conversations (the person scope) stays.
    """
    # The memory goes first: were it left behind by a crash, nobody could say any more whose it is.
    memories = int(await memory.aclear_conversation(record.conversation_id)) if memory is not None else 0
    return ErasureReport().plus(await repository.delete_conversation(record, with_copies=with_copies), memories)


async def find_person_records(repository: AgentRepository, person: str) -> tuple[str, list[StoredConversation], list[str]]:
    """Under what an agent has anything about a person (a JID): their name there, conversations, and names in its memory."""
    if not await repository.list_conversations(owner=person, limit=1):  # as an occupant of a room may have one
        person = bare_jid(person)
    rows = await repository.list_conversations(owner=person, limit=_NO_LIMIT)
    # The conversation without a thread may be in the memory alone.
    names = dict.fromkeys(
        [*(row.conversation_id for row in rows), candidate_conversation_ids(None, person, repository.agent)[0]]
    )
    return person, rows, list(names)


async def forget_person(repository: AgentRepository, memory: AgentInteractionMemory | None, person: str) -> ErasureReport:
    """Deletes everything that one agent has about a person (a JID), requests that still wait included."""
    person, _, names = await find_person_records(repository, person)
    memories = await memory.aclear_conversations(names) if memory is not None else 0
    return ErasureReport().plus(await repository.erase_person(person), memories)


async def forget_everybody(repository: AgentRepository, memory: AgentInteractionMemory) -> ErasureReport:
    """Deletes everything that one agent has about anybody it talked with."""
    total = ErasureReport(memories=await memory.aclear_conversations(await memory.aget_all_conversations()))
    for person in await repository.list_people():
        total = total.plus(await repository.erase_person(person), 0)
    return total
