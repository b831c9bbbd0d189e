"""The live secrets of a platform, in memory: its keys, or its webhooks, by their names, and the callers that they admit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from .caller import Caller


class LiveSecret(Protocol):
    """A secret that is not revoked."""

    caller: Caller

    def is_live(self, now: datetime) -> bool:
        """Return True unless it has expired."""
        ...


S = TypeVar("S", bound=LiveSecret)


class LiveCallers(Mapping[str, str]):
    """The callers of one agent (`AccessPolicy.callers`): their addresses, and the bare JIDs for whom they stand.

    The bare JID is "" for a caller who speaks for themselves. It is asked for each message, and a key ends at its time.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.entries: dict[str, LiveSecret] = {}
        """The secrets by their addresses, with those that are expired."""
        self._clock = clock

    def __getitem__(self, address: str) -> str:
        entry = self.entries[address]
        if not entry.is_live(self._clock()):
            raise KeyError(address)
        return entry.caller.account

    def __iter__(self) -> Iterator[str]:
        now = self._clock()
        return iter([address for address, entry in self.entries.items() if entry.is_live(now)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class SecretRing(Generic[S]):
    """The live secrets of one kind."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self.live: dict[str, S] = {}
        """The secrets by their names."""
        self.on_lost: dict[str, Callable[[], object]] = {}
        """Callbacks by the bare JID of an agent: a secret for it was revoked or withdrawn."""
        self._callers: dict[str, LiveCallers] = {}

    def callers_of(self, agent: str) -> LiveCallers:
        """Return the callers of an agent (a bare JID). The mapping always shows the present."""
        if agent not in self._callers:
            self._callers[agent] = LiveCallers(self.clock)
        return self._callers[agent]

    def put(self, name: str, secret: S) -> None:
        """Add a secret."""
        self.live[name] = secret
        for agent in secret.caller.agents:
            self.callers_of(agent).entries[secret.caller.address] = secret

    def pop(self, name: str) -> S | None:
        """Remove a secret, and return it; None if the ring does not hold it."""
        if (secret := self.live.pop(name, None)) is not None:
            for agent in secret.caller.agents:
                del self.callers_of(agent).entries[secret.caller.address]
        return secret

    def tell(self, agents: Iterable[str]) -> None:
        """Tell agents that they have lost callers."""
        for agent in agents:
            if agent in self.on_lost:
                self.on_lost[agent]()
