"""Messages from the server's archive (XEP-0313): sent to an agent while it was offline, and not delivered as offline messages.

The agent's position in the archive is stored. It is never ahead of the messages that are durable in the inbox. The inbox
recognises messages that were received before in another way.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias
from xml.etree.ElementTree import Element

from slixmpp.exceptions import IqError, XMPPError

from ..concurrency import Timer, cancel_tasks
from ..contracts.times import utc_now
from ..domain.jid import bare_jid
from ..exceptions import StoreError
from ..storage import DUPLICATE_DAYS, AgentRepository, Commit, StoredAgent
from .codec import (
    ArchivedMessage,
    ArchivePage,
    archive_query,
    assigned_id,
    is_addressed_to,
    newest_query,
    read_archived,
    read_page,
)
from .connection.connection import Connection
from .timings import ConnectionTimings

log = logging.getLogger(__name__)

ReceiveArchived: TypeAlias = Callable[[Element], Awaitable[Commit[bool] | None]]
"""A function that receives a message. The commit that it returns, if any, is done when the message is durable."""

POSITION_KEY = "archive"
"""The key of the agent's stored position."""

_PAGE_SIZE = 50
_MAX_RECEIVED_WHILE_READING = 1000
_RESPONSE_TIMEOUT_S = 30.0
_RETRY_DELAYS_S = (5.0, 30.0, 120.0, 600.0)
# The inbox recognises duplicates for this time. The tolerance is for two clocks that differ.
_MAX_AGE = timedelta(days=DUPLICATE_DAYS)
_CLOCK_TOLERANCE = timedelta(hours=1)
_NO_ARCHIVE_CONDITIONS = frozenset({"service-unavailable", "feature-not-implemented", "not-allowed", "forbidden"})


class ArchivePosition(NamedTuple):
    """The archive's id of the last message that an agent has read ("": the beginning), and the time of reading."""

    archive_id: str
    read_at: datetime


