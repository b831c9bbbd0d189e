"""What an agent says in a room."""

from __future__ import annotations

from uuid import UUID

from ...domain.messages import Incoming
from ..xml import clean
from .base import Manner
from .chat import Growing, PersonVoice


class RoomVoice(PersonVoice):
    """Whole messages to everybody in a room, the first of them with the name of whoever asked.

    No typing, no receipts and no corrections there: each would come to everybody.
    """

    offers = False

    def __init__(self, incoming: Incoming, key: UUID, stanza_bytes: int) -> None:
        super().__init__(incoming, key, stanza_bytes, Manner(refers=True))
        self._prefix = f"{incoming.nickname}: "

    def _text(self, text: str, stream: Growing | None = None, *, is_link: bool = False) -> list[str]:
        text = clean(text).strip()
        if not text or is_link:
            return super()._text(text, is_link=is_link)
        prefix, self._prefix = self._prefix, ""
        return super()._text(prefix + text)
