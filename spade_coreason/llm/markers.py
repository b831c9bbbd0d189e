"""Termination markers: found in a text that comes in pieces, and taken out of it."""

from __future__ import annotations

import re
from collections.abc import Sequence


class Markers:
    """Holds back only what may become a marker; `found` says whether there was one."""

    def __init__(self, markers: Sequence[str]) -> None:
        # The longest first: one marker may begin another.
        longest_first = sorted(filter(None, markers), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._beginnings = {marker[:end] for marker in longest_first for end in range(1, len(marker))}
        self._most = max(map(len, longest_first), default=1) - 1
        self._held = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        if self._pattern is None:
            return piece
        text, begin, shown = self._held + piece, 0, ""
        while True:
            marker, open_at = self._pattern.search(text, begin), self._open(text, begin)
            if marker is None or open_at <= marker.start():
                self._held = text[open_at:]
                return shown + text[begin:open_at]
            shown += text[begin : marker.start()]
            begin = marker.end()
            self.found = True

    def end(self) -> str:
        """What was held back and is no marker."""
        held, self._held = self._held, ""
        if self._pattern is None:
            return held
        shown, count = self._pattern.subn("", held)
        self.found = self.found or count > 0
        return shown

    def _open(self, text: str, begin: int) -> int:
        """Where a marker may have begun that is not complete; the end of the text where none has."""
        most = min(len(text) - begin, self._most)
        return len(text) - next((n for n in range(most, 0, -1) if text[-n:] in self._beginnings), 0)
