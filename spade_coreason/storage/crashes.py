"""Crashes: the requests whose turns ran when the process ended, and the requests that ended it more than once."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from pydantic_core import from_json, to_json
from sqlalchemy import ColumnElement, Connection, Select, delete, false, insert, literal, null, select, true, update

from ..domain.channel_kinds import DEFAULT_CHANNEL
from ..domain.environment.private_files import open_private
from ..domain.identifiers import NO_DIGEST
from ..exceptions import StoreError
from .backends.database import Database
from .backends.dialect_sql import has_any
from .backends.group_commit import Rows
from .backends.statements import RECEIVE, RECEIVED_COLUMNS, SET_CHANNEL
from .records import PAUSED, PLATFORM_SCOPE, PendingRequest, to_micros
from .row_repository import RowRepository
from .schema import (
    CRASHES_UNTIL_SUSPECT,
    RECEIVED,
    STOPS_UNTIL_SUSPECT,
    CrashedRequest,
    crashed_requests,
    inbox,
    parked_requests,
    variables,
)

_MAX_DIGITS = 18
_SLOT_COUNT = 8192
_SLOT_BYTES = 8
SPARE_SLOT = 0
"""The slot of turns beyond the number of slots. It is never read."""
_STOP_SLOT = _SLOT_COUNT - 2
"""The slot that is not 0 while the platform stops."""
_HOLDER_SLOT = _SLOT_COUNT - 1
_KEPT_SLOTS = 64
"""The number of slots, the first ones, whose requests can be kept."""
_KEPT_BYTES = 4096
_LENGTH_BYTES = 4


class RunningRequests:
    """The requests whose turns run, by the row in the inbox, in a file that survives the process.

    The file is mapped into memory: an entry costs no system call, and is in the file even if the process is killed in the next
    moment. A power cut may lose it, but brings back none that was cleared. Without a `path` there is no file. Only one process
    uses it at a time. StoreError if the file cannot be written.

    A turn takes a number out of `free_slots` and writes its row into `slots`. Once it is stored, its worker writes 0 and gives
    the number back. A turn that a stop cuts off leaves its row.

    A turn may begin before its request is durable. If it ends the process, the request is nowhere, and comes again after each
    start. So it is kept here until then (`keep`), and `restore_kept` stores it at the next start.
    """

    def __init__(self, path: Path | None = None) -> None:
        size = _SLOT_COUNT * _SLOT_BYTES + _KEPT_SLOTS * _KEPT_BYTES
        mapped = mmap.mmap(-1, size) if path is None else _map_file(path, size)
        self._mapped = mapped
        self.slots = memoryview(mapped)[: _SLOT_COUNT * _SLOT_BYTES].cast("Q")
        """The row in the inbox of each running turn, by slot; 0 where none runs."""
        self.holder = self.slots[_HOLDER_SLOT:]
        """One number: the row of the turn that holds the event loop at this moment, else 0."""
        self.free_slots = list(range(_STOP_SLOT - 1, SPARE_SLOT, -1))
        """The slots that no turn uses."""

    @property
    def rows(self) -> frozenset[int]:
        """The rows of all requests whose turns run, or ran when the process ended."""
        return frozenset(self.slots[SPARE_SLOT + 1 : _STOP_SLOT]) - {0}

    @property
    def is_idle(self) -> bool:
        """True if no turn runs."""
        return len(self.free_slots) == _STOP_SLOT - 1 - SPARE_SLOT

    @property
    def is_stopping(self) -> bool:
        """True while the platform stops, or if the process ended in a stop."""
        return self.slots[_STOP_SLOT] != 0

    def keep(self, slot: int, rows: Rows) -> bool:
        """Keep the request of a turn that has a slot: the rows of its commit. Return False if there is no room."""
        statements = [number for number, _ in rows]
        if not SPARE_SLOT < slot <= _KEPT_SLOTS or statements not in ([RECEIVE], [RECEIVE, SET_CHANNEL]):
            return False
        values = [value.hex() if isinstance(value, bytearray) else value for value in rows[0][1]]
        values = [value() if callable(value) else value for value in values]
        content = to_json([*values, rows[1][1][1] if len(rows) > 1 else None])
        if len(content) > _KEPT_BYTES - _LENGTH_BYTES:
            return False
        begin = _kept_at(slot)
        self._mapped[begin : begin + _LENGTH_BYTES + len(content)] = len(content).to_bytes(_LENGTH_BYTES) + content
        return True

    def drop(self, slot: int) -> None:
        """Keep the request of a slot no longer."""
        begin = _kept_at(slot)
        self._mapped[begin : begin + _KEPT_BYTES] = bytes(_KEPT_BYTES)

    @property
    def kept(self) -> list[dict[str, Any]]:
        """The requests that were kept, of the turns that run, or ran when the process ended: the columns of the inbox."""
        found = []
        for slot in range(SPARE_SLOT + 1, _KEPT_SLOTS + 1):
            begin = _kept_at(slot) + _LENGTH_BYTES
            length = int.from_bytes(self._mapped[begin - _LENGTH_BYTES : begin])
            with suppress(ValueError):  # a power cut may have left a part of it
                *values, channel = from_json(self._mapped[begin : begin + length])
                columns = dict(zip(RECEIVED_COLUMNS, values, strict=True)) | {"channel": channel}
                if columns["id"] == self.slots[slot]:
                    found.append(columns | {name: bytes.fromhex(columns[name]) for name in ("key", "digest")})
        return found

    def take_rows(self, rows: Collection[int]) -> list[int]:
        """Remove those of the rows whose turns run, because a stop has cut them off. Return them."""
        taken = []
        for slot in range(SPARE_SLOT + 1, _STOP_SLOT):
            if (row := self.slots[slot]) and row in rows:
                taken.append(row)
                self.slots[slot] = 0
                self.free_slots.append(slot)
        return taken

    def mark_stop(self) -> None:
        """Note that the platform stops: what is still running at the end of the process has not crashed it."""
        with suppress(OSError):  # the stop goes on
            # After a power cut, a stop without its requests would say that none was cut off.
            self._mapped.flush()
        self.slots[_STOP_SLOT] = 1

    def clear(self) -> None:
        """Delete all entries."""
        self._mapped[:] = bytes(len(self._mapped))
        self._mapped.flush()


def _kept_at(slot: int) -> int:
    return _SLOT_COUNT * _SLOT_BYTES + (slot - 1) * _KEPT_BYTES


def _map_file(path: Path, size: int) -> mmap.mmap:
    try:
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(descriptor, size)
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written; correct this, and start the platform again: {error.strerror}") from error


_is_unanswered = select(inbox.c.id).where(inbox.c.id == crashed_requests.c.id, inbox.c.state == RECEIVED).exists()


async def restore_kept(database: Database, kept: Sequence[Mapping[str, Any]]) -> None:
    """Store the requests of `RunningRequests.kept` that are not in the inbox."""
    if kept:
        for columns in await database.write(lambda connection: store_kept(connection, kept)):
            database.inbox_index.add_open(columns["agent"], columns["key"], columns["id"])


def store_kept(connection: Connection, kept: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Store the requests of `RunningRequests.kept` that are not in the inbox, in a transaction. Return these."""
    stored = set(connection.scalars(select(inbox.c.id).where(inbox.c.id.in_([columns["id"] for columns in kept]))))
    lost = [columns for columns in kept if columns["id"] not in stored]
    for columns in lost:
        connection.execute(insert(inbox).values(columns))
    return lost


