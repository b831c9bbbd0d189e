"""What an agent says in a room."""

from __future__ import annotations

from uuid import UUID

from ...domain.messages import InboundRequest
from ..xml import clean
from .base import PresentationOptions
from .chat import ChatEncoder, LiveMessage


class GroupchatEncoder(ChatEncoder):
    """Whole messages to everybody in a room, the first of them with the name of whoever asked.

    No typing, no receipts and no corrections there: each would come to everybody.
    """

    has_quick_responses = False

    def __init__(self, incoming: InboundRequest, key: UUID, stanza_bytes: int) -> None:
        super().__init__(incoming, key, stanza_bytes, PresentationOptions(has_replies=True))
        self._prefix = f"{incoming.nickname}: "

    def _encode_text(self, text: str, stream: LiveMessage | None = None, *, is_link: bool = False) -> list[str]:
        text = clean(text).strip()
        if not text or is_link:
            return super()._encode_text(text, is_link=is_link)
        prefix, self._prefix = self._prefix, ""
        return super()._encode_text(prefix + text)
