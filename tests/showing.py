"""Devices of which a test says what they show."""

from __future__ import annotations

from spade_coreason.devices import UnknownDevices


class Showing(UnknownDevices):
    """`corrections`: all of them show corrections; `replies`: these (full JIDs) show replies."""

    def __init__(self, *, corrections: bool = False, replies: tuple[str, ...] = ()) -> None:
        self._corrections = corrections
        self._replies = replies

    def corrects(self, person: str) -> bool:
        """The same for everybody."""
        return self._corrections

    def refers(self, device: str) -> bool:
        """Whether it is one of those."""
        return device in self._replies