class Archive:
    """The archive of one agent, read further in each new session. `receive` gets each message as if it came now.

    `on_read` is called when the archive is read to its end, or when it cannot be read.
    """

    def __init__(
        self, connection: Connection, receive: ReceiveArchived, on_read: Callable[[], None], timings: ConnectionTimings
    ) -> None:
        self._connection = connection
        self._receive = receive
        self._on_read = on_read
        self._own_jid = bare_jid(connection.jid)
        self._position_interval_s = timings.archive_position_interval_s
        self._repository: AgentRepository | None = None
        self._position: ArchivePosition | None = None
        self._task: asyncio.Task[None] | None = None
        self.query_id = ""
        """The id of the current query; "" without one."""
        self._page: list[ArchivedMessage] = []
        self._is_caught_up = False
        self._received: deque[tuple[str, Commit[Any] | None]] = deque()
        self._timer = Timer()
        self.page_size = _PAGE_SIZE
        self.received_count = 0
        """The number of messages from the archive, including those that were received before in another way."""

    @property
    def is_caught_up(self) -> bool:
        """True if all messages were read that were in the archive when the session began."""
        return self._is_caught_up

    @property
    def is_reading(self) -> bool:
        """True while messages are read."""
        return self._task is not None and not self._task.done()

    def restore(self, stored: StoredAgent) -> None:
        """Take the stored position, before the first session."""
        if self._position is None and (value := stored.get_value(POSITION_KEY)) is not None:
            self._position = ArchivePosition(value[0], datetime.fromisoformat(value[1]))

    def pause(self) -> None:
        """Leave the position where it is, from the beginning of a new session until `start`.

        The position must not pass messages that were sent while the agent was away, before they are read.
        """
        if self._is_caught_up:
            self._store_reached_position()
        self._stop()

    def start(self, repository: AgentRepository) -> None:
        """Start to read in a new session, after the first presence. Offline messages come by themselves, and first."""
        # Prosody withholds offline messages (mod_offline) from a session that queries the archive before its first presence.
        # It also withholds those that the archive does not contain: requests of programs, which have no body.
        self._repository = repository
        self._stop()
        self._task = asyncio.create_task(self._catch_up())

    async def close(self) -> None:
        """Stop reading and store the position."""
        await cancel_tasks(self._task)
        self.pause()

    def collect(self, message: Element) -> bool:
        """Collect a message if it is a result of the current query, or pretends to be one. Return True if it is."""
        if not self.query_id:
            return False
        archived = read_archived(message, self._own_jid, self.query_id)
        if archived is not None:
            self._page.append(archived)
        return archived is not None

    def record_received(self, message: Element, stored: Commit[Any] | None) -> None:
        """Record a message that came directly. It need not be delivered again when it is `stored` (None: at once)."""
        if not self._is_caught_up and (not self.is_reading or len(self._received) >= _MAX_RECEIVED_WHILE_READING):
            return
        message_id = assigned_id(message, self._own_jid)
        if message_id:
            self._received.append((message_id, stored))
            if self._is_caught_up:
                self._start_timer()

    # The position

    def _start_timer(self) -> None:
        if self._timer.handle is None:
            self._timer.start(self._position_interval_s, self._store_reached_position)

    def _store_reached_position(self) -> None:
        last_id = ""
        while self._received and ((stored := self._received[0][1]) is None or stored.is_done):
            if stored is not None and not stored.is_stored:
                self._is_caught_up = False  # the message comes again in a new session, or from the archive
                self._received.clear()
                break
            last_id = self._received.popleft()[0]
        if last_id:
            self._store_position(ArchivePosition(last_id, utc_now()))
        if self._received:
            self._start_timer()

    def _store_position(self, position: ArchivePosition) -> None:
        self._position = position
        if self._repository is not None:
            stored = self._repository.save_agent_value(POSITION_KEY, [position.archive_id, position.read_at.isoformat()])
            stored.on_failed(self._log_failed_write)

    def _log_failed_write(self, error: BaseException) -> None:
        log.warning(
            "%s: cannot store the position in the archive, so some messages will be read again: %s", self._own_jid, error
        )

    def _stop(self) -> None:
        self._is_caught_up = False
        self.query_id = ""
        self._received.clear()
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # Reading

    async def _catch_up(self) -> None:
        for delay_s in itertools.chain(_RETRY_DELAYS_S, itertools.repeat(_RETRY_DELAYS_S[-1])):
            wait_s = delay_s
            try:
                if self._position is None:
                    await self._start_at_newest()
                else:
                    await self._read_pages(self._position)
            except IqError as error:
                if error.condition in _NO_ARCHIVE_CONDITIONS:
                    self._on_read()
                    return
                problem = error.condition
            except XMPPError:
                problem = "no answer"
            except StoreError as error:
                problem, wait_s = str(error), _RETRY_DELAYS_S[0]
            else:
                self._is_caught_up = True
                self._on_read()
                if self._received:
                    self._start_timer()
                return
            self._on_read()
            log.warning("%s: cannot read the archive of the account (%s); retrying in %g s", self._own_jid, problem, wait_s)
            await asyncio.sleep(wait_s)

    async def _start_at_newest(self) -> None:
        """Store the newest position, because an agent that is new on its account does not answer older messages."""
        page = await self._request_page(newest_query)
        self._page.clear()
        self._store_position(ArchivePosition(page.last, utc_now()))

    async def _read_pages(self, position: ArchivePosition) -> None:
        oldest = utc_now() - _MAX_AGE + _CLOCK_TOLERANCE
        count_before = self.received_count
        while True:
            try:
                page = await self._request_page(
                    archive_query, after=position.archive_id, since=oldest, max_messages=self.page_size
                )
            except IqError as error:
                if error.condition != "item-not-found" or not position.archive_id:
                    raise
                # The archive no longer contains that message.
                oldest = max(oldest, position.read_at - _CLOCK_TOLERANCE)
                position = ArchivePosition("", position.read_at)
                continue
            await self._receive_page(self._page)
            if page.last:
                position = ArchivePosition(page.last, utc_now())
                self._store_position(position)
            if page.is_complete or not page.last:
                break
        if (count := self.received_count - count_before) > 0:
            log.info("%s: read %d messages of the archive (new or already known)", self._own_jid, count)

    async def _receive_page(self, page: list[ArchivedMessage]) -> None:
        """Receive the messages of a page, and wait until all of them are durable."""
        if self._received:  # those that are in a page are not newer than the position after it
            read_ids = {archived.archive_id for archived in page}
            self._received = deque(entry for entry in self._received if entry[0] not in read_ids)
        pending, callers = [], self._connection.client.caller_filter
        for archived in page:
            if is_addressed_to(self._own_jid, archived.message) and not callers.drops_from(archived.message.get("from", "")):
                self.received_count += 1
                if (stored := await self._receive(archived.message)) is not None:
                    pending.append(stored)
        page.clear()
        for stored in pending:
            await stored

    async def _request_page(self, build_query: Callable[..., Element], **arguments: Any) -> ArchivePage:
        self.query_id = secrets.token_hex(8)
        self._page = []
        iq = self._connection.client.make_iq_set(sub=build_query(self.query_id, **arguments))
        try:
            return read_page((await iq.send(timeout=_RESPONSE_TIMEOUT_S)).xml)
        finally:
            self.query_id = ""
