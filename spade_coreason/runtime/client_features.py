"""The features of clients, as a runner asks for them."""

from __future__ import annotations

from typing import Protocol


class ClientFeatures(Protocol):
    """The features of the clients of people. It is asked in every turn, so no method waits."""

    def has_corrections(self, person: str) -> bool:
        """Return True if all clients of a person (a bare JID) show corrections (XEP-0308), so that a stream can grow there."""
        ...

    def has_replies(self, device: str) -> bool:
        """Return True if a client (a full JID) shows replies (XEP-0461)."""
        ...

    def find_chained_device(self, person: str) -> str | None:
        """Return the resource of a person's only client, if that accepts corrections of the previous version only."""
        ...


class UnknownClientFeatures:
    """The features without any knowledge of clients: messages only."""

    def has_corrections(self, person: str) -> bool:
        """Return False: not known."""
        return False

    def has_replies(self, device: str) -> bool:
        """Return False: not known."""
        return False

    def find_chained_device(self, person: str) -> str | None:
        """Return None: not known."""
        return None
