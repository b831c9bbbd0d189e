"""The sequence of row ids. A process takes them in blocks, so that a new row needs no query, and several processes agree."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from ..exceptions import StoreError
from .schema import sequences

MAX_ROW_ID = 2**40 - 1
"""The largest row id: the index of the inbox keys has 40 bits for one."""
_ROW_IDS = "rows"
_IS_ROW_IDS = sequences.c.name == _ROW_IDS


def create_sequence(connection: Connection) -> None:
    """Begin the sequence at 1, in an empty database."""
    connection.execute(insert(sequences).values(name=_ROW_IDS, next_id=1))


def read_next_row_id(connection: Connection) -> int:
    """Return the first row id that no process has taken."""
    return int(connection.execute(select(sequences.c.next_id).where(_IS_ROW_IDS)).scalar_one())


def take_row_ids(connection: Connection, count: int) -> range:
    """Take `count` row ids, in the transaction of `connection`. Raise StoreError if so many are not left."""
    statement = update(sequences).where(_IS_ROW_IDS).values(next_id=sequences.c.next_id + count)
    end = connection.execute(statement.returning(sequences.c.next_id)).scalar_one()
    if end > MAX_ROW_ID + 1:
        raise StoreError("the database has used up its row ids; export what you need, and begin with a new database")
    return range(end - count, end)


def advance_sequence(connection: Connection, next_id: int) -> None:
    """Let the sequence go on with `next_id`, unless it is further already."""
    connection.execute(update(sequences).where(_IS_ROW_IDS, sequences.c.next_id < next_id).values(next_id=next_id))
