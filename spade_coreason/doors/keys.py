"""The keys of a running platform, in memory: each request is answered from there, and no secret is stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from ..contracts.times import utc_now
from ..domain.callers import caller_address, is_caller, key_of
from ..exceptions import StoreError
from ..storage import USERS_BY_HEADER, Database, KeyRepository, StoredKey, from_micros_or_none, hash_secret
from .caller import Caller

log = logging.getLogger(__name__)

_USE_STORED_EVERY = timedelta(minutes=1)


class _LiveKey:
    """A key that is not revoked, as it is now."""

    def __init__(self, stored: StoredKey, agents: list[str]) -> None:
        self.row = stored.id
        self.account = stored.account
        self.address = caller_address(stored.name)
        self.hashes = [stored.secret_hash]
        self.previous_hash = stored.previous_hash
        self.previous_until = from_micros_or_none(stored.previous_until)
        if stored.previous_hash is not None:
            self.hashes.append(stored.previous_hash)
        self.expires_at = from_micros_or_none(stored.expires_at)
        self.used_at = from_micros_or_none(stored.last_used_at)
        self.caller = Caller(
            stored.name, self.address, stored.account, frozenset(agents), names_users=stored.users == USERS_BY_HEADER
        )

    def is_live(self, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at

    def accepts(self, secret_hash: bytes, now: datetime) -> bool:
        is_previous = secret_hash == self.previous_hash
        return self.is_live(now) and not (is_previous and (self.previous_until is None or now >= self.previous_until))


class _Callers(Mapping[str, str]):
    """The live keys for one agent (`AccessPolicy.callers`). It is asked for each message, and a key ends at its time."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.entries: dict[str, _LiveKey] = {}
        """The keys by their addresses, with those that are expired."""
        self._clock = clock

    def __getitem__(self, address: str) -> str:
        entry = self.entries[address]
        if not entry.is_live(self._clock()):
            raise KeyError(address)
        return entry.account

    def __iter__(self) -> Iterator[str]:
        now = self._clock()
        return iter([address for address, entry in self.entries.items() if entry.is_live(now)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class KeyRing:
    """The live keys of a platform. What changes them in the database is told to it, and has effect at once.

    Use it in one event loop.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self._repository = KeyRepository(database)
        self._clock = clock
        self._entries: dict[str, _LiveKey] = {}
        self._by_hash: dict[bytes, _LiveKey] = {}
        self._callers: dict[str, _Callers] = {}
        # What has ended for good in this run. A row that was read before must not bring it back.
        self._revoked: set[str] = set()
        self._withdrawn: set[tuple[str, str]] = set()
        self.on_lost: dict[str, Callable[[], object]] = {}
        """Callbacks by the bare JID of an agent: a key for it was revoked or withdrawn."""

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
            self._entries[name] = entry
            self._by_hash |= dict.fromkeys(entry.hashes, entry)
            for agent in agents:
                self._callers_of(agent).entries[entry.address] = entry
            lost -= entry.caller.agents
        self._tell(lost)

    def withdraw(self, agent: str, person: str) -> None:
        """Withdraw, at one agent, the keys that stand for a person (a bare JID), or the key whose address it is.

        It is stored with the rejection of the person (`AgentRepository.save_admission`).
        """
        is_key = is_caller(person)
        theirs = [
            (name, entry)
            for name, entry in self._entries.items()
            if agent in entry.caller.agents and (entry.address == key_of(person) if is_key else entry.account == person != "")
        ]
        for name, entry in theirs:
            self._withdrawn.add((agent, name))
            self._callers_of(agent).entries.pop(entry.address, None)
            entry.caller = replace(entry.caller, agents=entry.caller.agents - {agent})
            if not entry.caller.agents:
                self._revoked.add(name)
                self._drop(name)
        if theirs:
            self._tell({agent})

    def callers_of(self, agent: str) -> Mapping[str, str]:
        """Return the live keys for an agent (a bare JID), for its `AccessPolicy.callers`. The mapping always shows the present.

        It maps the address of a key to the bare JID for whom it stands, "" for itself.
        """
        return self._callers_of(agent)

    def find(self, secret: str, now: datetime | None = None) -> Caller | None:
        """Return the caller whose key has this secret; None if no live key has it.

        The time that it takes says nothing about the secrets: the hash of the text is looked up. Nothing is read or awaited.
        """
        now = now or self._clock()
        secret_hash = hash_secret(secret)
        entry = self._by_hash.get(secret_hash)
        if entry is None or not entry.accepts(secret_hash, now):
            return None
        if entry.used_at is None or now - entry.used_at >= _USE_STORED_EVERY:
            entry.used_at = now
            with suppress(StoreError):  # the database is closed
                self._repository.save_use(entry.row, now).on_failed(_log_failed_use)
        return entry.caller

    def _callers_of(self, agent: str) -> _Callers:
        if agent not in self._callers:
            self._callers[agent] = _Callers(self._clock)
        return self._callers[agent]

    def _drop(self, name: str) -> set[str]:
        """Drop a key, if it is there, and return the agents for which it was."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return set()
        for secret_hash in entry.hashes:
            del self._by_hash[secret_hash]
        for agent in entry.caller.agents:
            del self._callers_of(agent).entries[entry.address]
        return set(entry.caller.agents)

    def _tell(self, agents: set[str]) -> None:
        for agent in agents:
            if agent in self.on_lost:
                self.on_lost[agent]()


def _log_failed_use(error: BaseException) -> None:
    log.debug("cannot store when a key was used: %s", error)
