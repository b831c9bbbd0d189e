"""What of an agent has been kept for long enough: found, and deleted from the oldest on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, select, update

from ..domain.identifiers import candidate_conversation_ids
from ..domain.preferences import PREFERENCES
from . import audit
from .knowledge import Shelf, delete_shelves
from .records import DeletionReport, StoredConversation
from .schema import CLOSED, conversations, inbox, interactions, variables

REFUSED_SCOPE = "refused"

"""The scope of who was told that they may not talk to an agent."""

PERSON_SCOPES = ("person", PREFERENCES, REFUSED_SCOPE)

"""The scopes of variables that are about people."""


def delete_everything(
    connection: Connection, agent: str, records: Sequence[StoredConversation], person: str | None = None
) -> DeletionReport:
    """Deletes conversations of an agent, and all else about a person (a bare JID), in a transaction of others."""
    turns = values = requests = preferences = entries = 0
    gone: list[Shelf] = []
    for row in records:
        turns += connection.execute(delete(interactions).where(interactions.c.conversation == row.id)).rowcount
        values += connection.execute(_delete_variables(agent, "conversation", row.conversation_id)).rowcount
        gone.append(Shelf("conversation", row.conversation_id))
        connection.execute(delete(conversations).where(conversations.c.id == row.id))
    if person is not None:
        values += connection.execute(_delete_variables(agent, "person", person)).rowcount
        preferences = connection.execute(_delete_variables(agent, PREFERENCES, person)).rowcount
        delete_refusal(connection, agent, person)
        gone += [Shelf("person", person), Shelf("conversation", candidate_conversation_ids(None, person, agent)[0])]
        # The keys stay, so that a message that comes twice is still known.
        theirs = update(inbox).where(inbox.c.agent == agent, inbox.c.sender == person)
        waiting = theirs.where(inbox.c.state < CLOSED).values(state=CLOSED, request=None, answer=None)
        requests = connection.execute(waiting).rowcount
        connection.execute(theirs.values(sender=""))
        entries = audit.erase_person_entries(connection, agent, person)
    known = delete_shelves(connection, agent, gone)
    return DeletionReport(tuple(row.conversation_id for row in records), turns, values, requests, preferences, known, entries)


def delete_person_copies(connection: Connection, agent: str, record: StoredConversation) -> None:
    """Deletes those variables of a conversation's owner that are the same there, and in no other conversation of theirs.

    What an agent stores without naming a scope is kept in both.
    """
    theirs = select(conversations.c.conversation_id).where(
        conversations.c.agent == agent, conversations.c.owner == record.owner
    )
    kept = variables.alias()
    the_same = select(kept.c.holder).where(
        kept.c.agent == agent,
        kept.c.scope == "conversation",
        kept.c.holder.in_(theirs),
        kept.c.name == variables.c.name,
        kept.c.value == variables.c.value,
    )
    here = the_same.where(kept.c.holder == record.conversation_id).exists()
    elsewhere = the_same.where(kept.c.holder != record.conversation_id).exists()
    connection.execute(_delete_variables(agent, "person", record.owner).where(here, ~elsewhere))


def delete_refusal(connection: Connection, agent: str, person: str) -> None:
    """Forgets that somebody was told that they may not talk to an agent."""
    connection.execute(_delete_variables(agent, REFUSED_SCOPE, person))


def _delete_variables(agent: str, scope: str, holder: str) -> Any:
    return delete(variables).where(variables.c.agent == agent, variables.c.scope == scope, variables.c.holder == holder)
