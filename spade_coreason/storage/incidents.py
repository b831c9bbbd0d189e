"""Incidents: failures that a person was told of by a number, each with its chain of exceptions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, delete, insert, literal, select

from ..domain.texts.error_chain import ErrorChain, dump_error_chain
from .backends.database import Database
from .backends.group_commit import Commit
from .records import to_micros
from .row_repository import RowRepository
from .schema import Incident, incidents

_MAX_INCIDENTS_OF_AGENT = 1000
_MAX_INCIDENTS_OF_PERSON = 100
"""The most incidents that are stored of an agent, and of one person with it: the newest."""


class IncidentRepository(RowRepository[Incident]):
    """The incidents of one agent (a bare JID). They are listed without their texts."""

    table, row, ident, time, person = incidents, Incident, "incident", "occurred_at", "person"

    def __init__(
        self,
        database: Database,
        agent: str,
        *,
        max_of_agent: int = _MAX_INCIDENTS_OF_AGENT,
        max_of_person: int = _MAX_INCIDENTS_OF_PERSON,
    ) -> None:
        super().__init__(database, agent)
        self._max_of_agent = max_of_agent
        self._max_of_person = max_of_person

    def record(
        self, number: str, person: str, conversation_id: str | None, occurred_at: datetime, chain: ErrorChain
    ) -> Commit[None]:
        """Store an incident. Beyond the largest number for a person or for the agent, the oldest are deleted."""
        errors = dump_error_chain(chain)
        # JSON with escapes only: PostgreSQL stores no NUL, and no database a lone surrogate.
        texts, micros = json.dumps([error.pop("text") for error in errors]), to_micros(occurred_at)
        new = Incident(self.row_ids.next(), self._agent, number, person, conversation_id, micros, json.dumps(errors), texts)

        def work(connection: Connection) -> None:
            connection.execute(insert(incidents).values(new))
            is_own = incidents.c.agent == self._agent
            for conditions, limit in (
                ([is_own, incidents.c.person == person], self._max_of_person),
                ([is_own], self._max_of_agent),
            ):
                newest = select(incidents.c.id).where(*conditions).order_by(incidents.c.id.desc())
                oldest_kept = newest.offset(limit - 1).limit(1).scalar_subquery()
                connection.execute(delete(incidents).where(*conditions, incidents.c.id < oldest_kept))

        return self._database.run(work)

    async def delete_older(self, before: datetime) -> None:
        """Delete the incidents that occurred before a time."""
        statement = delete(incidents).where(incidents.c.agent == self._agent, incidents.c.occurred_at < to_micros(before))
        await self._database.erase(lambda connection: connection.execute(statement))

    async def find_with_texts(self, row_id: int) -> Incident | None:
        """Return an incident with the texts of its exceptions; None if it was deleted."""
        query = select(incidents).where(*self._own(incidents.c.id == row_id))
        return next(map(Incident._make, await self._database.fetch(query, is_background=True)), None)

    def _select(self) -> Select[Any]:
        return select(*(literal("").label(column.name) if column is incidents.c.texts else column for column in incidents.c))


def delete_incidents_by_number(connection: Connection, agent: str, numbers: Sequence[str]) -> int:
    """Delete the incidents of an agent with these numbers in a transaction of the writer, and return how many there were."""
    is_one = incidents.c.agent == agent, incidents.c.incident.in_(numbers)
    return connection.execute(delete(incidents).where(*is_one)).rowcount
