"""The thread of a reply: that of the message of the agent that it replies to (XEP-0461)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID

from ...domain.identifiers import recover_thread
from ...domain.messages import InboundRequest
from ...exceptions import StoreError
from ...storage import AgentRepository

log = logging.getLogger(__name__)


class ThreadResolver:
    """The threads of the turns of one agent, to find that of a request that replies to one without a thread of its own.

    Such a request belongs to the conversation of the message that it replies to, if that is one of the sender's. A reply to any
    other message counts as a message without a thread. `recent` has the sender and the thread of the latest turns, by the
    integers of their keys; the database has all.
    """

    def __init__(self, repository: AgentRepository, recent: Mapping[int, tuple[str, str | None]]) -> None:
        self._repository = repository
        self._recent = recent

    def find_recent(self, incoming: InboundRequest, sender: str) -> str | None:
        """Return the thread of a request of a sender (a bare JID), if that is known without the database."""
        if (turn := _replied_turn(incoming)) is None:
            return incoming.thread
        turn_sender, thread = self._recent.get(turn.int, ("", None))
        return thread if turn_sender == sender else None

    def needs_search(self, incoming: InboundRequest) -> bool:
        """Return True if only the database may know the thread of a request."""
        turn = _replied_turn(incoming)
        return turn is not None and turn.int not in self._recent

    async def search(self, incoming: InboundRequest, sender: str) -> str | None:
        """Return the thread of a request of a sender (a bare JID) by the database; None if it has none."""
        try:
            conversation_id = await self._repository.turns.find_conversation_id(str(_replied_turn(incoming)), sender)
        except StoreError as error:
            log.error("%s: cannot find the message that %s replies to: %s", self._repository.agent, sender, error)
            return None
        return recover_thread(conversation_id, sender, self._repository.agent) if conversation_id is not None else None


def _replied_turn(incoming: InboundRequest) -> UUID | None:
    """Return the key of the turn that a request without a thread replies to, if the id can be one of the agent's.

    The ids of the agent's messages begin with the key of their turn.
    """
    if incoming.thread is not None or not incoming.kind.is_human:
        return None
    if (replied_to := incoming.metadata.get("reply_to")) is None:
        return None
    try:
        return UUID(replied_to[:36])
    except ValueError:
        return None