async def record_crash(
    database: Database, rows: Collection[int], now: datetime, blocking_row: int = 0, *, is_stop: bool = False
) -> list[CrashedRequest]:
    """Count a crash, or a stop, for the requests in `rows` that are not answered. Return all unanswered ones with a count.

    A suspect that was the only one in `rows` has failed: a crash fails a suspect because of crashes, and a stop one because of
    stops. If one of them blocked the event loop until the process was killed (`blocking_row`), it alone is counted, and has
    failed. Requests that were answered in the meantime are forgotten.
    """
    return await database.write(lambda connection: count_crash(connection, rows, now, blocking_row, is_stop=is_stop))


def count_crash(
    connection: Connection, rows: Collection[int], now: datetime, blocking_row: int = 0, *, is_stop: bool = False
) -> list[CrashedRequest]:
    """Do what `record_crash` does, in a transaction."""
    if blocking_row in rows:
        rows = {blocking_row}
    crashed = crashed_requests
    connection.execute(delete(crashed).where(crashed.c.failed_at.is_(None), ~_is_unanswered))
    if rows:
        _count(connection, rows, now, is_stop=is_stop)
        if blocking_row in rows:
            connection.execute(update(crashed).where(crashed.c.id.in_(rows)).values(failed_at=to_micros(now)))
    found = connection.execute(select(crashed).where(_is_unanswered).order_by(crashed.c.id))
    return list(map(CrashedRequest._make, found))


