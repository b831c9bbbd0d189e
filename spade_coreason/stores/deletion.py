"""What is deleted together: all that is under the id of a conversation, all that there is about a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, select, update

from ..names import possible_ids
from ..preferences import PREFERENCES
from . import audit
from .knowledge import Shelf, clear_shelves
from .rows import ConversationRow, ForgetReport
from .schema import CLOSED, conversations, inbox, interactions, variables

REFUSED = "refused"
"""The scope of who was told that they may not talk to an agent."""
OF_A_PERSON = ("person", PREFERENCES, REFUSED)
"""The scopes of variables that are about people."""


def delete_everything(
    connection: Connection, agent: str, rows: Sequence[ConversationRow], person: str | None = None
) -> ForgetReport:
    """Deletes conversations of an agent, and all else about a person (a bare JID), in a transaction of others."""
    turns = values = requests = preferences = entries = 0
    gone: list[Shelf] = []
    for row in rows:
        turns += connection.execute(delete(interactions).where(interactions.c.conversation == row.id)).rowcount
        values += connection.execute(_variables(agent, "conversation", row.conversation_id)).rowcount
        gone.append(Shelf("conversation", row.conversation_id))
        connection.execute(delete(conversations).where(conversations.c.id == row.id))
    if person is not None:
        values += connection.execute(_variables(agent, "person", person)).rowcount
        preferences = connection.execute(_variables(agent, PREFERENCES, person)).rowcount
        forget_refusal(connection, agent, person)
        gone += [Shelf("person", person), Shelf("conversation", possible_ids(None, person, agent)[0])]
        # The keys stay, so that a message that comes twice is still known.
        theirs = update(inbox).where(inbox.c.agent == agent, inbox.c.sender == person)
        waiting = theirs.where(inbox.c.state < CLOSED).values(state=CLOSED, request=None, answer=None)
        requests = connection.execute(waiting).rowcount
        connection.execute(theirs.values(sender=""))
        entries = audit.forget(connection, agent, person)
    known = clear_shelves(connection, agent, gone)
    return ForgetReport(tuple(row.conversation_id for row in rows), turns, values, requests, preferences, known, entries)


def delete_copies(connection: Connection, agent: str, row: ConversationRow) -> None:
    """Deletes those variables of a conversation's owner that are the same there, and in no other conversation of theirs.

    What an agent stores without naming a scope is kept in both.
    """
    theirs = select(conversations.c.conversation_id).where(conversations.c.agent == agent, conversations.c.owner == row.owner)
    kept = variables.alias()
    the_same = select(kept.c.holder).where(
        kept.c.agent == agent,
        kept.c.scope == "conversation",
        kept.c.holder.in_(theirs),
        kept.c.name == variables.c.name,
        kept.c.value == variables.c.value,
    )
    here = the_same.where(kept.c.holder == row.conversation_id).exists()
    elsewhere = the_same.where(kept.c.holder != row.conversation_id).exists()
    connection.execute(_variables(agent, "person", row.owner).where(here, ~elsewhere))


def forget_refusal(connection: Connection, agent: str, person: str) -> None:
    """Forgets that somebody was told that they may not talk to an agent."""
    connection.execute(_variables(agent, REFUSED, person))


def _variables(agent: str, scope: str, holder: str) -> Any:
    return delete(variables).where(variables.c.agent == agent, variables.c.scope == scope, variables.c.holder == holder)
