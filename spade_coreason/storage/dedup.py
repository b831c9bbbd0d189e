"""In which rows of the inbox a key may be, so that a message that is surely new need not be looked for."""

from __future__ import annotations

from array import array
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from .schema import CLOSED, inbox

_ROW_MASK = 2**40 - 1

_HASH_MASK = 2**64 - 1 - _ROW_MASK

_FIRST_SIZE, _MAX_SIZE = 2**14, 2**20


class KeyIndex:
    """The rows by the hashes of their keys: 16 to 80 bytes of memory a row, and none of it on disk.

    A key that was added is never missed; for one that was not, a row is named once in some millions of times.
    """

    def __init__(self) -> None:
        # Hash tables with open addressing. The last takes what is added, until half of it is used: a larger one that had to
        # take what is in a smaller would hold up everything.
        self._tables: list[array[int]] = []
        self._newest_rows: list[int] = []
        self._free_places = 0
        self._replacements: dict[bytes, int] = {}

    def add(self, key: bytes, row: int) -> None:
        """From now on `row` is among the rows of `key`. Rows are numbered from 1."""
        if not self._free_places:
            self._grow()
        self._free_places -= 1
        if row > self._newest_rows[-1]:
            self._newest_rows[-1] = row
        number, table = hash(key), self._tables[-1]
        last = len(table) - 1
        place = number & last
        while table[place]:
            place = place + 1 & last
        table[place] = number & _HASH_MASK | row

    def add_replacement(self, key: bytes, row: int) -> None:
        """Also `row` has a key that `find_rows` names some for; the last counts. Seldom, and from any thread."""
        self._replacements[key] = row

    def find_rows(self, key: bytes) -> list[int]:
        """The rows that may have this key; none where it is surely new. From any thread."""
        renewed = self._replacements.get(key)
        found = [] if renewed is None else [renewed]
        number = hash(key)
        mark = number & _HASH_MASK
        for table in self._tables:
            last = len(table) - 1
            place = number & last
            while entry := table[place]:
                if entry & _HASH_MASK == mark:
                    found.append(entry & _ROW_MASK)
                place = place + 1 & last
        return found

    def drop_before(self, first_row: int) -> None:
        """Frees the memory for rows before this one, where it is free of others."""
        while len(self._tables) > 1 and self._newest_rows[0] < first_row:
            self._tables = self._tables[1:]  # another thread may be reading the list
            del self._newest_rows[0]
        for key, row in list(self._replacements.items()):
            if row < first_row:
                del self._replacements[key]

    def _grow(self) -> None:
        size = min(4 * len(self._tables[-1]), _MAX_SIZE) if self._tables else _FIRST_SIZE
        self._tables.append(array("Q", [0]) * size)
        self._newest_rows.append(0)
        self._free_places = size // 2


DUPLICATE_DAYS = 7

_DUPLICATE_MICROS = DUPLICATE_DAYS * 24 * 3600 * 1_000_000


def insert_unless_duplicate(connection: Connection, values: tuple[Any, ...], key: bytes, key_index: KeyIndex) -> bool:
    """Whether a request is new, and is stored: False where one of the rows that may have its `key` has it.

    After seven days it is new. In the writer's transaction, where all that came before it is stored.
    """
    row, agent, _, _, received_at, *_ = values
    same = select(inbox.c.id, inbox.c.state, inbox.c.received_at).where(
        inbox.c.id.in_(key_index.find_rows(key)), inbox.c.agent == agent, inbox.c.key == key
    )
    for earlier in connection.execute(same).all():
        if earlier.state != CLOSED or earlier.received_at >= received_at - _DUPLICATE_MICROS:
            return False
        connection.execute(delete(inbox).where(inbox.c.id == earlier.id))
    connection.execute(insert(inbox).values(values))
    key_index.add_replacement(key, row)
    return True
