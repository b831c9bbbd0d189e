"""Outgoing stanzas and their acknowledgement.

A module of its own, because connections import it and must not load the storage behind `outbox`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias


class OutboundStanza(str):
    """The text of a stanza, with its acknowledgement.

    The connection calls `acknowledge` when the server has the stanza (XEP-0198), or when it cannot learn that.
    """

    is_last: bool = False
    """True for the last stanza of a reply."""
    is_acknowledged: bool = False
    on_acknowledged: Callable[[], None] | None = None

    def acknowledge(self) -> None:
        """Mark the stanza as received by the server, and call `on_acknowledged` once."""
        self.is_acknowledged = True
        if self.on_acknowledged is not None:
            self.on_acknowledged()
            self.on_acknowledged = None


SendStanzas: TypeAlias = Callable[[list[str]], None]
"""A function that sends stanzas in order and never fails."""
