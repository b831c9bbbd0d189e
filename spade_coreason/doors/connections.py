"""The pools of connections: who gets one while many want one.

A connection begins as that of a stranger, and moves to the pool of the key that it shows. Behind a proxy, requests count in
place of connections.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from ..config import WebLimits
from .addresses import Proxies, group_address
from .errors import HttpError

_ALL = "all"
_KNOWN_S = 3600.0
_MAX_KNOWN = 256
"""The most addresses that are known by one key."""
_BUSY_S = 5.0

Pools = Mapping[str, int]
"""Names of pools, and the most connections in each."""


def pools_of_stranger(limits: WebLimits, address: str) -> Pools:
    """Return the pools of a connection without a key. They leave a quarter to others, an eighth also if those have more."""
    return {
        f"address {group_address(address)}": limits.connections_per_address,
        f"block {group_address(address, 24, 56)}": math.ceil(limits.connections * 3 / 8),
        "strangers": math.ceil(limits.connections * 3 / 4),
        _ALL: math.ceil(limits.connections * 7 / 8),
    }


def pools_of_key(limits: WebLimits, key: str, used: int) -> Pools:
    """Return the pools of a connection for a key, while so many are `used`.

    A key has at most as many as are still free, so that it leaves some to the next one.
    """
    return {f"key {key}": min(limits.requests_per_key, limits.connections - used), _ALL: limits.connections}


def find_full(counts: Mapping[str, int], pools: Pools) -> str:
    """Return the first pool that has no room; "" if all have."""
    return next((name for name, limit in pools.items() if counts.get(name, 0) >= limit), "")


class ConnectionSlot:
    """The slot of a connection, or of a request behind a proxy. There is none for what has a `refusal`."""

    def __init__(self, owner: ConnectionPools, address: str) -> None:
        self.refusal: HttpError | None = None
        self._owner = owner
        self._address = address
        self._pools: tuple[str, ...] = ()

    def move(self, pools: Iterable[str] = ()) -> None:
        """Count in these pools from now on; in none at the end."""
        counts = self._owner.counts
        for name in self._pools:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
        self._pools = tuple(pools)
        counts.update(self._pools)

    def show_key(self, key: str) -> None:
        """Move to the pool of a key, if that has room. Remember for an hour that the address has shown it."""
        owner, before = self._owner, self._pools
        addresses = owner.known.setdefault(key, {})
        addresses.pop(self._address, None)
        addresses[self._address] = time.monotonic()
        if len(addresses) > _MAX_KNOWN:
            del addresses[next(iter(addresses))]
        self.move()
        pools = pools_of_key(owner.limits, key, owner.counts[_ALL])
        self.move(before if find_full(owner.counts, pools) else pools)


class ConnectionPools:
    """The connections that are open, by the pools in which they count: `counts`."""

    def __init__(self, limits: WebLimits, proxies: Proxies) -> None:
        self.limits = limits
        self.counts = Counter[str]()
        self.known: dict[str, dict[str, float]] = {}
        """The addresses that have shown a key, and when, by the name of the key."""
        self.proxies = proxies

    def enter(self, address: str) -> ConnectionSlot:
        """Return the slot of a new connection, or of a request that a proxy has passed on."""
        slot = ConnectionSlot(self, group := group_address(address))
        # The connections of proxies do not count among all, since their requests do.
        is_proxy = address in self.proxies
        pools = {"proxies": self.limits.connections} if is_proxy else pools_of_stranger(self.limits, address)
        if full := find_full(self.counts, pools):
            oldest = time.monotonic() - _KNOWN_S
            key = next((key for key, found in self.known.items() if found.get(group, oldest) > oldest), None)
            if key is None or find_full(self.counts, pools := pools_of_key(self.limits, key, self.counts[_ALL])):
                status, who = (429, "your address") if full.startswith("address") else (503, "the server")
                text = f"{who} has too many connections, or requests in progress; try again in a moment"
                slot.refusal = HttpError(status, text, retry_after_s=_BUSY_S, headers={"Connection": "close"})
                return slot
        slot.move(pools)
        return slot
