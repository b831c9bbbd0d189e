"""The webhooks of a running platform, in memory: signatures are checked without a query."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from ...contracts.times import utc_now
from ...domain.callers import WEBHOOK_PREFIX, webhook_address
from ...storage import Database, StoredWebhook, WebhookKind, WebhookRepository, decode_webhook_secret
from ..caller import Caller
from ..secret_ring import SecretRing

log = logging.getLogger(__name__)


class LiveWebhook:
    """A webhook that is not revoked."""

    def __init__(self, stored: StoredWebhook, lock: asyncio.Lock) -> None:
        self.stored = stored
        self.kind: WebhookKind = stored.kind
        address = webhook_address(stored.name)
        self.caller = Caller(f"{WEBHOOK_PREFIX}{stored.name}", address, "", frozenset({stored.agent}), names_users=False)
        self.lock = lock
        """Held while a body is remembered and its request is stored."""
        self.is_full = False
        """True once a body could not be remembered."""
        self._key = decode_webhook_secret(self.kind, stored.secret)
        previous = stored.previous_secret
        self._previous_key = None if previous is None else decode_webhook_secret(self.kind, previous)

    def is_live(self, now: datetime) -> bool:
        return True

    def keys(self, now: datetime) -> tuple[bytes, bytes | None]:
        """Return the keys of the present secret, and of the one before it as long as that is accepted."""
        return self._key, self._previous_key if self.stored.accepts_previous(now) else None


class WebhookRing(SecretRing[LiveWebhook]):
    """The live webhooks of a platform. What changes them in the database is told to it, and has effect at once.

    Use it in one event loop.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now, max_bodies: int | None = None) -> None:
        super().__init__(clock)
        self.repository = WebhookRepository(database) if max_bodies is None else WebhookRepository(database, max_bodies)
        self._by_row: dict[int, LiveWebhook] = {}

    async def load(self) -> None:
        """Take all webhooks, before the agents are built. Raise StoreError if they cannot be read."""
        for stored in await self.repository.load():
            self.take(stored)
        for row, count in (await self.repository.count_bodies()).items():
            if count >= self.repository.max_bodies and (live := self._by_row.get(row)) is not None:
                self.report_full(live)

    def take(self, stored: StoredWebhook) -> None:
        """Take a webhook as it is stored now: a new, rotated or revoked one, in the order of the transactions."""
        before = self.live.get(stored.name)
        if before is not None and before.stored == stored:
            return
        self.pop(stored.name)
        self._by_row.pop(stored.id, None)
        if stored.revoked_at is None:
            live = LiveWebhook(stored, asyncio.Lock() if before is None else before.lock)
            self.put(stored.name, live)
            self._by_row[stored.id] = live
        elif before is not None:
            self.tell([stored.agent])

    def report_full(self, live: LiveWebhook) -> None:
        """Tell the operator, once, that a webhook cannot remember more bodies for its present secret."""
        if not live.is_full:
            text = (
                "the webhook %s has accepted %d bodies, and cannot remember more: it refuses events until its secret is rotated"
            )
            log.error(
                f"{text} (`spade-coreason webhooks rotate %s`)", live.stored.name, self.repository.max_bodies, live.stored.name
            )
        live.is_full = True

    @property
    def full(self) -> tuple[str, ...]:
        """The names of the webhooks that refuse events until their secrets are rotated."""
        return tuple(name for name, live in self.live.items() if live.is_full)

    def find_by_row(self, row: int) -> LiveWebhook | None:
        """Return the live webhook with a row id, or None."""
        return self._by_row.get(row)
