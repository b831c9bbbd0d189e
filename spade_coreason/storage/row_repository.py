"""The base of the repositories whose tables have one row for each of their values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar, cast

from sqlalchemy import ColumnElement, Connection, Select, Table, delete, insert, select, tuple_, update

from .backends.database import Database
from .backends.group_commit import Commit
from .records import to_micros

T = TypeVar("T")


class RowRepository(Generic[T]):
    """The rows of one agent (a bare JID), or all rows of the table. Methods raise StoreError if the database fails."""

    table: ClassVar[Table]
    row: ClassVar[type[Any]]
    """The named tuple of which the table is made."""
    ident: ClassVar[str]
    """The column of the id by which others know a row."""
    order: ClassVar[str] = "id"
    """The column by which rows are listed."""
    time: ClassVar[str] = "created_at"
    """The column by which pages of rows are listed."""
    is_newest_first: ClassVar[bool] = True
    """True if the pages begin with the latest time, False if with the earliest."""
    person: ClassVar[str] = "owner"
    """The column of the person whom a row is about."""

    def __init__(self, database: Database, agent: str = "") -> None:
        self.row_ids = database.row_ids
        self._database = database
        self._agent = agent

    async def load(
        self, *conditions: ColumnElement[bool], order: Any = None, limit: int | None = None, **values: object
    ) -> list[T]:
        """Return the rows that meet some conditions and have some values, of which None is any: all, or at most `limit`."""
        first = self.table.c[self.order] if order is None else order
        query = self._select().where(*self._own(*conditions, **values)).order_by(first, self.table.c.id).limit(limit)
        return [self.row._make(row) for row in await self._database.fetch(query)]

    async def load_page(
        self, beyond: T | datetime | None = None, *, person: str | None = None, limit: int = 1000, **values: object
    ) -> list[T]:
        """Return at most `limit` rows about a person (a bare JID) that have some values, of which None is any, in their order.

        `beyond` is the last row of the page before, or a time behind which the page begins.
        """
        at, row_id = self.table.c[self.time], self.table.c.id
        conditions: list[ColumnElement[bool]] = []
        follows = operator.lt if self.is_newest_first else operator.gt
        if isinstance(beyond, datetime):
            conditions = [follows(at, to_micros(beyond))]
        elif beyond is not None:
            conditions = [follows(tuple_(at, row_id), self._place(beyond))]
        own = self._own(*conditions, **{self.person: person, **values})
        order = (at.desc(), row_id.desc()) if self.is_newest_first else (at, row_id)
        query = self._select().where(*own).order_by(*order).limit(limit)
        return [self.row._make(row) for row in await self._database.fetch(query, is_background=True)]

    async def find(self, ident: str) -> T | None:
        """Return the row with an id, or None."""
        return next(iter(await self.load(self._has(ident))), None)

    async def find_by_prefix(self, prefix: str, **values: object) -> list[T]:
        """Return at most two rows with an id, else those whose ids begin with it. A second one means that it is not enough."""
        found = await self.load(self._has(prefix), limit=2, **values)
        return found or await self.load(self.table.c[self.ident].startswith(prefix, autoescape=True), limit=2, **values)

    async def find_last(self, ident: str, **values: object) -> list[T]:
        """Return the last row of a page by its id, or the beginning of that: one, unless it is gone or not clear."""
        return await self.find_by_prefix(ident, **values)

    async def delete(self, ident: str, then: Callable[[Connection, bool], object] | None = None, **values: object) -> bool:
        """Delete a row, if it has some values. Return False if there is none. `then` gets that in the same transaction."""
        statement = delete(self.table).where(*self._own(self._has(ident), **values))

        def work(connection: Connection) -> bool:
            is_deleted = bool(connection.execute(statement).rowcount)
            if then is not None:
                then(connection, is_deleted)
            return is_deleted

        return await self._database.erase(work)

    def add(self, new: T, then: Callable[[Connection], object] = lambda connection: None) -> Commit[bool]:
        """Store a new row, and what `then` stores with it. The commit has False if there is one with its id."""
        values = cast(Any, new)._asdict()

        def work(connection: Connection) -> bool:
            if self.get(connection, self._has(values[self.ident])) is not None:
                return False
            connection.execute(insert(self.table).values(values))
            then(connection)
            return True

        return self._database.run(work)

    def update(
        self,
        ident: str,
        decide: Callable[[T], T | None],
        then: Callable[[Connection, T], object] = lambda connection, row: None,
    ) -> Commit[T | None]:
        """Store what `decide` makes of a row, and what `then` stores with it. The commit has the row.

        It has None if there is no such row, or if `decide` returns None for no change.
        """

        def work(connection: Connection) -> T | None:
            before = self.get(connection, self._has(ident), is_locked=True)
            if before is None or (after := decide(before)) is None:
                return None
            connection.execute(update(self.table).where(self._has(ident)).values(cast(Any, after)._asdict()))
            then(connection, after)
            return after

        return self._database.run(work)

    def get(self, connection: Connection, *conditions: ColumnElement[bool], is_locked: bool = False) -> T | None:
        """Return the one row that meets some conditions, or None, in a transaction.

        With `is_locked` no other worker changes it until the transaction ends.
        """
        query = select(self.table).where(*self._own(*conditions))
        found = connection.execute(query.with_for_update() if is_locked else query).one_or_none()
        return None if found is None else self.row._make(found)

    def _select(self) -> Select[Any]:
        return select(self.table)

    def _place(self, row: Any) -> tuple[int, int]:
        return getattr(row, self.time), row.id

    def _own(self, *conditions: ColumnElement[bool], **values: object) -> list[ColumnElement[bool]]:
        own = {"agent": self._agent or None, **values}
        given = {self.table.c[name]: value for name, value in own.items() if value is not None}
        return [*conditions, *(c.in_(v) if isinstance(v, tuple) else c == v for c, v in given.items())]

    def _has(self, ident: str) -> ColumnElement[bool]:
        return self.table.c[self.ident] == ident
