"""The webhooks of a running platform, in memory: signatures are checked without a query."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from ...contracts.times import utc_now
from ...domain.callers import WEBHOOK_PREFIX, webhook_address
from ...storage import Database, StoredWebhook, WebhookKind, WebhookRepository, decode_webhook_secret
from ..caller import Caller

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

    def keys(self, now: datetime) -> tuple[bytes, bytes | None]:
        """Return the keys of the present secret, and of the one before it as long as that is accepted."""
        return self._key, self._previous_key if self.stored.accepts_previous(now) else None


class WebhookRing:
    """The live webhooks of a platform. What changes them in the database is told to it, and has effect at once.

    Use it in one event loop.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now, max_bodies: int | None = None) -> None:
        self.repository = WebhookRepository(database) if max_bodies is None else WebhookRepository(database, max_bodies)
        self.clock = clock
        self._by_name: dict[str, LiveWebhook] = {}
        self._by_row: dict[int, LiveWebhook] = {}
        self.on_lost: dict[str, Callable[[], object]] = {}
        """A function for each agent, by its bare JID, that is called when one of its webhooks is revoked."""

    async def load(self) -> None:
        """Take all webhooks, before the agents are built. Raise StoreError if they cannot be read."""
        for stored in await self.repository.load():
            self.take(stored)
        for row, count in (await self.repository.count_bodies()).items():
            if count >= self.repository.max_bodies and (live := self._by_row.get(row)) is not None:
                self.report_full(live)

    def take(self, stored: StoredWebhook) -> None:
        """Take a webhook as it is stored now: a new, rotated or revoked one, in the order of the transactions."""
        before = self._by_name.get(stored.name)
        if before is not None and before.stored == stored:
            return
        self._by_name.pop(stored.name, None)
        self._by_row.pop(stored.id, None)
        if stored.revoked_at is None:
            live = LiveWebhook(stored, asyncio.Lock() if before is None else before.lock)
            self._by_name[stored.name] = self._by_row[stored.id] = live
        elif before is not None and (on_lost := self.on_lost.get(stored.agent)) is not None:
            on_lost()

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
        return tuple(name for name, live in self._by_name.items() if live.is_full)

    def find(self, name: str) -> LiveWebhook | None:
        """Return the live webhook of a name, or None."""
        return self._by_name.get(name)

    def find_by_row(self, row: int) -> LiveWebhook | None:
        """Return the live webhook with a row id, or None."""
        return self._by_row.get(row)

    def callers_of(self, agent: str, others: Mapping[str, str]) -> Mapping[str, str]:
        """Return the callers of an agent (a bare JID), for its `AccessPolicy.callers`: its live webhooks, and `others`.

        The mapping always shows the present.
        """
        return _AgentCallers(self, agent, others)


class _AgentCallers(Mapping[str, str]):
    def __init__(self, ring: WebhookRing, agent: str, others: Mapping[str, str]) -> None:
        self._ring = ring
        self._agent = agent
        self._others = others

    def __getitem__(self, address: str) -> str:
        live = self._ring.find(address.partition("@")[0].removeprefix(WEBHOOK_PREFIX))
        if live is not None and live.caller.address == address and live.stored.agent == self._agent:
            return ""
        return self._others[address]

    def __iter__(self) -> Iterator[str]:
        live = self._ring._by_name.values()
        return iter([*(each.caller.address for each in live if each.stored.agent == self._agent), *self._others])

    def __len__(self) -> int:
        return sum(1 for _ in self)
