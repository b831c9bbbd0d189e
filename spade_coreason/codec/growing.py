"""A stream as a person sees it: how much of it is shown already, in which message, and how it looks if it ends too soon."""

from __future__ import annotations

from .markdown import styled
from .tables import FENCE


class Growing:
    """A stream to a person: its text so far, and the message in which it grows."""

    __slots__ = ("chained_to", "chunks", "last_id", "message_id", "reply", "shown", "versions")

    def __init__(self, message_id: str) -> None:
        self.chunks: list[str] = []
        self.shown = 0
        self.reply: str | None = None
        """The reference to the question in every version of it, as soon as there is one."""
        self.message_id = message_id
        self.versions = 0
        self.last_id: str | None = None
        self.chained_to: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    @property
    def styled(self) -> str:
        """As a person reads it; what is marked and not complete yet stands as it is."""
        return styled(self.text)

    def cut_off(self, why: str) -> str:
        """Its text, which ends before its end."""
        return and_more(self.styled.rstrip(), f"… ({why})")

    @property
    def has_more(self) -> bool:
        """Whether there is something to show that was not shown."""
        return self.shown < len(self.chunks) and bool(self.text.strip())


def and_more(text: str, mark: str) -> str:
    """A text with a mark behind it that says that it ends too soon."""
    # The end of a block of code is one only if nothing stands behind it.
    return f"{text}\n{mark.lstrip()}" if text.endswith(FENCE) else f"{text}{mark}"
