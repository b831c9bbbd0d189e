"""The inbox: requests are stored before they are acknowledged, until the server has the whole reply."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, Select, case, delete, func, insert, select, update

from ..contracts.times import utc_now
from ..domain.channel_kinds import DEFAULT_CHANNEL
from ..domain.duplicates import NO_EVIDENCE, Evidence
from ..domain.identifiers import NO_DIGEST
from ..domain.texts.json_text import dump_json
from ..exceptions import StoreError
from . import kept
from .backends.database import Database
from .backends.group_commit import Commit, Rows
from .backends.statements import (
    ADD_INTERACTION,
    ANSWER,
    CLOSE,
    DELETE_STEPS,
    RECEIVE,
    SAVE_CONVERSATION,
    SAVE_STEP,
    SAVE_VARIABLE,
    SET_CHANNEL,
)
from .dedup import insert_unless_copy, insert_unless_repeated
from .records import (
    COUNT_NAME,
    LAST_INTERACTION,
    MESSAGE_COUNT_SCOPES,
    EarlierRequest,
    InboxRecord,
    KnownRequest,
    MessageCount,
    PendingRequest,
    StoredConversation,
    StoredStep,
    TurnRecord,
    Variable,
    conversation_columns,
    from_micros,
    to_micros,
)
from .schema import (
    ANSWERED,
    CLOSED,
    COMMAND,
    DUPLICATE_DAYS,
    NO_TURN,
    RECEIVED,
    conversations,
    crashed_requests,
    inbox,
    interactions,
    parked_requests,
    steps,
)
from .tasks import SaveStep


class Inbox:
    """The requests of one agent (a bare JID). Each is received, then answered, then closed."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._writes = database.writes
        self._row_ids = database.row_ids
        self._index = database.inbox_index
        self._agent = agent
        self._has_purged = False
        self._unsaved_steps: dict[int, list[StoredStep]] = {}
        """The steps that go into the next transaction, by the row of their request."""

    @property
    def _open_rows(self) -> set[int]:
        return self._index.open_rows[self._agent]

    def may_have(self, key: bytes) -> bool:
        """Return False if the request with this key is certainly new. Only the commit of `receive` tells a duplicate."""
        return bool(self._index.keys.find_rows(key))

    async def open(self) -> None:
        """Prepare for the requests of the agent. Call it before the others."""
        await self._database.open_agent(self._agent)

    def receive(
        self,
        key: bytes,
        sender: str,
        request: str | Callable[[], str],
        now: datetime,
        *,
        digest: bytes = NO_DIGEST,
        evidence: Evidence = NO_EVIDENCE,
        may_be_duplicate: bool | None = None,
        own_key: bytes | None = None,
        channel: str = DEFAULT_CHANNEL,
        also: Rows = (),
    ) -> tuple[int, Commit[bool], bool]:
        """Store a request. Return its row id, its commit and a flag.

        `channel` is the name of its channel. `digest` is the hash of what a program's request asks; empty for other requests.
        `may_be_duplicate` is the result of `may_have`, if the caller has asked for it. Then `evidence` decides if a message is
        a copy of an earlier one. If not, it is stored with `own_key`, by default `key`. The result of the commit is False for a
        duplicate.

        The flag is True if the request is certainly no duplicate and no failure of the database is known: its turn may begin at
        once.

        `also` are rows of the same transaction, of a request that is certainly new.

        `request` is JSON, or a function that returns it. The function may run in the writer's thread, and only if the request
        is written.
        """
        try:
            row = self._row_ids.next()
        except StoreError as error:
            return 0, Commit.failed(error), False
        # Python's sqlite3 searches its adapters for every value but int, float, str and bytearray, also for bytes and None.
        evidence_text = "" if evidence is NO_EVIDENCE else evidence.dump()
        values = (row, self._agent, bytearray(key), sender, to_micros(now), RECEIVED, request, bytearray(digest), evidence_text)
        if self.may_have(key) if may_be_duplicate is None else may_be_duplicate:
            if not isinstance(request, str):
                values = (*values[:6], request(), *values[7:])
            self._open_rows.add(row)
            keys = self._index.keys
            insert = (
                partial(insert_unless_repeated, values=values, key=key, key_index=keys)
                if digest
                else partial(
                    insert_unless_copy, values=values, message_key=key, own_key=own_key, evidence=evidence, key_index=keys
                )
            )
            return row, self._database.run(partial(_insert, insert, row, channel)), False
        self._index.keys.add(key, row)
        self._index.open_rows[self._agent].add(row)
        rows: list[tuple[int, tuple[Any, ...]]] = [(RECEIVE, values), *also]
        if channel != DEFAULT_CHANNEL:
            rows.append((SET_CHANNEL, (row, channel)))
        return row, self._writes.submit(rows), self._writes.failure is None

    def finish(
        self,
        inbox_row: int,
        conversation: StoredConversation,
        turn: TurnRecord | None,
        reply: str | None,
        variables: Sequence[Variable] = (),
        *,
        is_command: bool = False,
        also: Rows = (),
    ) -> Commit[bool]:
        """Store the end of a request in one transaction: its turn, conversation, variables and reply.

        Without a `reply` the request is closed at once. A program's request that ended without a turn begins anew when it is
        repeated, unless it was a command. `also` are rows of the same transaction.
        """
        interaction_row = COMMAND if is_command else NO_TURN if turn is None else self._row_ids.next()
        columns, last_interaction = conversation_columns(self._agent, conversation), conversation.status.last_interaction
        rows: list[tuple[int, tuple[Any, ...]]] = [(SAVE_CONVERSATION, columns)]
        if turn is not None:
            # Nearly always the same object, so its column has the number.
            now = columns[LAST_INTERACTION] if turn.timestamp is last_interaction else to_micros(turn.timestamp)
            interaction = interaction_row, conversation.id, conversation.turns, turn.interaction_id, now, turn.body, turn.root
            rows.append((ADD_INTERACTION, interaction))
        elif variables:
            now = to_micros(utc_now())
        if variables:  # with the time of their turn, which tells whose they are in a conversation of many people
            rows += [(SAVE_VARIABLE, (self._agent, v.scope, v.holder, v.name, v.value, now)) for v in variables]
        if also:
            rows += also
        rows.append((ANSWER, (inbox_row, CLOSED if reply is None else ANSWERED, reply, interaction_row)))
        rows_with_steps = self._index.rows_with_steps
        if self._unsaved_steps:
            self._unsaved_steps.pop(inbox_row, None)
        if has_steps := inbox_row in rows_with_steps:
            rows.append((DELETE_STEPS, (inbox_row,)))
        stored = self._writes.submit(rows, is_turn_end=True)
        if has_steps:
            stored.on_stored(lambda _: rows_with_steps.discard(inbox_row))
        if reply is None:
            stored.on_stored(lambda _: self._open_rows.discard(inbox_row))
        return stored

    def save_step(self, inbox_row: int, step: StoredStep) -> Commit[bool]:
        """Store a durable step of the turn of a request, or its intention: a step without a result."""
        self._index.rows_with_steps.add(inbox_row)
        return self._writes.submit([(SAVE_STEP, (inbox_row, *step))])

    def save_step_with(self, inbox_row: int, step: StoredStep) -> SaveStep:
        """Return a function that stores a durable step with its result in a transaction of the writer, beside other rows."""
        self._index.rows_with_steps.add(inbox_row)

        def save(connection: Connection, result: object) -> None:
            if connection.scalar(select(inbox.c.id).where(inbox.c.id == inbox_row)) is not None:  # else it was erased
                values = {"request": inbox_row, **step._replace(result=dump_json(result))._asdict()}
                connection.execute(insert(steps).values(values))

        return save

    def save_step_soon(self, inbox_row: int, step: StoredStep) -> None:
        """Store a durable step that may run again without harm, with the next transaction.

        If its request ends before, it is not stored at all.
        """
        if not self._unsaved_steps:
            self._writes.submit_with_next(self._take_unsaved_steps)
            self._writes.submit_deferred([])
        self._unsaved_steps.setdefault(inbox_row, []).append(step)

    def _take_unsaved_steps(self) -> Rows:
        unsaved, self._unsaved_steps = self._unsaved_steps, {}
        self._index.rows_with_steps.update(unsaved)
        return [(SAVE_STEP, (inbox_row, *step)) for inbox_row, steps in unsaved.items() for step in steps]

    async def load_steps(self, inbox_row: int) -> list[StoredStep]:
        """Return the durable steps that an earlier run of a request has stored."""
        if inbox_row not in self._index.rows_with_steps:
            return []
        query = select(steps.c.name, steps.c.number, steps.c.arguments_hash, steps.c.result)
        rows = await self._database.fetch(query.where(steps.c.request == inbox_row))
        return [StoredStep(row.name, row.number, row.arguments_hash, row.result) for row in rows]

    def store_reply(self, inbox_row: int, reply: str, *, is_command: bool = False) -> Commit[bool]:
        """Store the reply to a request without a conversation: it was deleted, or cannot be loaded."""
        return self._writes.submit([(ANSWER, (inbox_row, ANSWERED, reply, COMMAND if is_command else NO_TURN))])

    def close(self, inbox_row: int) -> None:
        """Close a request whose whole reply the server has, so that it is not sent again. Stored with the next transaction."""
        self._open_rows.discard(inbox_row)
        self._unsaved_steps.pop(inbox_row, None)
        rows: list[tuple[int, tuple[Any, ...]]] = [(CLOSE, (inbox_row,))]
        if inbox_row in self._index.rows_with_steps:
            self._index.rows_with_steps.discard(inbox_row)
            rows.append((DELETE_STEPS, (inbox_row,)))
        self._writes.submit_deferred(rows)

    def save_message_counts(self, take_counts: Callable[[], Iterable[MessageCount]]) -> None:
        """Store counts of received messages in the next transaction. `take_counts` is called when that begins."""

        def make_rows() -> Rows:
            counts, now, rows = take_counts(), to_micros(utc_now()), []
            for count in counts:
                scope = MESSAGE_COUNT_SCOPES[count.kind]
                rows.append((SAVE_VARIABLE, (self._agent, scope, count.holder, COUNT_NAME, count.dump(), now)))
            return rows

        self._writes.submit_with_next(make_rows)

    def take_unsaved_steps(self, inbox_row: int) -> list[StoredStep]:
        """Return the steps of `save_step_soon` that are not stored yet. The caller stores them."""
        return self._unsaved_steps.pop(inbox_row, [])

    def flush(self) -> Commit[bool]:
        """Store the requests that were closed, at once. The result is True."""
        return self._writes.submit([])

    async def load_pending(self) -> list[PendingRequest]:
        """Return the requests that are not closed, oldest first."""
        if not self._open_rows:
            return []
        in_range = inbox.c.id.between(min(self._open_rows), max(self._open_rows))
        query = (
            select(inbox.c.id, inbox.c.key, inbox.c.request, inbox.c.answer, inbox.c.digest, inbox.c.channel)
            .where(in_range, inbox.c.agent == self._agent, inbox.c.state < CLOSED)
            .order_by(inbox.c.id)
        )
        rows = await self._database.fetch(query)
        return [
            PendingRequest(r.id, r.key, r.request, r.answer, r.digest, r.channel or DEFAULT_CHANNEL)
            for r in rows
            if r.id in self._open_rows
        ]

    async def load_earlier(self, key: bytes, channel: str = DEFAULT_CHANNEL) -> EarlierRequest | None:
        """Return the stored request with a key, or None. Its turn is None if there was none, or if it was deleted.

        `channel` is that of the sender who asks.
        """
        reply = case((func.coalesce(inbox.c.channel, DEFAULT_CHANNEL) == channel, inbox.c.answer))
        turn_id = str(UUID(bytes=key))  # the row id of a deleted turn may be that of another one later
        is_parked = select(parked_requests.c.id).where(parked_requests.c.id == inbox.c.id).exists()
        query = (
            select(
                inbox.c.sender,
                inbox.c.digest,
                reply,
                interactions.c.body,
                conversations.c.conversation_id,
                is_parked,
                inbox.c.state < CLOSED,
                inbox.c.state == RECEIVED,
            )
            .outerjoin(interactions, (interactions.c.id == inbox.c.interaction) & (interactions.c.interaction_id == turn_id))
            .outerjoin(conversations, conversations.c.id == interactions.c.conversation)
        )
        rows = await self._fetch_with_key(query, key)
        return EarlierRequest._make(rows[0]) if rows else None

    async def load_request(self, key: bytes, sender: str) -> KnownRequest | None:
        """Return the latest request with a key, if it is of the sender (a bare JID). None if there is none."""
        if not self.may_have(key):
            return None
        turn_id = str(UUID(bytes=key))
        query = (
            select(
                inbox.c.received_at,
                inbox.c.digest,
                func.coalesce(inbox.c.request, parked_requests.c.request),
                interactions.c.body,
                inbox.c.interaction,
                conversations.c.conversation_id,
                parked_requests.c.id.isnot(None),
                inbox.c.state < CLOSED,
            )
            .outerjoin(parked_requests, parked_requests.c.id == inbox.c.id)
            .outerjoin(interactions, (interactions.c.id == inbox.c.interaction) & (interactions.c.interaction_id == turn_id))
            .outerjoin(conversations, conversations.c.id == interactions.c.conversation)
            .where(inbox.c.sender == sender)
            .limit(1)
        )
        rows = await self._fetch_with_key(query, key)
        if not rows:
            return None
        received_at, digest, text, turn, turn_row, conversation_id, is_parked, is_open = tuple(rows[0])
        turn_row = max(turn_row or 0, 0)
        received_at = from_micros(received_at)
        return KnownRequest(received_at, digest, text, turn, turn_row, conversation_id, is_parked, is_open)

    async def load_open_of(self, sender: str, channel: str) -> list[tuple[datetime, bool, str]]:
        """Return the requests of a sender (a bare JID) by a channel that are not answered: when each came, and its JSON.

        The value between is True for one that waits for a person's answer.
        """
        parked = (
            select(inbox.c.received_at, parked_requests.c.request)
            .join(parked_requests, parked_requests.c.id == inbox.c.id)
            .where(
                parked_requests.c.agent == self._agent, parked_requests.c.owner == sender, parked_requests.c.channel == channel
            )
        )
        found = [(from_micros(row.received_at), True, row.request) for row in await self._database.fetch(parked)]
        if self._open_rows:
            in_range = inbox.c.id.between(min(self._open_rows), max(self._open_rows)), inbox.c.state == RECEIVED
            received = select(inbox.c.received_at, inbox.c.request).where(*in_range, inbox.c.agent == self._agent)
            received = received.where(inbox.c.sender == sender, inbox.c.channel == channel)
            found += [(from_micros(row.received_at), False, row.request) for row in await self._database.fetch(received)]
        return found

    async def purge(self, now: datetime) -> None:
        """Delete closed requests that are too old to have duplicates, and all other rows whose time is over."""
        is_first, self._has_purged = not self._has_purged, True
        if is_first and self._database.schema.is_new and self._index.keys.is_empty:
            return  # nothing was ever stored
        before = to_micros(now - timedelta(days=DUPLICATE_DAYS))
        _open_rows = list(self._open_rows)
        is_old = inbox.c.agent == self._agent, inbox.c.state == CLOSED, inbox.c.received_at < before
        # The steps of a parked request hang on its row: its question may end only now, after a long stop.
        is_parked = select(parked_requests.c.id).where(parked_requests.c.id == inbox.c.id).exists()
        statement = delete(inbox).where(*is_old, ~is_parked)

        def work(connection: Connection) -> int | None:
            connection.execute(statement)
            kept.purge(connection, self._agent, now)
            oldest: int | None = connection.scalar(select(func.min(inbox.c.id)))
            return oldest

        oldest = await self._database.write(work)
        if oldest is not None:
            self._index.keys.drop_before(first_row=oldest)
            # Some rows were never stored (duplicates), or were closed elsewhere (by the erasure of their sender).
            self._open_rows.difference_update([row for row in _open_rows if row < oldest])
            with_steps = self._index.rows_with_steps
            with_steps.difference_update([row for row in with_steps if row < oldest])

    async def load_received_from(self, person: str) -> list[InboxRecord]:
        """Return the requests of a person (a bare JID), oldest first. One that ended the process keeps its text."""
        text = func.coalesce(inbox.c.request, crashed_requests.c.request).label("request")
        query = (
            select(inbox.c.id, inbox.c.received_at, inbox.c.state, text, inbox.c.answer)
            .outerjoin(crashed_requests, crashed_requests.c.id == inbox.c.id)
            .where(inbox.c.agent == self._agent, inbox.c.sender == person)
            .order_by(inbox.c.id)
        )
        of_person = (
            select(steps)
            .join(inbox, inbox.c.id == steps.c.request)
            .where(inbox.c.agent == self._agent, inbox.c.sender == person)
            .order_by(steps.c.request, steps.c.name, steps.c.number)
        )

        def work(connection: Connection) -> list[InboxRecord]:
            by_request: defaultdict[int, list[StoredStep]] = defaultdict(list)
            for request, *step in connection.execute(of_person):
                by_request[request].append(StoredStep(*step))
            return [
                InboxRecord(from_micros(r.received_at), r.state, r.request, r.answer, tuple(by_request[r.id]))
                for r in connection.execute(query)
            ]

        return await self._database.read(work)

    async def _fetch_with_key(self, query: Select[Any], key: bytes) -> Sequence[Row[Any]]:
        """Return the rows of a query about the requests with a key, the latest first.

        It is repeated if a request came while it ran, such as one whose question was answered.
        """
        while True:
            ids = self._index.keys.find_rows(key)
            of_key = inbox.c.id.in_(ids), inbox.c.agent == self._agent, inbox.c.key == key
            rows = await self._database.fetch(query.where(*of_key).order_by(inbox.c.id.desc()))
            if self._index.keys.find_rows(key) == ids:
                return rows


def _insert(insert: Callable[[Connection], bool], row: int, channel: str, connection: Connection) -> bool:
    """Insert a request that may be a duplicate, with the name of its channel."""
    is_new = insert(connection)
    if channel != DEFAULT_CHANNEL:
        connection.execute(update(inbox).where(inbox.c.id == row).values(channel=channel))
    return is_new