def record_lost_worker(connection: Connection, agents: Sequence[str], now: datetime) -> None:
    """Count a crash for the unanswered requests of the agents of a worker that was lost, in a transaction.

    It is not known which of them ran, but those of a paused agent did not. If one ran alone (`mark_alone`), it is the only one
    that is counted, and fails if it is a suspect.
    """
    crashed = crashed_requests
    ran_alone = crashed.c.agent.in_(agents), crashed.c.runs_alone, _is_unanswered  # an answered one may still have the mark
    alone = list(connection.scalars(select(crashed.c.id).where(*ran_alone)))
    if not (rows := alone):
        is_pause = variables.c.scope == PLATFORM_SCOPE, variables.c.name == PAUSED, variables.c.value == "true"
        paused = set(connection.scalars(select(variables.c.agent).where(variables.c.agent.in_(agents), *is_pause)))
        if started := [agent for agent in agents if agent not in paused]:
            is_open = (has_any(connection, inbox.c.agent, started), inbox.c.state == RECEIVED)
            rows = list(connection.scalars(select(inbox.c.id).where(*is_open)))
    if rows:
        _count(connection, rows, now)


async def mark_alone(database: Database, row: int, runs_alone: bool) -> None:
    """Store that a suspect runs alone from now on, or no more, for the worker that may have to replace this one."""
    marked = update(crashed_requests).where(crashed_requests.c.id == row).values(runs_alone=runs_alone)
    await database.execute(marked)


def _count(connection: Connection, rows: Collection[int], now: datetime, *, is_stop: bool = False) -> None:
    """Count a crash, or a stop, for requests that ran. The only one fails if it is a suspect."""
    name, limit = ("stops", STOPS_UNTIL_SUSPECT) if is_stop else ("crashes", CRASHES_UNTIL_SUSPECT)
    crashed = crashed_requests
    was_running = crashed.c.id.in_(rows)
    if len(rows) == 1:
        has_failed = [was_running, crashed.c[name] >= limit, crashed.c.failed_at.is_(None)]
        connection.execute(update(crashed).where(*has_failed).values(failed_at=to_micros(now)))
    connection.execute(update(crashed).where(was_running).values({name: crashed.c[name] + 1, "runs_alone": False}))
    known = set(connection.scalars(select(crashed.c.id).where(was_running)))
    first = select(inbox).where(inbox.c.id.in_(set(rows) - known), inbox.c.state == RECEIVED, inbox.c.request.is_not(None))
    for row in connection.execute(first).all():
        connection.execute(insert(crashed).values({"crashes": 0, **_copy(row), "id": row.id, name: 1}))


