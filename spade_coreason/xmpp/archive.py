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

from ..codec import Archived, Page, archive_id, archive_query, is_sent_to, newest_query, read_archived, read_page
from ..contracts.base import utc_now
from ..domain.jid import bare
from ..exceptions import StoreError
from ..storage import DUPLICATE_DAYS, AgentStore
from .connection.connection import Connection
from .timings import ConnectionTimings

log = logging.getLogger(__name__)

Take: TypeAlias = Callable[[Element], Awaitable[asyncio.Future[bool] | None]]
"""Takes a message in; the future, where there is one, is done when it is durable."""

PLACE = "archive"
"""Under which name the agent's place is kept."""

_PAGE = 50
_ANSWER_WITHIN_S = 30.0
_AGAIN_S = (5.0, 30.0, 120.0, 600.0)
# The inbox knows duplicates so long; and two clocks may differ.
_OLDEST = timedelta(days=DUPLICATE_DAYS)
_CLOCKS = timedelta(hours=1)
_NO_ARCHIVE = frozenset({"service-unavailable", "feature-not-implemented", "not-allowed", "forbidden"})


class Place(NamedTuple):
    """Up to where an agent has read: the archive's id of the last message ("": the beginning), and when that was."""

    archive_id: str
    at: datetime


class Archive:
    """Reads on in the archive with each new session. `take` takes a message in, as if it came now."""

    def __init__(self, connection: Connection, take: Take, timings: ConnectionTimings) -> None:
        self._connection = connection
        self._take = take
        self._own = bare(connection.jid)
        self._keep_s = timings.archive_place_s
        self._store: AgentStore | None = None
        self._place: Place | None = None
        self._task: asyncio.Task[None] | None = None
        self._query = ""
        self._page: list[Archived] = []
        self._is_current = False
        self._noted: deque[tuple[str, asyncio.Future[Any] | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.page_size = _PAGE
        self.taken = 0
        """How many messages came from the archive, those included that had come another way before."""

    @property
    def is_current(self) -> bool:
        """Whether everything was read that was there when the session began."""
        return self._is_current

    def begin(self, store: AgentStore) -> None:
        """With a new session, after the first presence: what waits at the server comes by itself, and first."""
        # Prosody withholds what waits (mod_offline) from a session that has asked the archive before its first presence, also
        # what the archive does not hold: requests of programs, which have no body.
        self._store = store
        self._stop()
        self._task = asyncio.create_task(self._catch_up(store))

    async def close(self) -> None:
        """Keeps the place where the agent is."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._keep_noted()
        self._stop()

    def collects(self, message: Element) -> bool:
        """Takes an answer of the archive; whether a message is one, or pretends to be."""
        if not self._query:
            return False
        archived = read_archived(message, self._own, self._query)
        if archived is not None:
            self._page.append(archived)
        return archived is not None

    def note(self, message: Element, durable: asyncio.Future[Any] | None) -> None:
        """A message came from the server itself; done is `durable` when it need not come again (None: at once)."""
        if not self._is_current:
            return
        ident = archive_id(message, self._own)
        if ident:
            self._noted.append((ident, durable))
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._keep_s, self._keep_noted)

    # The place

    def _keep_noted(self) -> None:
        self._timer = None
        reached = ""
        while self._noted and ((durable := self._noted[0][1]) is None or durable.done()):
            if durable is not None and (durable.cancelled() or durable.exception() is not None):
                self._is_current = False  # it comes again with a new session, or from the archive
                self._noted.clear()
                break
            reached = self._noted.popleft()[0]
        if reached:
            self._keep(Place(reached, utc_now()))
        if self._noted:
            self._timer = asyncio.get_running_loop().call_later(self._keep_s, self._keep_noted)

    def _keep(self, place: Place) -> None:
        self._place = place
        if self._store is not None:
            self._store.keep(PLACE, [place.archive_id, place.at.isoformat()]).add_done_callback(self._kept)

    def _kept(self, done: asyncio.Future[bool]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning("%s: its place in the archive is not stored, and it will read some of it again: %s", self._own, error)

    def _stop(self) -> None:
        self._is_current = False
        self._query = ""
        self._noted.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # Reading on

    async def _catch_up(self, store: AgentStore) -> None:
        for then_s in itertools.chain(_AGAIN_S, itertools.repeat(_AGAIN_S[-1])):
            wait_s = then_s
            try:
                if self._place is None and (kept := await store.own(PLACE)) is not None:
                    self._place = Place(kept[0], datetime.fromisoformat(kept[1]))
                if self._place is None:
                    await self._begin_at_the_end()
                else:
                    await self._read_on(self._place)
            except IqError as error:
                if error.condition in _NO_ARCHIVE:
                    return
                problem = error.condition
            except XMPPError:
                problem = "no answer"
            except StoreError as error:
                problem, wait_s = str(error), _AGAIN_S[0]
            else:
                self._is_current = True
                return
            log.warning("%s: cannot read its archive (%s); trying again in %g s", self._own, problem, wait_s)
            await asyncio.sleep(wait_s)

    async def _begin_at_the_end(self) -> None:
        """An agent that is new on its account answers nothing that was said before."""
        page = await self._ask(newest_query)
        self._page.clear()
        self._keep(Place(page.last, utc_now()))

    async def _read_on(self, place: Place) -> None:
        oldest = utc_now() - _OLDEST + _CLOCKS
        came = self.taken
        while True:
            try:
                page = await self._ask(archive_query, after=place.archive_id, since=oldest, most=self.page_size)
            except IqError as error:
                if error.condition != "item-not-found" or not place.archive_id:
                    raise
                # The archive does not keep that message any more.
                oldest = max(oldest, place.at - _CLOCKS)
                place = Place("", place.at)
                continue
            await self._take_in(self._page)
            if page.last:
                place = Place(page.last, utc_now())
                self._keep(place)
            if page.is_complete or not page.last:
                break
        if self.taken > came:
            log.info("%s: %d messages of its archive are taken in, or known", self._own, self.taken - came)

    async def _take_in(self, page: list[Archived]) -> None:
        """Returns when all of it is durable."""
        durable = []
        for archived in page:
            if is_sent_to(self._own, archived.message):
                self.taken += 1
                if (future := await self._take(archived.message)) is not None:
                    durable.append(future)
        page.clear()
        if durable:
            await asyncio.wait(durable)  # a `gather` that is cancelled would cancel what the turns wait for
        for future in durable:
            future.result()

    async def _ask(self, query: Callable[..., Element], **arguments: Any) -> Page:
        self._query = secrets.token_hex(8)
        self._page = []
        iq = self._connection.client.make_iq_set(sub=query(self._query, **arguments))
        try:
            return read_page((await iq.send(timeout=_ANSWER_WITHIN_S)).xml)
        finally:
            self._query = ""
