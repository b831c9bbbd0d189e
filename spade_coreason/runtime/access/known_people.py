"""The addresses that belong to people and rooms, as far as one agent can know them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable

from pydantic_core import from_json

from ...domain.channel_kinds import CHANNEL_KINDS, PERSON, ChannelKind
from ...domain.jid import bare_jid
from ...exceptions import StoreError
from ...storage import AgentRepository

log = logging.getLogger(__name__)

_MAX_SENDERS = 10_000


class KnownPeople:
    """The kinds of channels on which senders wrote to one agent. A sender who wrote as a person or a room last is no agent.

    It knows the senders since the start, the operators, and the owners of stored conversations.
    """

    def __init__(self, repository: AgentRepository, operators: Iterable[str] = ()) -> None:
        self._repository = repository
        self._kinds: OrderedDict[str, ChannelKind] = OrderedDict()
        self._operators = frozenset(operators)

    def record(self, sender: str, kind: ChannelKind) -> None:
        """Record the kind of the channel on which a sender (a bare JID) wrote. At most 10,000 senders are kept."""
        sender = sender.lower()
        if self._kinds.get(sender) is kind:
            return
        self._kinds[sender] = kind
        if len(self._kinds) > _MAX_SENDERS:
            self._kinds.popitem(last=False)

    async def describe(self, jid: str) -> str | None:
        """Return "a person" or "a chat room" if `jid` is known as one, else None."""
        sender = bare_jid(jid).lower()
        kind = self._kinds.get(sender)
        if kind is None:
            kind = PERSON if sender in self._operators else await self._load_kind(sender)
        if kind is None or not kind.is_human:
            return None
        return "a chat room" if kind.is_room else "a person"

    async def _load_kind(self, sender: str) -> ChannelKind | None:
        """Load the kind of the channel of the last stored turn of a sender; None without one, or if the database fails."""
        try:
            for conversation in await self._repository.list_conversations(sender, limit=1):
                for body in await self._repository.turns.load_history(conversation.id, 1):
                    return CHANNEL_KINDS.get(str(from_json(body).get("meta", {}).get("channel")))
        except StoreError as error:
            log.debug("%s: cannot read the last turn of %s: %s", self._repository.agent, sender, error)
        return None
