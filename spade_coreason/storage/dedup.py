"""Deduplication: an index of the inbox keys in memory, so that a new message needs no query."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, or_, select

from ..domain.duplicates import NO_EVIDENCE, Evidence, is_copy
from .backends.statements import RECEIVED_COLUMNS
from .schema import CLOSED, DUPLICATE_DAYS, NO_TURN, PARKED, RECEIVED, inbox

_ROW_MASK = 2**40 - 1

_HASH_MASK = 2**64 - 1 - _ROW_MASK

_FIRST_SIZE, _MAX_SIZE = 2**14, 2**20

MAX_FURTHER_ROWS = 500
"""The most messages with the same id and content that a new one is compared with, beside the first."""


class KeyIndex:
    """Rows of the inbox by the hashes of their keys: 16 to 80 bytes of memory per row, and nothing on disk.

    An added key is always found. A key that was not added finds a row once in some millions of times.
    """

    def __init__(self) -> None:
        # Hash tables with open addressing. New keys go into the last table until half of it is used. Then a new table follows:
        # copying the entries into a larger table would block the event loop.
        self._tables: list[array[int]] = []
        self._newest_rows: list[int] = []
        self._free_slots = 0
        self._further_rows: dict[bytes, list[int]] = {}

    @property
    def is_empty(self) -> bool:
        """True until the first key is added."""
        return not self._tables

    def add(self, key: bytes, row: int) -> None:
        """Add `row` to the rows of `key`. Rows are numbered from 1."""
        if not self._free_slots:
            self._grow()
        self._free_slots -= 1
        if row > self._newest_rows[-1]:
            self._newest_rows[-1] = row
        key_hash, table = hash(key), self._tables[-1]
        mask = len(table) - 1
        slot = key_hash & mask
        while table[slot]:
            slot = slot + 1 & mask
        table[slot] = key_hash & _HASH_MASK | row

    def add_further(self, key: bytes, row: int) -> None:
        """Add `row` to the rows of a key that has one. The last 500 are found. Safe from any thread."""
        rows = self._further_rows.setdefault(key, [row])
        if rows[-1] != row:  # else a transaction is repeated
            rows.append(row)
        if len(rows) > 2 * MAX_FURTHER_ROWS:
            self._further_rows[key] = rows[-MAX_FURTHER_ROWS:]

    def find_rows(self, key: bytes) -> list[int]:
        """Return the rows that may have this key; none if the key is certainly new. Safe from any thread."""
        further = self._further_rows.get(key)
        found = further[-MAX_FURTHER_ROWS:] if further else []
        key_hash = hash(key)
        tag = key_hash & _HASH_MASK
        for table in self._tables:
            mask = len(table) - 1
            slot = key_hash & mask
            while entry := table[slot]:
                if entry & _HASH_MASK == tag:
                    found.append(entry & _ROW_MASK)
                slot = slot + 1 & mask
        return found

    def drop_before(self, first_row: int) -> None:
        """Free the memory of rows before `first_row`, except in tables that also hold later rows."""
        while len(self._tables) > 1 and self._newest_rows[0] < first_row:
            self._tables = self._tables[1:]  # another thread may be reading the list
            del self._newest_rows[0]
        for key, rows in list(self._further_rows.items()):
            if rows[-1] < first_row:
                del self._further_rows[key]

    def _grow(self) -> None:
        size = min(4 * len(self._tables[-1]), _MAX_SIZE) if self._tables else _FIRST_SIZE
        self._tables.append(array("Q", [0]) * size)
        self._newest_rows.append(0)
        self._free_slots = size // 2


_DUPLICATE_MICROS = DUPLICATE_DAYS * 24 * 3600 * 1_000_000


def insert_unless_copy(
    connection: Connection,
    values: tuple[Any, ...],
    message_key: bytes,
    own_key: bytes | None,
    evidence: Evidence,
    key_index: KeyIndex,
) -> bool:
    """Store a message that may be a copy of an earlier one, and return True; return False if it is one.

    `message_key` is the key of its id and content, which the earlier messages have too. It is stored with `own_key`, by default
    `message_key`. An earlier message that is closed and older than seven days does not count. Run this inside a transaction of
    the writer: there all earlier ones are stored.
    """
    row, agent, _, _, received_at, *_ = values
    may_be_copy = evidence is not NO_EVIDENCE
    for earlier in _find_earlier(connection, agent, message_key, key_index.find_rows(message_key)) if may_be_copy else ():
        if earlier.state == CLOSED and earlier.received_at < received_at - _DUPLICATE_MICROS:
            continue
        if is_copy(evidence, Evidence.load(earlier.evidence), earlier.received_at):
            return False
    key_values = {"key": own_key or message_key, "message_key": message_key}
    connection.execute(insert(inbox).values({**_by_column(values), **key_values}))
    key_index.add_further(message_key, row)
    return True


def insert_unless_repeated(connection: Connection, values: tuple[Any, ...], key: bytes, key_index: KeyIndex) -> bool:
    """Store a program's request and return True, or return False if the inbox has a request with its `key` already.

    A repeated request is stored too, under a key of its own, until it has been answered. A closed request that is older than
    seven days does not count; it is deleted. So is a request that ended without a turn: it was cancelled or refused, and begins
    anew. Run this inside a transaction of the writer: there all earlier requests are stored.
    """
    row, agent, _, _, received_at, *_ = values
    for earlier in _find_earlier(connection, agent, key, key_index.find_rows(key)):
        begins_anew = earlier.state != RECEIVED and earlier.interaction == NO_TURN
        is_recent = earlier.interaction == PARKED or earlier.received_at >= received_at - _DUPLICATE_MICROS
        if not begins_anew and (earlier.state != CLOSED or is_recent):
            connection.execute(insert(inbox).values({**_by_column(values), "key": uuid4().bytes}))
            return False
        connection.execute(delete(inbox).where(inbox.c.id == earlier.id))
    connection.execute(insert(inbox).values(_by_column(values)))
    key_index.add_further(key, row)
    return True


def _find_earlier(connection: Connection, agent: str, key: bytes, rows: list[int]) -> Sequence[Any]:
    query = select(inbox.c.id, inbox.c.state, inbox.c.received_at, inbox.c.interaction, inbox.c.evidence).where(
        inbox.c.id.in_(rows), inbox.c.agent == agent, or_(inbox.c.key == key, inbox.c.message_key == key)
    )
    return connection.execute(query).all()


def _by_column(values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(RECEIVED_COLUMNS, values, strict=True))
