"""The hold on new messages while older ones are read from the archive of the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .mailbox import Mailbox, MailboxTask, QueuedRequest


class ArchiveHold:
    """The requests that came by themselves while the archive is read, and wait so that older ones go first.

    `start` begins the work on what was held.
    """

    def __init__(self, start: Callable[[], None]) -> None:
        self._start = start
        self.timer: asyncio.TimerHandle | None = None
        """The end of the hold at the latest; None while nothing is held."""
        self.rows: set[int] = set()
        """The inbox rows of the requests that wait."""
        self.is_archive_read = False
        """True if the hold ends when the threads of all requests are found."""

    def begin(self, at_most_s: float) -> None:
        """Hold what comes by itself until `release`.

        Those that wait already do not wait longer, however many sessions follow each other.
        """
        self.is_archive_read = False
        if self.rows:
            return
        self._stop_timer()
        self.timer = asyncio.get_running_loop().call_later(at_most_s, self.release)

    def release(self) -> None:
        """Start what is held, in the order of its arrival."""
        self.is_archive_read = False
        self._stop_timer()
        if self.rows:
            self.rows.clear()
            self._start()

    def drop(self) -> None:
        """End the hold and start nothing: the agent stops."""
        self._stop_timer()
        self.rows.clear()

    def add(self, queued: QueuedRequest) -> bool:
        """Hold a request during a hold, if it may not go before those of the archive. Return True if it waits."""
        if not queued.may_be_in_archive:
            return False
        self.rows.add(queued.inbox_row)
        return True

    def find(self, mailbox: Mailbox) -> QueuedRequest | MailboxTask | None:
        """Return the first request for the agent in a mailbox whose turn waits for the archive or for the database, or None."""
        is_waiting = mailbox.retry is not None
        return next((item for item in mailbox.queue if (is_waiting or item.inbox_row in self.rows) and item.is_for_agent), None)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
