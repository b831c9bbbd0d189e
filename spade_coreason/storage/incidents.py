"""Incidents: failures that a person was told of by a number, each with its chain of exceptions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, delete, insert, select

from ..domain.callers import is_caller
from ..domain.texts.error_chain import ErrorChain, dump_error_chain, load_error_chain
from .backends.database import Commit, Database
from .records import StoredConversation, from_micros, to_micros
from .schema import incidents

_MAX_INCIDENTS_OF_AGENT = 1000
_MAX_INCIDENTS_OF_PERSON = 100
"""The most incidents that are stored of an agent, and of one person with it: the newest."""


class Incident(NamedTuple):
    """A failure that a person was told of.

    `number` is what they were told. `person` is the person behind the request if known, else the owner of the conversation (a
    bare JID). Without `conversation_id` the request failed before its conversation was known. The texts in `chain` are empty
    unless they were asked for.
    """

    row: int
    agent: str
    number: str
    person: str
    conversation_id: str | None
    occurred_at: datetime
    chain: ErrorChain


class IncidentRepository:
    """The incidents of one agent (a bare JID)."""

    def __init__(
        self,
        database: Database,
        agent: str,
        *,
        max_of_agent: int = _MAX_INCIDENTS_OF_AGENT,
        max_of_person: int = _MAX_INCIDENTS_OF_PERSON,
    ) -> None:
        self._database = database
        self._agent = agent
        self._max_of_agent = max_of_agent
        self._max_of_person = max_of_person

    def record(
        self, number: str, person: str, conversation_id: str | None, occurred_at: datetime, chain: ErrorChain
    ) -> Commit[None]:
        """Store an incident. Beyond the largest number for a person or for the agent, the oldest are deleted."""
        errors = dump_error_chain(chain)
        values = {
            "id": self._database.next_id(),
            "agent": self._agent,
            "incident": number,
            "person": person,
            "conversation_id": conversation_id,
            "occurred_at": to_micros(occurred_at),
            # JSON with escapes only: PostgreSQL stores no NUL, and no database a lone surrogate.
            "texts": json.dumps([error.pop("text") for error in errors]),
            "errors": json.dumps(errors),
        }

        def work(connection: Connection) -> None:
            connection.execute(insert(incidents).values(values))
            is_own = incidents.c.agent == self._agent
            for conditions, limit in (
                ([is_own, incidents.c.person == person], self._max_of_person),
                ([is_own], self._max_of_agent),
            ):
                newest = select(incidents.c.id).where(*conditions).order_by(incidents.c.id.desc())
                oldest_kept = newest.offset(limit - 1).limit(1).scalar_subquery()
                connection.execute(delete(incidents).where(*conditions, incidents.c.id < oldest_kept))

        return self._database.run(work)

    async def load_of_person(self, person: str) -> list[Incident]:
        """Return the incidents of a person (a bare JID) without their texts, the oldest first."""
        query = _select(has_texts=False).where(incidents.c.agent == self._agent, incidents.c.person == person)
        return await _load(self._database, query.order_by(incidents.c.id))

    async def delete_older(self, before: datetime) -> None:
        """Delete the incidents that occurred before a time."""
        statement = delete(incidents).where(incidents.c.agent == self._agent, incidents.c.occurred_at < to_micros(before))
        await self._database.erase(lambda connection: connection.execute(statement))


async def load_incidents(database: Database, agents: Sequence[str], numbers: Sequence[str]) -> list[Incident]:
    """Return the incidents of these agents with one of these numbers, without their texts, the newest first."""
    query = _select(has_texts=False).where(incidents.c.agent.in_(agents), incidents.c.incident.in_(numbers))
    return await _load(database, query.order_by(incidents.c.id.desc()))


async def load_newest_incidents(database: Database, agents: Sequence[str], limit: int) -> list[Incident]:
    """Return the newest incidents of these agents without their texts, the newest first."""
    query = _select(has_texts=False).where(incidents.c.agent.in_(agents))
    return await _load(database, query.order_by(incidents.c.id.desc()).limit(limit))


async def load_incident_with_texts(database: Database, agent: str, row: int) -> Incident | None:
    """Return an incident with the texts of its exceptions; None if it was deleted."""
    query = _select(has_texts=True).where(incidents.c.agent == agent, incidents.c.id == row)
    return next(iter(await _load(database, query)), None)


def delete_incidents_of_person(connection: Connection, agent: str, person: str) -> int:
    """Delete the incidents of a person in a transaction of the writer, and return their number."""
    return connection.execute(delete(incidents).where(incidents.c.agent == agent, incidents.c.person == person)).rowcount


def delete_incidents_of_conversation(connection: Connection, agent: str, record: StoredConversation) -> int:
    """Delete the incidents of a conversation in a transaction of the writer, and return their number."""
    conditions = [incidents.c.agent == agent, incidents.c.conversation_id == record.conversation_id]
    if not is_caller(record.owner):  # those of a key are the person's for whom it stands
        conditions.append(incidents.c.person == record.owner)
    return connection.execute(delete(incidents).where(*conditions)).rowcount


def delete_incidents_by_number(connection: Connection, agent: str, numbers: Sequence[str]) -> int:
    """Delete the incidents of an agent with these numbers in a transaction of the writer, and return how many there were."""
    is_one = incidents.c.agent == agent, incidents.c.incident.in_(numbers)
    return connection.execute(delete(incidents).where(*is_one)).rowcount


def _select(*, has_texts: bool) -> Select[Any]:
    columns = [column for column in incidents.c if has_texts or column is not incidents.c.texts]
    return select(*columns)


async def _load(database: Database, query: Select[Any]) -> list[Incident]:
    rows = await database.read(lambda connection: connection.execute(query).mappings().all(), is_background=True)
    return [
        Incident(
            row["id"],
            row["agent"],
            row["incident"],
            row["person"],
            row["conversation_id"],
            from_micros(row["occurred_at"]),
            _load_chain(row["errors"], row.get("texts")),
        )
        for row in rows
    ]


def _load_chain(errors: str, texts: str | None) -> ErrorChain:
    chain = load_error_chain([{**fields, "text": ""} for fields in json.loads(errors)])
    if texts is None:
        return chain
    return tuple(replace(error, text=text) for error, text in zip(chain, json.loads(texts), strict=True))
