"""The keys of a running platform, in memory: each request is answered from there, and no secret is stored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from ..contracts.times import utc_now
from ..domain.callers import caller_address, is_caller, key_of
from ..exceptions import StoreError
from ..storage import USERS_BY_HEADER, Database, KeyRepository, StoredKey, from_micros_or_none, hash_secret
from .caller import Caller
from .secret_ring import SecretRing

log = logging.getLogger(__name__)

_USE_STORED_EVERY = timedelta(minutes=1)


class _LiveKey:
    """A key that is not revoked, as it is now."""

    def __init__(self, stored: StoredKey, agents: list[str]) -> None:
        self.row = stored.id
        self.hashes = [stored.secret_hash]
        self.previous_hash = stored.previous_hash
        self.previous_until = from_micros_or_none(stored.previous_until)
        if stored.previous_hash is not None:
            self.hashes.append(stored.previous_hash)
        self.expires_at = from_micros_or_none(stored.expires_at)
        self.used_at = from_micros_or_none(stored.last_used_at)
        names_users, address = stored.users == USERS_BY_HEADER, caller_address(stored.name)
        self.caller = Caller(stored.name, address, stored.account, frozenset(agents), names_users=names_users)

    def is_live(self, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at

    def accepts(self, secret_hash: bytes, now: datetime) -> bool:
        is_previous = secret_hash == self.previous_hash
        return self.is_live(now) and not (is_previous and (self.previous_until is None or now >= self.previous_until))


class KeyRing(SecretRing[_LiveKey]):
    """The live keys of a platform. What changes them in the database is told to it, and has effect at once.

    Use it in one event loop.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        super().__init__(clock)
        self._repository = KeyRepository(database)
        self._by_hash: dict[bytes, _LiveKey] = {}
        # What has ended for good in this run. A row that was read before must not bring it back.
        self._revoked: set[str] = set()
        self._withdrawn: set[tuple[str, str]] = set()

    async def load(self) -> None:
        """Take all keys, before the agents are built. Raise StoreError if they cannot be read."""
        for stored in await self._repository.load():
            self.take(stored)

    def take(self, stored: StoredKey) -> None:
        """Take a key as it is stored now: a new, rotated or revoked one, in the order of the transactions."""
        name = stored.name
        lost = self._drop(name)
        if stored.revoked_at is not None:
            self._revoked.add(name)
        agents = [agent for agent in stored.agent_jids if (agent, name) not in self._withdrawn]
        if name not in self._revoked and agents:
            entry = _LiveKey(stored, agents)
            self.put(name, entry)
            self._by_hash |= dict.fromkeys(entry.hashes, entry)
            lost -= entry.caller.agents
        self.tell(lost)

    def withdraw(self, agent: str, person: str) -> None:
        """Withdraw, at one agent, the keys that stand for a person (a bare JID), or the key whose address it is.

        It is stored with the rejection of the person (`AgentRepository.save_admission`).
        """
        is_key = is_caller(person)
        theirs = [
            (name, entry)
            for name, entry in self.live.items()
            if agent in (caller := entry.caller).agents
            and (caller.address == key_of(person) if is_key else caller.account == person != "")
        ]
        for name, entry in theirs:
            self._withdrawn.add((agent, name))
            self.callers_of(agent).entries.pop(entry.caller.address, None)
            entry.caller = replace(entry.caller, agents=entry.caller.agents - {agent})
            if not entry.caller.agents:
                self._revoked.add(name)
                self._drop(name)
        if theirs:
            self.tell({agent})

    def find(self, secret: str, now: datetime | None = None) -> Caller | None:
        """Return the caller whose key has this secret; None if no live key has it.

        The time that it takes says nothing about the secrets: the hash of the text is looked up. Nothing is read or awaited.
        """
        now = now or self.clock()
        secret_hash = hash_secret(secret)
        entry = self._by_hash.get(secret_hash)
        if entry is None or not entry.accepts(secret_hash, now):
            return None
        if entry.used_at is None or now - entry.used_at >= _USE_STORED_EVERY:
            entry.used_at = now
            with suppress(StoreError):  # the database is closed
                self._repository.save_use(entry.row, now).on_failed(_log_failed_use)
        return entry.caller

    def _drop(self, name: str) -> set[str]:
        """Drop a key, if it is there, and return the agents for which it was."""
        if (entry := self.pop(name)) is None:
            return set()
        for secret_hash in entry.hashes:
            del self._by_hash[secret_hash]
        return set(entry.caller.agents)


def _log_failed_use(error: BaseException) -> None:
    log.debug("cannot store when a key was used: %s", error)
