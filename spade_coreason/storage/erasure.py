"""Deletion of conversations, and of everything that an agent stores about a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, select, update

from ..domain.identifiers import candidate_conversation_ids, recover_thread
from ..domain.preferences import PREFERENCES_SCOPE
from . import audit
from .doors.callers import delete_door_data_of, delete_door_threads
from .incidents import delete_incidents_of_conversation, delete_incidents_of_person
from .interaction_memory import delete_memory
from .knowledge import delete_collections
from .notifications import delete_notifications_about, delete_notifications_in
from .questions import delete_questions_about, delete_questions_in
from .records import (
    MESSAGE_COUNT_SCOPES,
    REFUSED_SCOPE,
    DocumentCollection,
    StorageErasureReport,
    StoredConversation,
)
from .schedules import delete_schedules_about, delete_schedules_in
from .schema import (
    ANSWERED,
    CLOSED,
    ERASED_TURN,
    RECEIVED,
    conversations,
    crashed_requests,
    inbox,
    interactions,
    steps,
    variables,
)
from .topics import delete_topics_of_person

PERSON_SCOPES = ("person", PREFERENCES_SCOPE, REFUSED_SCOPE, MESSAGE_COUNT_SCOPES["person"])
"""The scopes of the variables that belong to people."""


def delete_everything(
    connection: Connection,
    agent: str,
    records: Sequence[StoredConversation],
    person: str | None = None,
    *,
    with_due: bool = False,
) -> StorageErasureReport:
    """Delete conversations of an agent, and everything else about `person` (a bare JID) if one is given.

    `with_due` also deletes the schedules and the notifications of these conversations, and what asks a person in them.

    Run this inside a transaction of the writer.
    """
    turn_count = variable_count = request_count = preference_count = entry_count = incident_count = 0
    subscription_count = item_count = notification_count = schedule_count = question_count = 0
    targets: list[DocumentCollection] = []
    for record in records:
        of_record = interactions.c.conversation == record.id
        if with_due:
            waiting = delete_questions_in(connection, agent, record)
            request_count, question_count = request_count + waiting.requests, question_count + waiting.questions
        connection.execute(delete(interactions).where(of_record, interactions.c.body == ERASED_TURN))  # they were counted then
        turn_count += connection.execute(delete(interactions).where(of_record)).rowcount
        variable_count += connection.execute(_delete_variables(agent, "conversation", record.conversation_id)).rowcount
        incident_count += delete_incidents_of_conversation(connection, agent, record)
        place = record.owner, recover_thread(record.conversation_id, record.owner, agent)
        delete_door_threads(connection, agent, *place)
        delete_memory(connection, agent, [record.conversation_id])
        if with_due:
            notification_count += delete_notifications_in(connection, agent, *place)
            schedule_count += delete_schedules_in(connection, agent, *place)
        targets.append(DocumentCollection("conversation", record.conversation_id))
        connection.execute(delete(conversations).where(conversations.c.id == record.id))
    if person is not None:
        variable_count += connection.execute(_delete_variables(agent, "person", person)).rowcount
        preference_count = connection.execute(_delete_variables(agent, PREFERENCES_SCOPE, person)).rowcount
        delete_refusal(connection, agent, person)
        delete_memory(connection, agent, candidate_conversation_ids(None, person, agent)[:1])
        for kind in ("person", "room"):
            connection.execute(_delete_variables(agent, MESSAGE_COUNT_SCOPES[kind], person))
        targets += [
            DocumentCollection("person", person),
            DocumentCollection("conversation", candidate_conversation_ids(None, person, agent)[0]),
        ]
        # The keys stay, so that a duplicate of a message is still recognised.
        received = update(inbox).where(inbox.c.agent == agent, inbox.c.sender == person)
        closed = {"state": CLOSED, "request": None, "answer": None}
        request_count += connection.execute(received.where(inbox.c.state == RECEIVED).values(closed)).rowcount
        connection.execute(received.where(inbox.c.state == ANSWERED).values(closed))  # the reply is not acknowledged yet
        asked = delete_questions_about(connection, agent, person)
        request_count, question_count = request_count + asked.requests, question_count + asked.questions
        of_person = select(inbox.c.id).where(inbox.c.agent == agent, inbox.c.sender == person)
        connection.execute(delete(steps).where(steps.c.request.in_(of_person)))
        connection.execute(received.values(sender=""))
        crashed = delete(crashed_requests).where(crashed_requests.c.agent == agent, crashed_requests.c.sender == person)
        connection.execute(crashed)
        incident_count += delete_incidents_of_person(connection, agent, person)
        entry_count = audit.erase_person_entries(connection, agent, person)
        subscription_count, item_count = delete_topics_of_person(connection, agent, person)
        notification_count += delete_notifications_about(connection, agent, person)
        schedule_count += delete_schedules_about(connection, agent, person)
        delete_door_data_of(connection, agent, person)
    document_count = delete_collections(connection, agent, targets)
    return StorageErasureReport(
        tuple(record.conversation_id for record in records),
        turn_count,
        variable_count,
        request_count,
        preference_count,
        document_count,
        entry_count,
        incident_count,
        subscription_count,
        item_count,
        notification_count,
        schedule_count,
        question_count,
    )


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
    return delete(variables).where(variables.c.agent == agent, variables.c.scope == scope, variables.c.holder == holder)
