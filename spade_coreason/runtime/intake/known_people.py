"""The addresses that belong to people and rooms, as far as one agent can know them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable

from pydantic_core import from_json

from ...domain.jid import bare_jid
from ...domain.messages import InboundRequest
from ...exceptions import StoreError
from ...storage import AgentRepository

log = logging.getLogger(__name__)

_MAX_SENDERS = 10_000
_NOUNS = {"person": "a person", "room": "a chat room"}


class KnownPeople:
    """The channels on which senders wrote to one agent. A sender who wrote on `person` or `room` last is no agent.

    It knows the senders since the start, the operators, and the owners of stored conversations.
    """

    def __init__(self, repository: AgentRepository) -> None:
        self._repository = repository
        self._channels: OrderedDict[str, str] = OrderedDict()
        self._operators: frozenset[str] = frozenset()

    def add_operators(self, operators: Iterable[str]) -> None:
        """Add the operators of the agent (bare JIDs), who are people."""
        self._operators |= frozenset(operators)

    def record(self, incoming: InboundRequest) -> None:
        """Record the channel of a request. At most 10,000 senders are kept."""
        sender = bare_jid(incoming.sender).lower()
        if self._channels.get(sender) == incoming.channel:
            return
        self._channels[sender] = incoming.channel
        if len(self._channels) > _MAX_SENDERS:
            self._channels.popitem(last=False)

    async def describe(self, jid: str) -> str | None:
        """Return "a person" or "a chat room" if `jid` is known as one, else None."""
        sender = bare_jid(jid).lower()
        channel = self._channels.get(sender)
        if channel is None:
            channel = "person" if sender in self._operators else await self._load_channel(sender)
        return _NOUNS.get(channel or "")

    async def _load_channel(self, sender: str) -> str | None:
        """Load the channel of the last stored turn of a sender; None without one, or if the database fails."""
        try:
            for conversation in await self._repository.list_conversations(sender, limit=1):
                for body in await self._repository.load_history(conversation.id, 1):
                    channel = from_json(body).get("meta", {}).get("channel")
                    return channel if isinstance(channel, str) else None
        except StoreError as error:
            log.debug("%s: cannot read the last turn of %s: %s", self._repository.agent, sender, error)
        return None
