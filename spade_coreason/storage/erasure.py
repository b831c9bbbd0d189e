"""What of an agent has been kept for long enough: found, and deleted from the oldest on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, Select, delete, false, or_, select, update

from ..contracts import ConversationState
from ..domain.identifiers import possible_ids
from ..domain.preferences import PREFERENCES
from . import audit
from .database import Database, micros
from .knowledge import Shelf, clear_shelves, clear_turns
from .records import ConversationRow, ForgetReport, conversation_of
from .schema import CLOSED, conversations, inbox, interactions, variables
from .window import forget_summary

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


class RetentionStore:
    """The view of the retention of one agent (a bare JID) on the database."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    async def silent(self, state: ConversationState, before: datetime, after: int, limit: int) -> list[ConversationRow]:
        """Conversations in a state in which nothing was said since `before`, by their rows, beginning behind `after`."""
        query = self._in_state(state, after, limit).where(conversations.c.last_interaction < micros(before))
        return await self._conversations(query)

    async def overfull(
        self, state: ConversationState, before: datetime | None, turns: int | None, after: int, limit: int
    ) -> list[ConversationRow]:
        """Those whose oldest turn is from before `before`, or that have more than so many turns; likewise."""

        def oldest(column: str) -> Any:
            turn = interactions.alias()
            found = select(turn.c[column]).where(turn.c.conversation == conversations.c.id)
            return found.order_by(turn.c.number).limit(1).scalar_subquery()

        reasons = []
        if before is not None:
            reasons.append(oldest("timestamp") < micros(before))
        if turns is not None:
            reasons.append(oldest("number") <= conversations.c.turns - turns)
        return await self._conversations(self._in_state(state, after, limit).where(or_(false(), *reasons)))

    async def delete_oldest(self, conversation: int, before: datetime | None, through: int, limit: int) -> int:
        """Deletes, of the `limit` oldest turns, those up to the first that is neither from before `before` nor up to `through`.

        Only ever from the oldest on: what is left is numbered without gaps. With them goes what the knowledge has of them, and
        the summary that speaks of them.
        """
        earliest = -1 if before is None else micros(before)
        query = (
            select(interactions.c.id, interactions.c.number, interactions.c.timestamp)
            .where(interactions.c.conversation == conversation)
            .order_by(interactions.c.number)
            .limit(limit)
        )

        def work(connection: Connection) -> int:
            rows = connection.execute(query).all()
            doomed = [row.id for row in takewhile(lambda row: row.timestamp < earliest or row.number <= through, rows)]
            connection.execute(delete(interactions).where(interactions.c.id.in_(doomed)))
            numbers = [row.number for row in rows[: len(doomed)]]
            if numbers:
                clear_turns(connection, conversation, numbers)
                forget_summary(connection, conversation, numbers[-1])
            return len(doomed)

        return await self._database.erase(work)

    async def delete_variables_of_strangers(self, before: datetime) -> None:
        """Deletes what was stored before `before` about people who have no conversation any more."""
        known = select(conversations.c.owner).where(conversations.c.agent == self._agent)
        old = delete(variables).where(
            variables.c.agent == self._agent,
            variables.c.scope.in_(OF_A_PERSON),
            variables.c.updated_at < micros(before),
            variables.c.holder.not_in(known),
        )
        await self._database.erase(lambda connection: connection.execute(old))

    def _in_state(self, state: ConversationState, after: int, limit: int) -> Select[Any]:
        # Looked up by their rows: by the agent's name, which so hides from it, SQLite would sort all of them for each page.
        is_own = conversations.c.agent.concat("") == self._agent
        mine = select(conversations).where(is_own, conversations.c.state == str(state), conversations.c.id > after)
        return mine.order_by(conversations.c.id).limit(limit)

    async def _conversations(self, query: Select[Any]) -> list[ConversationRow]:
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [conversation_of(row) for row in rows]
