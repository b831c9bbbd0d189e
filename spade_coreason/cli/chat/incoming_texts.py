"""Texts that agents write first, in a chat: above the prompt, or between the answers."""

from __future__ import annotations

from ...domain.jid import local_part
from ...domain.texts.terminal_text import escape_label
from ..terminal.console import add_style, print_text
from .commands import INDENT
from .parked_requests import ParkedRequests


class IncomingTexts:
    """The texts that agents write first. They are held while an answer is shown."""

    def __init__(self) -> None:
        self._held: list[tuple[str, str]] | None = []
        self.parked = ParkedRequests()
        """The requests that wait for a person."""

    def put(self, jid: str, text: str) -> None:
        """Show a text of an agent, or hold it."""
        self.parked.note_text(jid)
        if self._held is None:
            _show(jid, text)
        else:
            self._held.append((jid, text))

    def begin(self) -> None:
        """Show the held texts, and from now on those that come, at once."""
        held, self._held = self._held or [], None
        for jid, text in held:
            _show(jid, text)

    def hold(self) -> None:
        """Hold the texts that come from now on."""
        if self._held is None:
            self._held = []


def _show(jid: str, text: str) -> None:
    print_text(text, add_style(f"{escape_label(local_part(jid))}:", "bold") + " ", INDENT)
