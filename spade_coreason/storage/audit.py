"""Audit trails: each entry contains the hash of the entry before it, and the head names the last entry.

`verify` finds a trail that was cut at either end, and entries that were changed or moved. It cannot find a whole trail that
was rewritten by a program with write access to the database. To detect that, store a hash outside the database, and let
`verify` check that the trail contains it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from pydantic_core import from_json
from sqlalchemy import Connection, insert, select, update

from ..contracts import GENESIS_HASH, AuditEntry
from ..contracts.audit import compute_integrity_hash
from .backends.database import Database
from .backends.dialect_sql import insert_or_skip
from .schema import audit, audit_heads

_PAGE_ROWS = 1000
_MAX_PROBLEMS = 20
_MAX_NUMBER = 2**63 - 1


class AuditRecord(NamedTuple):
    """An entry of the audit trail.

    `number` is its position in the trail, from 1. `person` is the bare JID whose request it belongs to. `entry` is the parsed
    JSON: None if it was erased, and empty if it is not readable as an entry any more.
    """

    number: int
    person: str
    integrity_hash: str
    entry: dict[str, Any] | None


class AuditVerification(NamedTuple):
    """The result of `verify`.

    `entries` is the number of the last entry, and `erased` counts the erased ones. `head` is the hash of the last entry.
    `problems` has at most 20 lines.
    """

    entries: int
    erased: int
    head: str
    problems: tuple[str, ...]


class AuditTrail:
    """The audit trail of one agent (a bare JID)."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    async def append(self, entry: AuditEntry, person: str) -> AuditEntry:
        """Append an entry and return it sealed, as stored. It is durable when the call returns.

        `person` is the bare JID whose request the entry belongs to. Raise StoreError if the entry cannot be stored.
        """

        def work(connection: Connection) -> AuditEntry:
            # On PostgreSQL the lock of the head lets one of several workers append.
            connection.execute(insert_or_skip(audit_heads).values(agent=self._agent, number=0, integrity_hash=GENESIS_HASH))
            number, head = _load_head(connection, self._agent, is_locked=True)
            sealed = entry.model_copy(update={"previous_hash": head}).sealed()
            values = {"number": number + 1, "integrity_hash": sealed.integrity_hash}
            row = {**values, "person": person, "entry": sealed.model_dump_json()}
            connection.execute(insert(audit).values(agent=self._agent, **row))
            connection.execute(update(audit_heads).where(audit_heads.c.agent == self._agent).values(values))
            return sealed

        return await self._database.write(work)

    async def load_newest(self, limit: int | None = None) -> list[AuditRecord]:
        """Return the newest entries in chronological order."""
        found: list[AuditRecord] = []
        async for record in self.iterate_newest(page=limit or _PAGE_ROWS):
            if len(found) == limit:
                break
            found.append(record)
        return found[::-1]

    async def iterate_newest(
        self, person: str | None = None, before: int | None = None, page: int = _PAGE_ROWS
    ) -> AsyncIterator[AuditRecord]:
        """Yield the entries, the newest first: those of a person, and before a number, if given.

        `page` is the number of rows of the first query.
        """
        page = min(page, _PAGE_ROWS)
        while True:
            query = select(audit).where(audit.c.agent == self._agent).order_by(audit.c.number.desc()).limit(page)
            query = query if person is None else query.where(audit.c.person == person)
            query = query if before is None else query.where(audit.c.number < min(before, _MAX_NUMBER))
            rows = await self._database.fetch(query, is_background=True)
            for row in rows:
                entry = None if row.entry is None else _parse_entry(row.entry)
                yield AuditRecord(row.number, row.person, row.integrity_hash, entry)
            if len(rows) < page:
                return
            before, page = rows[-1].number, _PAGE_ROWS

    async def verify(self, through: str | None = None) -> AuditVerification:
        """Check the whole trail. `through` is the integrity hash of an entry that the trail must contain."""
        return await self._database.read(lambda connection: verify(connection, self._agent, through))


def list_audited_agents(connection: Connection) -> list[str]:
    """Return the agents (bare JIDs) with an audit trail, in alphabetical order."""
    return list(connection.scalars(select(audit_heads.c.agent).union(select(audit.c.agent)).order_by("agent")))


def verify(connection: Connection, agent: str, through: str | None = None) -> AuditVerification:
    """Check the trail of an agent like `AuditTrail.verify`, inside a transaction of the caller."""
    last, previous, erased, is_through, problems = 0, GENESIS_HASH, 0, through is None, []
    for row in _iterate_rows(connection, agent):
        if row.number != last + 1:
            problems.append(f"{_format_span(last + 1, row.number - 1)} missing")
        is_next = row.number == last + 1
        last, before, previous = row.number, previous, row.integrity_hash
        is_through = is_through or row.integrity_hash == through
        if row.entry is None:
            erased += 1
            continue
        entry = _parse_entry(row.entry)
        if not compute_integrity_hash(entry) == entry.get("integrity_hash") == row.integrity_hash:
            problems.append(f"entry {row.number} was changed")
        elif is_next and entry.get("previous_hash") != before:
            problems.append(f"entry {row.number} does not follow the one before it")
    number, head = _load_head(connection, agent)
    if number > last:
        problems.append(f"{_format_span(last + 1, number)} missing")
    elif (number, head) != (last, previous):
        problems.append(f"the trail ends with entry {last}, which does not match its recorded end (entry {number})")
    if not is_through:
        problems.append(f"no entry has the hash {through}")
    return AuditVerification(last, erased, previous, tuple(problems[:_MAX_PROBLEMS]))


def _load_head(connection: Connection, agent: str, *, is_locked: bool = False) -> tuple[int, str]:
    query = select(audit_heads).where(audit_heads.c.agent == agent)
    row = connection.execute(query.with_for_update() if is_locked else query).one_or_none()
    return (0, GENESIS_HASH) if row is None else (row.number, row.integrity_hash)


def _iterate_rows(connection: Connection, agent: str) -> Iterator[Any]:
    query = select(audit).where(audit.c.agent == agent).order_by(audit.c.number)
    for page in connection.execute(query, execution_options={"yield_per": _PAGE_ROWS}).partitions():
        yield from page


def _format_span(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


def _parse_entry(text: str) -> dict[str, Any]:
    # json.loads raises RecursionError on JSON that is nested too deeply. It also accepts lone surrogates, which have no hash.
    try:
        entry = from_json(text)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
