"""A stanza on its way out, whose arrival at the server somebody waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias


class OutboundStanza(str):
    """The text of a stanza. Whoever sends it calls `acknowledge` when the server has it (XEP-0198), or knows no better."""

    is_last: bool = False
    """Whether an answer ends with it."""
    is_acknowledged: bool = False
    on_acknowledged: Callable[[], None] | None = None

    def acknowledge(self) -> None:
        """The server has it."""
        self.is_acknowledged = True
        if self.on_acknowledged is not None:
            self.on_acknowledged()
            self.on_acknowledged = None


SendStanzas: TypeAlias = Callable[[list[str]], None]
"""Takes stanzas, which leave in order; it never fails."""
