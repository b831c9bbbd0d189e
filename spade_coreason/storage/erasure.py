"""Deletion of conversations, and of everything that an agent stores about a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, select, update

from ..domain.identifiers import candidate_conversation_ids, recover_thread
from ..domain.preferences import PREFERENCES_SCOPE
from . import kept
from .doors.callers import delete_door_threads
from .interaction_memory import delete_memory
from .knowledge import delete_collections
from .questions import delete_questions_about, delete_questions_in
from .records import (
    COMPACTION_VARIABLE,
    MESSAGE_COUNT_SCOPES,
    REFUSED_SCOPE,
    CompactionState,
    DocumentCollection,
    ErasureReport,
    StoredConversation,
)
from .schema import ANSWERED, CLOSED, ERASED_TURN, RECEIVED, conversations, inbox, interactions, steps, variables
from .topics import clear_dead_letters

PERSON_SCOPES = ("person", PREFERENCES_SCOPE, REFUSED_SCOPE, MESSAGE_COUNT_SCOPES["person"])
"""The scopes of the variables that belong to people."""


def delete_everything(
    connection: Connection,
    agent: str,
    records: Sequence[StoredConversation],
    person: str | None = None,
    *,
    with_due: bool = False,
) -> ErasureReport:
    """Delete conversations of an agent, and everything else about `person` (a bare JID) if one is given.

    `with_due` also deletes the schedules and the notifications of these conversations, and what asks a person in them. Run this
    inside a transaction of the writer.
    """
    targets = [DocumentCollection("conversation", record.conversation_id) for record in records]
    counts = Counter[str]()
    for record in records:
        counts += _delete_conversation(connection, agent, record, with_due=with_due)
    if person is not None:
        own_id = candidate_conversation_ids(None, person, agent)[0]
        delete_memory(connection, agent, [own_id])
        targets += [DocumentCollection("person", person), DocumentCollection("conversation", own_id)]
        counts += _close_requests(connection, agent, person)
        clear_dead_letters(connection, agent, person)
        counts += kept.erase_person(connection, agent, person)
    counts["documents"] = delete_collections(connection, agent, targets)
    del counts[""]
    return ErasureReport(tuple(record.conversation_id for record in records), **counts)


def _delete_conversation(connection: Connection, agent: str, record: StoredConversation, *, with_due: bool) -> Counter[str]:
    of_record, counts = interactions.c.conversation == record.id, Counter[str]()
    place = record.owner, recover_thread(record.conversation_id, record.owner, agent)
    if with_due:
        counts += delete_questions_in(connection, agent, record)
        if record.owner != agent:  # those of `@every` stay
            counts += kept.erase_due(connection, agent, *place)
    connection.execute(delete(interactions).where(of_record, interactions.c.body == ERASED_TURN))  # they were counted then
    counts["interactions"] += connection.execute(delete(interactions).where(of_record)).rowcount
    counts += kept.erase_conversation(connection, agent, record.conversation_id)
    delete_door_threads(connection, agent, *place)
    delete_memory(connection, agent, [record.conversation_id])
    connection.execute(delete(conversations).where(conversations.c.id == record.id))
    return counts


def _close_requests(connection: Connection, agent: str, person: str) -> Counter[str]:
    """Close the requests of a person, with their questions. The keys stay, so that a duplicate is still recognised."""
    received = update(inbox).where(inbox.c.agent == agent, inbox.c.sender == person)
    closed = {"state": CLOSED, "request": None, "answer": None}
    counts = Counter(requests=connection.execute(received.where(inbox.c.state == RECEIVED).values(closed)).rowcount)
    connection.execute(received.where(inbox.c.state == ANSWERED).values(closed))  # the reply is not acknowledged yet
    counts += delete_questions_about(connection, agent, person)
    of_person = select(inbox.c.id).where(inbox.c.agent == agent, inbox.c.sender == person)
    connection.execute(delete(steps).where(steps.c.request.in_(of_person)))
    connection.execute(received.values(sender=""))
    return counts


def delete_person_copies(connection: Connection, agent: str, record: StoredConversation) -> None:
    """Delete the owner's copies of the variables of a conversation.

    A variable that an agent stores without naming a scope is stored for the conversation and for its owner. A copy has the
    same name and value in both. It is not deleted if another conversation of the owner has the same variable.
    """
    owned_ids = select(conversations.c.conversation_id).where(
        conversations.c.agent == agent, conversations.c.owner == record.owner
    )
    other = variables.alias()
    equal = select(other.c.holder).where(
        other.c.agent == agent,
        other.c.scope == "conversation",
        other.c.holder.in_(owned_ids),
        other.c.name == variables.c.name,
        other.c.value == variables.c.value,
    )
    here = equal.where(other.c.holder == record.conversation_id).exists()
    elsewhere = equal.where(other.c.holder != record.conversation_id).exists()
    connection.execute(_delete_variables(agent, "person", record.owner).where(here, ~elsewhere))


def delete_refusal(connection: Connection, agent: str, person: str) -> None:
    """Delete the mark that an agent has refused a person."""
    connection.execute(_delete_variables(agent, REFUSED_SCOPE, person))


def _delete_variables(agent: str, scope: str, holder: str) -> Any:
    return delete(variables).filter_by(agent=agent, scope=scope, holder=holder)


def clear_summary(connection: Connection, agent: str, conversation_id: str, number: int, through: int = 0) -> None:
    """Delete the summary of a conversation if it covers a turn of this number. The turns after `through` are summarised again.

    Run this inside a transaction of the writer.
    """
    key = {"agent": agent, "scope": "conversation", "holder": conversation_id, "name": COMPACTION_VARIABLE}
    text = connection.scalar(select(variables.c.value).filter_by(**key))
    if text is not None and (state := CompactionState.from_json(text)).summary and state.through >= number:
        cleared = state._replace(through=through, summary="")
        connection.execute(update(variables).filter_by(**key).values(value=cleared.to_json()))
