"""The sequence of row ids. A process takes them in blocks, so that a new row needs no query, and several processes agree."""

from __future__ import annotations

from sqlalchemy import Connection, update

from ...exceptions import StoreError
from ..schema import sequences

MAX_ROW_ID = 2**40 - 1
"""The largest row id: the index of the inbox keys has 40 bits for one."""
# Each process runs these once for each database that it opens. SQLAlchemy would take longer to compile them than they run.
_BEGIN = f"INSERT INTO {sequences.name} (name, next_id) VALUES ('rows', 1)"
_READ = f"SELECT next_id FROM {sequences.name} WHERE name = 'rows'"
_TAKE = f"UPDATE {sequences.name} SET next_id = next_id + {{}} WHERE name = 'rows' RETURNING next_id"
_IS_ROW_IDS = sequences.c.name == "rows"


def create_sequence(connection: Connection) -> None:
    """Begin the sequence at 1, in an empty database."""
    connection.exec_driver_sql(_BEGIN)


def read_next_row_id(connection: Connection) -> int:
    """Return the first row id that no process has taken."""
    return int(connection.exec_driver_sql(_READ).scalar_one())


def take_row_ids(connection: Connection, count: int) -> range:
    """Take `count` row ids, in the transaction of `connection`. Raise StoreError if so many are not left."""
    end = int(connection.exec_driver_sql(_TAKE.format(count)).scalar_one())
    if end > MAX_ROW_ID + 1:
        raise StoreError("the database has used up its row ids; export what you need, and begin with a new database")
    return range(end - count, end)


def advance_sequence(connection: Connection, next_id: int) -> None:
    """Let the sequence go on with `next_id`, unless it is further already."""
    connection.execute(update(sequences).where(_IS_ROW_IDS, sequences.c.next_id < next_id).values(next_id=next_id))
