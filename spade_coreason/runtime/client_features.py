"""What a runner asks about the devices of those who write to its agent."""

from __future__ import annotations

from typing import Protocol


class ClientFeatures(Protocol):
    """What devices show; asked for every turn, so nothing here waits."""

    def has_corrections(self, person: str) -> bool:
        """Whether every device of a person (a bare JID) shows corrections (XEP-0308), so that a stream may grow there."""
        ...

    def has_replies(self, device: str) -> bool:
        """Whether a device (a full JID) shows replies (XEP-0461)."""
        ...

    def find_chained_device(self, person: str) -> str | None:
        """The resource of a person's only device, where it is one that takes a correction of the version before only."""
        ...


class UnknownClientFeatures:
    """Where nobody sees the devices: they are taken to show nothing but messages."""

    def has_corrections(self, person: str) -> bool:
        """Not known."""
        return False

    def has_replies(self, device: str) -> bool:
        """Not known."""
        return False

    def find_chained_device(self, person: str) -> str | None:
        """Not known."""
        return None
