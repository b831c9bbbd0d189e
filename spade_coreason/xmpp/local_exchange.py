"""Messages between the agents of one process: from one gateway to the other, without the way over the server.

A message enters the receiver as it would from the wire: with the sender's full JID, at the same gateway, into the same inbox.
It takes the wire where it could be told apart: while either agent is not online, or has not caught up, and behind an earlier
message that is still on the wire.

Between the two it is JSON text, which is made when it is sent and does not change:

- A request is a `RequestMessage`. Its stanza is written only for the wire, and for a receiver with SPADE behaviours.
- A reply has its stanza already, because the inbox stores it. Its JSON is taken out without parsing XML.
- The rest, such as a retraction, is parsed as a stanza.

The receiver builds its own values from the text. So it shares nothing with the sender, and gets nothing that JSON or XML cannot
carry. The same function reads the JSON on both ways, and refuses the same: numbers beyond a float, NaN, equal keys, too many
levels. A request is as large as its JSON in a stanza and 1 KiB, whichever way it takes (`RequestTooLongError`).

The channel of a request is XMPP on both ways. So a repeated one gets its reply by the way that is open, also after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..domain.jid import bare_jid
from ..runtime import OutboundMessage

if TYPE_CHECKING:
    from ..storage import Commit

log = logging.getLogger(__name__)

_MAX_DELIVERIES = 64
"""Number of messages that are delivered in one round of the event loop. The others wait for their turn."""


class LocalAgent(Protocol):
    """An agent of this process."""

    @property
    def is_reachable(self) -> bool:
        """True if it is online and has received all that came while it was away."""
        ...

    @property
    def full_jid(self) -> str:
        """The JID with the resource that it has bound."""
        ...

    def receive_local(self, message: OutboundMessage, sender: str) -> Commit[Any] | None:
        """Receive a message of the agent whose full JID is `sender`, and return its commit, if any."""
        ...

    def send_by_server(self, stanzas: Sequence[OutboundMessage]) -> bool:
        """Send messages over the server."""
        ...


class _Delivery(NamedTuple):
    sender: LocalAgent
    receiver: LocalAgent
    message: OutboundMessage


class LocalExchange:
    """The agents of this process, by bare JID, and the messages that are on their way between them."""

    def __init__(self) -> None:
        self._agents: dict[str, LocalAgent] = {}
        self._on_wire: dict[tuple[str, str], OutboundMessage] = {}
        """The last message that took the wire, by sender and recipient (bare JIDs)."""
        self._deliveries: deque[_Delivery] = deque()
        self.delivered_count = 0

    def add(self, agent: LocalAgent, jid: str) -> None:
        """Add an agent, with its bare JID."""
        self._agents[jid] = agent

    def remove(self, jid: str) -> None:
        """Remove the agent with a bare JID."""
        self._agents.pop(jid, None)

    def send(self, sender: LocalAgent, stanzas: Sequence[OutboundMessage]) -> bool:
        """Send messages of an agent in order: those to agents of this process directly, all others over the server.

        Return what the server's send queue returns.
        """
        if len(self._agents) < 2:
            return sender.send_by_server(stanzas)
        by_server = [message for message in stanzas if not self._take(sender, message)]
        return sender.send_by_server(by_server) if by_server else False

    def _take(self, sender: LocalAgent, message: OutboundMessage) -> bool:
        """Take a message on its way. Return False if it has to go over the server."""
        recipient = bare_jid(message.recipient)
        receiver = self._agents.get(recipient)
        if receiver is None or receiver is sender:
            return False
        route = bare_jid(sender.full_jid), recipient
        last = self._on_wire.get(route)
        is_addressed = message.recipient in (recipient, receiver.full_jid)
        if (
            not is_addressed
            or not receiver.is_reachable
            or not sender.is_reachable
            or not (last is None or last.is_acknowledged)
        ):
            self._on_wire[route] = message
            return False
        if last is not None:
            del self._on_wire[route]
        if not self._deliveries:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._deliveries.append(_Delivery(sender, receiver, message))
        return True

    def _deliver(self) -> None:
        """Deliver the messages that are on their way, in order."""
        deliveries = self._deliveries
        taken = [deliveries.popleft() for _ in range(min(len(deliveries), _MAX_DELIVERIES))]
        try:
            for (sender, receiver), of_route in groupby(taken, key=itemgetter(0, 1)):
                messages = [delivery.message for delivery in of_route]
                if not receiver.is_reachable:
                    self._give_to_server(sender, messages)
                    continue
                self.delivered_count += len(messages)
                for message in messages:
                    self._deliver_message(sender, receiver, message)
        finally:
            if deliveries:
                asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver_message(self, sender: LocalAgent, receiver: LocalAgent, message: OutboundMessage) -> None:
        """Deliver a message. One that cannot be handled is acknowledged, as on the wire: it would fail again."""
        stored = None
        try:
            stored = receiver.receive_local(message, sender.full_jid)
        except Exception:
            log.exception("%s: cannot handle a message from %s", receiver.full_jid, sender.full_jid)
        if stored is None:
            message.acknowledge()
        else:
            stored.on_stored(partial(_acknowledge, message))
            stored.on_failed(partial(self._on_not_stored, sender, message))

    def _on_not_stored(self, sender: LocalAgent, message: OutboundMessage, _: object) -> None:
        self._give_to_server(sender, [message])

    def _give_to_server(self, sender: LocalAgent, messages: Sequence[OutboundMessage]) -> None:
        """Send messages over the server, which delivers them until they are stored. Later ones stay behind them."""
        last = messages[-1]
        self._on_wire[bare_jid(sender.full_jid), bare_jid(last.recipient)] = last
        sender.send_by_server(messages)


def _acknowledge(message: OutboundMessage, _: object) -> None:
    message.acknowledge()
