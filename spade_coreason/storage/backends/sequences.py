"""The sequence of row ids. A process takes them in blocks, so that a new row needs no query, and several processes agree."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from sqlalchemy import Connection, update

from ...exceptions import StoreError
from ..schema import sequences
from .group_commit import Commit, GroupCommit

ROW_ID_BLOCK = 2**14
"""The number of row ids that a process takes at once. A process that is killed loses at most two blocks."""
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


class RowIds:
    """The row ids that this process has taken. They ascend, and are unique in the whole database.

    The next block is taken long before it is needed. While the database accepts no writes, that is retried.
    """

    def __init__(self, writes: GroupCommit) -> None:
        self.next: Callable[[], int] = chain.from_iterable(self._iterate_blocks()).__next__
        """Return an unused row id, without a query. StoreError if none is left: the database has accepted no writes for long.
        """
        self._writes = writes
        self._blocks: deque[range] = deque()
        """The blocks that follow the current one."""
        self.known_next = 0
        """The end of the current block, or of the newest one if no other process has taken one between.

        The sequence is further only if another process has taken one since. 0 before the first block.
        """

    def begin(self, block: range) -> None:
        """Go on with a new block. The rest of the earlier ones is not used."""
        self._blocks.clear()
        self.known_next = block.start
        self._add(block)
        self.next = chain.from_iterable(self._iterate_blocks()).__next__

    def renew(self, connection: Connection) -> bool:
        """Begin a new block if another process has taken one since, and commit. Return True in that case."""
        is_behind = read_next_row_id(connection) != self.known_next
        if is_behind:
            self.begin(take_row_ids(connection, ROW_ID_BLOCK))
        connection.commit()
        return is_behind

    def _iterate_blocks(self) -> Iterator[Iterable[int]]:
        while True:
            yield iter(self._require_block, None)  # an iterator survives errors, a generator does not
            block = self._blocks.popleft()
            self.known_next = max(self.known_next, block.stop)
            half = len(block) // 2
            yield block[:half]
            self._fetch()
            yield block[half:]

    def _require_block(self) -> None:
        if not self._blocks:
            raise StoreError(f"{self._writes.name}: no row ids are left, because the database accepts no writes")

    def _fetch(self) -> None:
        writes = self._writes
        if not writes.is_closed:
            block = Commit(work=lambda connection: take_row_ids(connection, ROW_ID_BLOCK))
            writes.add(block)
            block.on_stored(self._add)
            block.on_failed(lambda _: writes.loop.call_later(writes.retry_s, self._fetch))

    def _add(self, block: range) -> None:
        self._blocks.append(block)
        if block.start == self.known_next:
            self.known_next = block.stop
