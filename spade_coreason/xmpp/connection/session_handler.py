"""The user of a session: what a connection passes on, and asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from slixmpp import Presence

if TYPE_CHECKING:
    from ...storage import Commit


class SessionHandler:
    """The agent or client of a connection. By default it ignores what comes in, and hides and refuses nothing."""

    def on_session(self, is_new: bool) -> None:
        """Begin a session, or go on after a cut if it is not new."""

    def intercept(self, message: Element) -> bool:
        """Return True for a message that is not for `on_message`. It counts as received at once."""
        return False

    def on_message(self, message: Element) -> Commit[Any] | None:
        """Receive a message. It is acknowledged to the server when the commit is stored; without one, at once."""
        return None

    def on_presence(self, presence: Presence) -> bool:
        """Receive a presence. Return True if slixmpp must not handle it."""
        return False

    def is_visible_to(self, requester: str) -> bool:
        """Return True if the sender of an IQ may know that the account is online."""
        return True

    def has_share(self, sender: str) -> bool:
        """Return True if a presence or an IQ is within the share of its sender."""
        return True
