"""The stored turns that have passed their retention, and their deletion."""

from __future__ import annotations

from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, Select, delete, false, or_, select

from ..contracts import ConversationState
from .compaction import delete_summary
from .database import Database
from .erasure import PERSON_SCOPES
from .knowledge import delete_turn_documents
from .records import StoredConversation, conversation_from_row
from .schema import conversations, interactions, to_micros, variables


class RetentionRepository:
    """The view of the retention of one agent (a bare JID) on the database."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    async def find_silent(self, state: ConversationState, before: datetime, after: int, limit: int) -> list[StoredConversation]:
        """Conversations in a state in which nothing was said since `before`, by their rows, beginning behind `after`."""
        query = self._select_in_state(state, after, limit).where(conversations.c.last_interaction < to_micros(before))
        return await self._load_conversations(query)

    async def find_overfull(
        self, state: ConversationState, before: datetime | None, turns: int | None, after: int, limit: int
    ) -> list[StoredConversation]:
        """Those whose oldest turn is from before `before`, or that have more than so many turns; likewise."""

        def oldest(column: str) -> Any:
            turn = interactions.alias()
            found = select(turn.c[column]).where(turn.c.conversation == conversations.c.id)
            return found.order_by(turn.c.number).limit(1).scalar_subquery()

        reasons = []
        if before is not None:
            reasons.append(oldest("timestamp") < to_micros(before))
        if turns is not None:
            reasons.append(oldest("number") <= conversations.c.turns - turns)
        return await self._load_conversations(self._select_in_state(state, after, limit).where(or_(false(), *reasons)))

    async def delete_oldest(self, conversation: int, before: datetime | None, through: int, limit: int) -> int:
        """Deletes, of the `limit` oldest turns, those up to the first that is neither from before `before` nor up to `through`.

        Only ever from the oldest on: what is left is numbered without gaps. With them goes what the knowledge has of them, and
        the summary that speaks of them.
        """
        earliest = -1 if before is None else to_micros(before)
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
                delete_turn_documents(connection, conversation, numbers)
                delete_summary(connection, conversation, numbers[-1])
            return len(doomed)

        return await self._database.erase(work)

    async def delete_orphaned_variables(self, before: datetime) -> None:
        """Deletes what was stored before `before` about people who have no conversation any more."""
        known = select(conversations.c.owner).where(conversations.c.agent == self._agent)
        old = delete(variables).where(
            variables.c.agent == self._agent,
            variables.c.scope.in_(PERSON_SCOPES),
            variables.c.updated_at < to_micros(before),
            variables.c.holder.not_in(known),
        )
        await self._database.erase(lambda connection: connection.execute(old))

    def _select_in_state(self, state: ConversationState, after: int, limit: int) -> Select[Any]:
        # Looked up by their rows: by the agent's name, which so hides from it, SQLite would sort all of them for each page.
        is_own = conversations.c.agent.concat("") == self._agent
        mine = select(conversations).where(is_own, conversations.c.state == str(state), conversations.c.id > after)
        return mine.order_by(conversations.c.id).limit(limit)

    async def _load_conversations(self, query: Select[Any]) -> list[StoredConversation]:
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [conversation_from_row(row) for row in rows]