async def load_crashed(database: Database, agents: Sequence[str]) -> list[CrashedRequest]:
    """Return the unanswered requests of these agents that have a count, oldest first."""
    is_own = crashed_requests.c.agent.in_(agents), _is_unanswered
    query = select(crashed_requests).where(*is_own).order_by(crashed_requests.c.id)
    return list(map(CrashedRequest._make, await database.fetch(query)))


class _RequestRows(RowRepository[CrashedRequest]):
    """Requests in one state, by their numbers."""

    row, ident, time, person = CrashedRequest, "id", "received_at", "sender"
    condition: ClassVar[ColumnElement[bool]] = true()

    async def find_by_prefix(self, prefix: str, **values: Any) -> list[CrashedRequest]:
        """Return the request with a number, as a list."""
        return await self.load(*self._has_number(prefix), **values)

    async def find_last(self, ident: str, **values: object) -> list[CrashedRequest]:
        """Return the last row of a page by its number, also if the request is in another state by now."""
        query = self._select().where(*super()._own(*self._has_number(ident), **values))
        return list(map(CrashedRequest._make, await self._database.fetch(query)))

    def _has_number(self, text: str) -> tuple[ColumnElement[bool]]:
        is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
        return (self.table.c.id == int(text) if is_number else false(),)

    def _own(self, *conditions: ColumnElement[bool], **values: object) -> list[ColumnElement[bool]]:
        return super()._own(*conditions, self.condition, **values)

    def _select_briefly(self) -> Select[Any]:
        """Return the query without the text and the counts, which rows of other tables have not."""
        sender, received_at = self.table.c[self.person].label("sender"), self.table.c[self.time].label("received_at")
        counts = literal(0).label("crashes"), null().label("failed_at"), literal(0).label("stops")
        rest = null().label("channel"), false().label("runs_alone")
        return select(self.table.c.id, self.table.c.agent, sender, received_at, literal("").label("request"), *counts, *rest)

    def _place(self, row: CrashedRequest) -> tuple[int, int]:
        return row.received_at, row.id


class FailedRequestRows(_RequestRows):
    """The requests that failed because they ended the process."""

    table, condition = crashed_requests, crashed_requests.c.failed_at.is_not(None)


class WaitingRequestRows(_RequestRows):
    """The requests that are not answered yet. Their turns may run."""

    table, condition = inbox, inbox.c.state == RECEIVED
    _select = _RequestRows._select_briefly


class ParkedRequestRows(_RequestRows):
    """The requests that wait for the answer of a person, received when they were parked."""

    table, time, person = parked_requests, "parked_at", "owner"
    _select = _RequestRows._select_briefly


async def retry_failed_request(database: Database, request: CrashedRequest) -> PendingRequest | None:
    """Put a failed request into the inbox again, as if it had never run, and return it. None if it is there no more.

    It runs at the next start, if it does not run before.
    """
    # With a new key: the ids of the answer derive from it, and the sender has got an error under the old ones.
    key, row = uuid4().bytes, database.row_ids.next()

    def work(connection: Connection) -> bool:
        # It may have been retried, dropped or erased with its sender since it was read.
        if not connection.execute(delete(crashed_requests).where(crashed_requests.c.id == request.id)).rowcount:
            return False
        connection.execute(insert(inbox).values(id=row, key=key, state=RECEIVED, **_copy(request)))
        return True

    if not await database.write(work):
        return None
    database.inbox_index.add_open(request.agent, key, row)
    return PendingRequest(row, key, request.request, None, NO_DIGEST, request.channel or DEFAULT_CHANNEL)


def _copy(request: Any) -> dict[str, Any]:
    """Return what a row of the inbox and one of `crashed_requests` have in common."""
    return {name: getattr(request, name) for name in ("agent", "sender", "received_at", "request", "channel")}


async def drop_failed_request(database: Database, request: CrashedRequest) -> None:
    """Delete a failed request."""
    await database.execute(delete(crashed_requests).where(crashed_requests.c.id == request.id))
