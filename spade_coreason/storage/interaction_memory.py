"""The interaction memories of agents in the database: one row for each entry, in the order of the row ids."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select
from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from .backends.database import Database
from .backends.dialect_sql import has_any, insert_or_skip
from .backends.group_commit import Commit
from .backends.sequences import take_row_ids
from .schema import interaction_memory

T = TypeVar("T")

_columns = interaction_memory.c
_PAGE_IDS = 10_000
"""The number of rows that one statement deletes: PostgreSQL allows 32,767 parameters."""
_PAGE_NAMES = 1000


class MemoryRow(NamedTuple):
    """An entry: its row id, its conversation, and its JSON on one line."""

    id: int
    conversation_id: str
    entry: str

    @property
    def line(self) -> bytes:
        """The JSON with a line break, in UTF-8."""
        return self.entry.encode() + b"\n"


class MemoryRepository:
    """The entries of one agent in a database that has memories.

    The reads wait where they can, in `run_waiting`, and block the event loop elsewhere. Call all methods on the event loop.
    """

    def __init__(self, database: Database, agent: str) -> None:
        self.row_ids = database.row_ids
        self._database = database
        self._agent = agent

    def load(self, conversation_id: str | None = None) -> list[MemoryRow]:
        """Return the entries of a conversation, or of all, oldest first."""
        return self._read(lambda connection: _load_rows(connection, self._agent, conversation_id))

    def load_ids(self, conversation_ids: Collection[str] | None = None) -> dict[int, str]:
        """Return the conversations of the entries of some or of all conversations, by row id, oldest first."""
        names = None if conversation_ids is None else list(conversation_ids)
        return self._read(lambda connection: _load_ids(connection, self._agent, names))

    def list_conversations(self) -> list[str]:
        """Return the conversations that have entries, in the order of their first entries."""
        name = _columns.conversation_id
        query = select(name).where(_columns.agent == self._agent).group_by(name).order_by(func.min(_columns.id))
        return self._read(lambda connection: [_decode_name(found) for found in connection.scalars(query)])

    def measure(self, conversation_id: str, without: Collection[int]) -> int:
        """Return the size of a conversation: the bytes of its entries and of a line break after each, without some rows."""

        def work(connection: Connection) -> int:
            size = func.coalesce(func.sum(func.octet_length(_columns.entry) + 1), 0)
            query = select(size).where(_columns.agent == self._agent, _is_in(connection, [conversation_id]))
            return int(connection.execute(query.where(_columns.id.not_in(without)) if without else query).scalar_one())

        return self._read(work)

    def change(self, added: Iterable[MemoryRow], removed: Iterable[int], *, is_synced: bool = False) -> Commit[None]:
        """Add and remove entries in one transaction. It may be repeated: a row is added once.

        With `is_synced` it is on the disk when it is stored, whatever the durability of the database is.
        """
        rows, ids = _make_rows(self._agent, added), list(removed)

        def work(connection: Connection) -> None:
            if is_synced:
                connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
            for start in range(0, len(ids), _PAGE_IDS):
                is_removed = _columns.id.in_(ids[start : start + _PAGE_IDS])
                connection.execute(delete(interaction_memory).where(_columns.agent == self._agent, is_removed))
            if rows:
                connection.execute(insert_or_skip(interaction_memory), rows)

        return self._database.run(work)

    def _read(self, work: Callable[[Connection], T]) -> T:
        return wait_for(self._database.read(work)) if can_wait() else self._database.backend.read_blocking(work)


class UnpackedMemories:
    """The interaction memories in the database of an unpacked backup."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list_agents(self) -> list[str]:
        """Return the agents with entries."""
        return list(self._connection.scalars(select(_columns.agent).distinct().order_by(_columns.agent)))

    def load(self, agent: str) -> list[MemoryRow]:
        """Return the entries of an agent, oldest first."""
        return _load_rows(self._connection, agent, None)

    def add(self, agent: str, entries: Collection[tuple[str, str]]) -> None:
        """Add entries of an agent: pairs of conversation and JSON."""
        ids = take_row_ids(self._connection, len(entries))
        added = (MemoryRow(row_id, *entry) for row_id, entry in zip(ids, entries, strict=True))
        if rows := _make_rows(agent, added):
            self._connection.execute(insert(interaction_memory), rows)

    def delete_all(self) -> None:
        """Delete the entries of all agents."""
        self._connection.execute(delete(interaction_memory))


def delete_memory(connection: Connection, agent: str, conversation_ids: Collection[str]) -> None:
    """Delete the entries of conversations of an agent. Run this inside a transaction of the writer."""
    connection.execute(delete(interaction_memory).where(_columns.agent == agent, _is_in(connection, conversation_ids)))


def _load_rows(connection: Connection, agent: str, conversation_id: str | None) -> list[MemoryRow]:
    query = select(_columns.id, _columns.conversation_id, _columns.entry).where(_columns.agent == agent).order_by(_columns.id)
    if conversation_id is not None:
        query = query.where(_is_in(connection, [conversation_id]))
    return [MemoryRow(row_id, _decode_name(name), entry) for row_id, name, entry in connection.execute(query)]


def _load_ids(connection: Connection, agent: str, conversation_ids: list[str] | None) -> dict[int, str]:
    query = select(_columns.id, _columns.conversation_id).where(_columns.agent == agent).order_by(_columns.id)
    if conversation_ids is None:
        queries = [query]
    else:
        pages = (conversation_ids[start : start + _PAGE_NAMES] for start in range(0, len(conversation_ids), _PAGE_NAMES))
        queries = [query.where(_is_in(connection, page)) for page in pages]
    return {row_id: _decode_name(name) for query in queries for row_id, name in connection.execute(query)}


def _make_rows(agent: str, added: Iterable[MemoryRow]) -> list[dict[str, Any]]:
    return [
        {"id": row.id, "agent": agent, "conversation_id": _encode_name(row.conversation_id), "entry": row.entry}
        for row in added
    ]


def _is_in(connection: Connection, conversation_ids: Collection[str]) -> ColumnElement[bool]:
    return has_any(connection, _columns.conversation_id, [_encode_name(name) for name in conversation_ids])


def _encode_name(conversation_id: str) -> str:
    return json.dumps(conversation_id, ensure_ascii=False)[1:-1].encode("utf-8", "backslashreplace").decode()


def _decode_name(name: str) -> str:
    return str(json.loads(f'"{name}"')) if "\\" in name else name


# Plain code that waits for the database without blocking the event loop. SQLAlchemy runs its own plain code so: in a greenlet,
# which can be left in the middle of a call and be continued later.


async def run_waiting(work: Callable[[], T]) -> T:
    """Run `work` on the event loop. It may call `wait_for`; other tasks run then."""
    return await greenlet_spawn(work)


def can_wait() -> bool:
    """Return True if `run_waiting` runs the caller."""
    return in_greenlet()


def wait_for(awaitable: Awaitable[T]) -> T:
    """Wait, and return the result. Only code that `run_waiting` runs may do this."""
    return await_only(awaitable)
