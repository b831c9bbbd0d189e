"""Erasure of a conversation or a person from all stores of an agent: the database and the interaction memory together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ..domain.identifiers import candidate_conversation_ids
from ..domain.jid import bare_jid
from ..storage import (
    AgentRepository,
    DocumentCollection,
    ErasureReport,
    FoundConversation,
    StoredConversation,
    TimeSpans,
    find_spans,
    is_emptied,
    to_micros,
)
from .interaction.store import AgentInteractionMemory

_NO_LIMIT = 2**31
_BATCH_TURNS = 500
"""The number of turns that are deleted in one transaction. Turns of others wait until it ends."""


async def erase_conversation(
    repository: AgentRepository, memory: AgentInteractionMemory | None, record: StoredConversation, *, with_copies: bool = True
) -> ErasureReport:
    """Delete a conversation with its turns, its variables and its interaction memory.

    Variables in the person scope stay, with one exception. `with_copies` also deletes the copy of a variable there if both
    have the same value and no other conversation of the person has it.
    """
    # The interaction memory goes first: if a crash left it behind, its owner could not be found any more.
    memories = int(await memory.aclear_conversation(record.conversation_id)) if memory is not None else 0
    return ErasureReport(memories=memories) + await repository.delete_conversation(record, with_copies=with_copies)


async def is_all_erased(repository: AgentRepository, memory: AgentInteractionMemory | None, record: StoredConversation) -> bool:
    """Return True if only erased turns are left of a conversation: no turns, and nothing that a command has stored for it."""
    name = record.conversation_id
    return (
        await is_emptied(repository.database, record.id)
        and not await repository.load_variables_of("conversation", name, lambda _: True)
        and not await repository.knowledge.load_texts([DocumentCollection("conversation", name)])
        and not (memory is not None and await memory.aget_information(name))
    )


async def find_person_records(repository: AgentRepository, person: str) -> tuple[str, list[StoredConversation], list[str]]:
    """Return the owner, the conversations, and the ids in the interaction memory under which an agent has data of a person.

    `person` is a JID. The owner is its bare JID, unless the JID itself owns conversations, such as that of an occupant.
    """
    if not await repository.list_conversations(owner=person, limit=1):  # an occupant may own some
        person = bare_jid(person)
    records = await repository.list_conversations(owner=person, limit=_NO_LIMIT)
    # The conversation without a thread may be in the interaction memory only.
    conversation_ids = dict.fromkeys(
        [*(record.conversation_id for record in records), candidate_conversation_ids(None, person, repository.agent)[0]]
    )
    return person, records, list(conversation_ids)


async def erase_person(repository: AgentRepository, memory: AgentInteractionMemory | None, person: str) -> ErasureReport:
    """Delete everything that one agent stores about a person (a JID), including requests that still wait.

    The conversations of keys that stand for the person go too.
    """
    person, _, conversation_ids = await find_person_records(repository, person)
    report = ErasureReport()
    for caller in await repository.find_callers_of(person):
        report += await erase_person(repository, memory, caller)
    memories = await memory.aclear_conversations(conversation_ids) if memory is not None else 0
    return report + ErasureReport(memories=memories) + await repository.erase_person(person)


async def delete_turns_of_person(repository: AgentRepository, person: str, should_go_on: Callable[[], bool]) -> int:
    """Delete the turns in the conversations of a person (a bare JID) and of their keys, the oldest first.

    It takes short transactions. Return their number. The conversations stay, for `erase_person`. It ends early if
    `should_go_on` returns False.
    """
    count, owners = 0, [person, *await repository.find_callers_of(person)]
    for record in [one for owner in owners for one in await repository.list_conversations(owner=owner, limit=_NO_LIMIT)]:
        while record.turns > _BATCH_TURNS and should_go_on():
            deleted = await repository.retention.delete_oldest(record.id, None, record.turns, _BATCH_TURNS)
            count += deleted
            if deleted < _BATCH_TURNS:
                break
    return count


@dataclass(frozen=True, slots=True)
class Cut:
    """The report of a cut, and the variables of the conversation and of its owner that it has deleted, by name."""

    report: ErasureReport
    variables: Mapping[str, str]
    owner_variables: Mapping[str, str]


async def cut_conversation(
    repository: AgentRepository,
    memory: AgentInteractionMemory | None,
    conversation: FoundConversation,
    should_go_on: Callable[[], bool],
) -> Cut:
    """Erase the found turns from a conversation of an agent or a room, in short transactions.

    What was stored for the conversation while they ran goes too: variables, documents and interaction memory. It ends early if
    `should_go_on` returns False. The caller deletes a conversation of which no turn is left.
    """
    spans = await find_spans(repository.database, conversation)
    # First, as in `erase_conversation`: the turns say when it was stored.
    memories = 0
    if memory is not None:
        name = conversation.record.conversation_id
        memories = await memory.aremove_of_times(name, lambda timestamp: is_entry_within(timestamp, spans))
    report, variables, owner_variables = ErasureReport(memories=min(1, memories)), dict[str, str](), dict[str, str]()
    for start in range(0, len(conversation.turns) or 1, _BATCH_TURNS):
        if not should_go_on():
            break
        cut = await repository.cut_turns(conversation, conversation.turns[start : start + _BATCH_TURNS], spans)
        variables |= cut.variables
        owner_variables |= cut.owner_variables
        report += ErasureReport(
            interactions=cut.turns,
            variables=len(cut.variables) + len(cut.owner_variables),
            documents=cut.documents,
            incidents=cut.incidents,
        )
    return Cut(report, variables, owner_variables)


def is_entry_within(timestamp: str, spans: TimeSpans) -> bool:
    """Return True if a timestamp of an interaction memory, which is exact to a millisecond, is in one of the spans."""
    try:
        return to_micros(datetime.fromisoformat(timestamp)) + 999 in spans
    except (ValueError, TypeError):  # without a time, or a zone
        return False
