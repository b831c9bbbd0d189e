"""Termination markers: found in a text that comes in pieces, and taken out of it."""

from __future__ import annotations

import re
from collections.abc import Sequence


class Markers:
    """Holds back only what may become a marker; `found` says whether there was one."""

    def __init__(self, markers: Sequence[str]) -> None:
        # The longest first: one marker may begin another.
        self._markers = sorted(filter(None, markers), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._markers))) if self._markers else None
        self._held = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        if self._pattern is None:
            return piece
        text = self._take_out(self._held + piece)
        most = min(len(text), max(map(len, self._markers)) - 1)
        keep = next((n for n in range(most, 0, -1) if any(marker.startswith(text[-n:]) for marker in self._markers)), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """What was held back and is no marker."""
        held, self._held = self._held, ""
        return held

    def _take_out(self, text: str) -> str:
        assert self._pattern is not None
        shown, count = self._pattern.subn("", text)
        self.found = self.found or count > 0
        return shown
