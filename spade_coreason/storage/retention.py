"""Retention: queries for turns and conversations that are due for deletion, and their deletion in batches."""

from __future__ import annotations

from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, Select, delete, false, or_, select

from ..contracts import ConversationState
from .backends.database import Database
from .erasure import PERSON_SCOPES, clear_summary
from .knowledge import delete_turn_documents
from .records import StoredConversation, conversation_from_row, to_micros
from .schema import conversations, interactions, variables


class RetentionRepository:
    """The retention queries of one agent (a bare JID)."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    async def find_idle(self, state: ConversationState, before: datetime, after: int, limit: int) -> list[StoredConversation]:
        """Return conversations in `state` whose last interaction is older than `before`.

        They are ordered by row id. For the next page pass the last id as `after`.
        """
        query = self._select_in_state(state, after, limit).where(conversations.c.last_interaction < to_micros(before))
        return await self._load_conversations(query)

    async def find_with_expired_turns(
        self, state: ConversationState, before: datetime | None, turns: int | None, after: int, limit: int
    ) -> list[StoredConversation]:
        """Return conversations in `state` whose oldest turn is older than `before`, or that have more than `turns` turns.

        Order and pages are those of `find_idle`.
        """

        def oldest(column: str) -> Any:
            turn = interactions.alias()
            query = select(turn.c[column]).where(turn.c.conversation == conversations.c.id)
            return query.order_by(turn.c.number).limit(1).scalar_subquery()

        conditions = []
        if before is not None:
            conditions.append(oldest("timestamp") < to_micros(before))
        if turns is not None:
            conditions.append(oldest("number") <= conversations.c.turns - turns)
        return await self._load_conversations(self._select_in_state(state, after, limit).where(or_(false(), *conditions)))

    async def delete_oldest(self, conversation: int, before: datetime | None, through: int, limit: int) -> int:
        """Delete the oldest turns of a conversation (its row id), at most `limit`, and return their number.

        A turn is deleted if it is older than `before`, or if its number is at most `through`. Deletion stops at the first turn
        that stays, so that the numbers of the rest have no gaps. The turns are deleted from the knowledge of the conversation
        too, and so is the summary that covers them.
        """
        conversation_id = select(conversations.c.conversation_id).where(conversations.c.id == conversation)
        earliest = -1 if before is None else to_micros(before)
        query = (
            select(interactions.c.id, interactions.c.number, interactions.c.timestamp)
            .where(interactions.c.conversation == conversation)
            .order_by(interactions.c.number)
            .limit(limit)
        )

        def work(connection: Connection) -> int:
            rows = connection.execute(query).all()
            ids = [row.id for row in takewhile(lambda row: row.timestamp < earliest or row.number <= through, rows)]
            connection.execute(delete(interactions).where(interactions.c.id.in_(ids)))
            numbers = [row.number for row in rows[: len(ids)]]
            if numbers:
                delete_turn_documents(connection, conversation, numbers)
                clear_summary(connection, self._agent, connection.execute(conversation_id).scalar_one(), 0, numbers[-1])
            return len(ids)

        return await self._database.erase(work)

    async def delete_orphaned_variables(self, before: datetime) -> None:
        """Delete variables of people who have no conversation any more, if they were last changed before `before`."""
        owners = select(conversations.c.owner).where(conversations.c.agent == self._agent)
        statement = delete(variables).where(
            variables.c.agent == self._agent,
            variables.c.scope.in_(PERSON_SCOPES),
            variables.c.updated_at < to_micros(before),
            variables.c.holder.not_in(owners),
        )
        await self._database.erase(lambda connection: connection.execute(statement))

    def _select_in_state(self, state: ConversationState, after: int, limit: int) -> Select[Any]:
        # The concatenation hides the agent's name from SQLite, so that it walks the row ids. With the
        # index of the name it would sort all conversations for each page.
        is_own = conversations.c.agent.concat("") == self._agent
        query = select(conversations).where(is_own, conversations.c.state == str(state), conversations.c.id > after)
        return query.order_by(conversations.c.id).limit(limit)

    async def _load_conversations(self, query: Select[Any]) -> list[StoredConversation]:
        rows = await self._database.fetch(query, is_background=True)
        return [conversation_from_row(row) for row in rows]
