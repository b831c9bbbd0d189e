"""Catching up from the server's archive (XEP-0313): what was sent to an agent while it was away and did not wait for it.

The agent's place in the archive is kept, and never ahead of what is durable in the inbox, which knows what came another way.
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

from ..codec import ArchivedMessage, ArchivePage, archive_id, archive_query, is_sent_to, newest_query, read_archived, read_page
from ..contracts.base import utc_now
from ..domain.jid import bare_jid
from ..exceptions import StoreError
from ..storage import DUPLICATE_DAYS, AgentRepository
from .connection.connection import Connection
from .timings import ConnectionTimings

log = logging.getLogger(__name__)

ReceiveArchived: TypeAlias = Callable[[Element], Awaitable[asyncio.Future[bool] | None]]
"""Takes a message in; the future, where there is one, is done when it is durable."""

POSITION_KEY = "archive"
"""Under which name the agent's place is kept."""

_PAGE_SIZE = 50
_RESPONSE_TIMEOUT_S = 30.0
_RETRY_DELAYS_S = (5.0, 30.0, 120.0, 600.0)
# The inbox knows duplicates so long; and two clocks may differ.
_MAX_AGE = timedelta(days=DUPLICATE_DAYS)
_CLOCK_TOLERANCE = timedelta(hours=1)
_NO_ARCHIVE_CONDITIONS = frozenset({"service-unavailable", "feature-not-implemented", "not-allowed", "forbidden"})


class ArchivePosition(NamedTuple):
    """Up to where an agent has read: the archive's id of the last message ("": the beginning), and when that was."""

    archive_id: str
    read_at: datetime


