"""What of an agent has been kept for long enough: found, and deleted from the oldest on."""

from __future__ import annotations

from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, Select, delete, false, or_, select

from ..contracts import ConversationState
from .database import Database, micros
from .deletion import OF_A_PERSON
from .knowledge import clear_turns
from .rows import ConversationRow, conversation_of
from .schema import conversations, interactions, variables
from .window import forget_summary


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
