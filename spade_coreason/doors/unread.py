"""The bytes of answers that wait to be read: they are bounded for each key, and in all."""

from __future__ import annotations

from weakref import WeakSet

MAX_BYTES = 128 * 2**20
"""The most bytes that wait for all clients together."""
STEP_BYTES = 2**16
"""The bytes that may wait for each client in any case, and after which it is looked again."""

_all_unread = WeakSet["UnreadBytes"]()


def has_room(of_key: int, in_all: int) -> bool:
    """Return True if so many bytes may wait for a key: as many as are still free, so that others have as much."""
    return of_key <= MAX_BYTES - in_all


class UnreadBytes:
    """The `size` in bytes of what waits for one client with a key. A client without one has its address for a key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.size = 0
        _all_unread.add(self)

    def add(self, size: int) -> bool:
        """Count more bytes. Return False if there is no room for them."""
        before, self.size = self.size // STEP_BYTES, self.size + size
        if before == self.size // STEP_BYTES:
            return True
        of_key = sum(each.size for each in _all_unread if each.key == self.key)
        return has_room(of_key, sum(each.size for each in _all_unread))