class Archive:
    """Reads on in the archive with each new session. `receive` takes a message in, as if it came now."""

    def __init__(self, connection: Connection, receive: ReceiveArchived, timings: ConnectionTimings) -> None:
        self._connection = connection
        self._receive = receive
        self._own_jid = bare_jid(connection.jid)
        self._keep_s = timings.archive_place_s
        self._repository: AgentRepository | None = None
        self._position: ArchivePosition | None = None
        self._task: asyncio.Task[None] | None = None
        self._query_id = ""
        self._page: list[ArchivedMessage] = []
        self._is_caught_up = False
        self._received: deque[tuple[str, asyncio.Future[Any] | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.page_size = _PAGE_SIZE
        self.received_count = 0
        """How many messages came from the archive, those included that had come another way before."""

    @property
    def is_caught_up(self) -> bool:
        """Whether everything was read that was there when the session began."""
        return self._is_caught_up

    def start(self, repository: AgentRepository) -> None:
        """With a new session, after the first presence: what waits at the server comes by itself, and first."""
        # Prosody withholds what waits (mod_offline) from a session that has asked the archive before its first presence, also
        # what the archive does not hold: requests of programs, which have no body.
        self._repository = repository
        self._stop()
        self._task = asyncio.create_task(self._catch_up(repository))

    async def close(self) -> None:
        """Keeps the place where the agent is."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._store_reached_position()
        self._stop()

    def collect(self, message: Element) -> bool:
        """Takes an answer of the archive; whether a message is one, or pretends to be."""
        if not self._query_id:
            return False
        archived = read_archived(message, self._own_jid, self._query_id)
        if archived is not None:
            self._page.append(archived)
        return archived is not None

    def record_received(self, message: Element, stored: asyncio.Future[Any] | None) -> None:
        """A message came from the server itself; done is `stored` when it need not come again (None: at once)."""
        if not self._is_caught_up:
            return
        ident = archive_id(message, self._own_jid)
        if ident:
            self._received.append((ident, stored))
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._keep_s, self._store_reached_position)

    # The place

    def _store_reached_position(self) -> None:
        self._timer = None
        reached = ""
        while self._received and ((durable := self._received[0][1]) is None or durable.done()):
            if durable is not None and (durable.cancelled() or durable.exception() is not None):
                self._is_caught_up = False  # it comes again with a new session, or from the archive
                self._received.clear()
                break
            reached = self._received.popleft()[0]
        if reached:
            self._store_position(ArchivePosition(reached, utc_now()))
        if self._received:
            self._timer = asyncio.get_running_loop().call_later(self._keep_s, self._store_reached_position)

    def _store_position(self, position: ArchivePosition) -> None:
        self._position = position
        if self._repository is not None:
            self._repository.save_agent_value(
                POSITION_KEY, [position.archive_id, position.read_at.isoformat()]
            ).add_done_callback(self._on_position_stored)

    def _on_position_stored(self, done: asyncio.Future[bool]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning(
                "%s: its place in the archive is not stored, and it will read some of it again: %s", self._own_jid, error
            )

    def _stop(self) -> None:
        self._is_caught_up = False
        self._query_id = ""
        self._received.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # Reading on

    async def _catch_up(self, repository: AgentRepository) -> None:
        for then_s in itertools.chain(_RETRY_DELAYS_S, itertools.repeat(_RETRY_DELAYS_S[-1])):
            wait_s = then_s
            try:
                if self._position is None and (kept := await repository.load_agent_value(POSITION_KEY)) is not None:
                    self._position = ArchivePosition(kept[0], datetime.fromisoformat(kept[1]))
                if self._position is None:
                    await self._start_at_newest()
                else:
                    await self._read_pages(self._position)
            except IqError as error:
                if error.condition in _NO_ARCHIVE_CONDITIONS:
                    return
                problem = error.condition
            except XMPPError:
                problem = "no answer"
            except StoreError as error:
                problem, wait_s = str(error), _RETRY_DELAYS_S[0]
            else:
                self._is_caught_up = True
                return
            log.warning("%s: cannot read its archive (%s); trying again in %g s", self._own_jid, problem, wait_s)
            await asyncio.sleep(wait_s)

    async def _start_at_newest(self) -> None:
        """An agent that is new on its account answers nothing that was said before."""
        page = await self._request_page(newest_query)
        self._page.clear()
        self._store_position(ArchivePosition(page.last, utc_now()))

    async def _read_pages(self, position: ArchivePosition) -> None:
        oldest = utc_now() - _MAX_AGE + _CLOCK_TOLERANCE
        came = self.received_count
        while True:
            try:
                page = await self._request_page(archive_query, after=position.archive_id, since=oldest, max_messages=self.page_size)
            except IqError as error:
                if error.condition != "item-not-found" or not position.archive_id:
                    raise
                # The archive does not keep that message any more.
                oldest = max(oldest, position.read_at - _CLOCK_TOLERANCE)
                position = ArchivePosition("", position.read_at)
                continue
            await self._receive_page(self._page)
            if page.last:
                position = ArchivePosition(page.last, utc_now())
                self._store_position(position)
            if page.is_complete or not page.last:
                break
        if self.received_count > came:
            log.info("%s: %d messages of its archive are taken in, or known", self._own_jid, self.received_count - came)

    async def _receive_page(self, page: list[ArchivedMessage]) -> None:
        """Returns when all of it is durable."""
        stored = []
        for archived in page:
            if is_sent_to(self._own_jid, archived.message):
                self.received_count += 1
                if (future := await self._receive(archived.message)) is not None:
                    stored.append(future)
        page.clear()
        if stored:
            await asyncio.wait(stored)  # a `gather` that is cancelled would cancel what the turns wait for
        for future in stored:
            future.result()

    async def _request_page(self, build_query: Callable[..., Element], **arguments: Any) -> ArchivePage:
        self._query_id = secrets.token_hex(8)
        self._page = []
        iq = self._connection.client.make_iq_set(sub=build_query(self._query_id, **arguments))
        try:
            return read_page((await iq.send(timeout=_RESPONSE_TIMEOUT_S)).xml)
        finally:
            self._query_id = ""
