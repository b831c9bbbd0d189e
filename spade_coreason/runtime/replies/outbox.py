"""The outbox: final replies are stored until the server has acknowledged them, and sent again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID, uuid4

from pydantic_core import from_json

from ...concurrency import RateLimiter
from ...domain.jid import bare_jid
from ...domain.messages import Failed, InboundRequest, Refused, TurnEvent
from ...domain.observability.spans import DELIVER
from ...domain.observability.tracing import TURN_TRACE, TurnTrace
from ...storage import Inbox
from ..channels import Channel, OutboundMessage, encode_reply
from ..observability.metrics import Metrics


class Outbox:
    """The outbox of one agent: it sends replies, and closes their requests in the inbox when the server has them."""

    def __init__(self, channels: Mapping[str, Channel], inbox: Inbox, metrics: Metrics, *, is_traced: bool) -> None:
        self.channels = channels
        """The channels of the agent, by name."""
        self._inbox = inbox
        self._metrics = metrics
        self.is_traced = is_traced
        """True if deliveries have spans in the traces of their turns."""
        self._rate_limiter = RateLimiter()
        self._unsent: list[tuple[str, int, list[OutboundMessage]]] = []
        self.late_replies: dict[str, OutboundMessage] = {}
        """The end of the latest reply to each recipient (a bare JID) that the server is slow to take."""
        self._arrivals: dict[str, asyncio.Event] = {}

    def channel_of(self, incoming: InboundRequest) -> Channel:
        """Return the channel by which a request came."""
        return self.channels[incoming.channel_name]

    async def wait_until_arrived(self, recipient: str) -> None:
        """Wait until the server has the latest reply to a recipient (a bare JID), if it is slow to take it.

        Otherwise replies that are made faster than the server takes them would fill the memory.
        """
        while recipient in self.late_replies:
            await self._arrivals.setdefault(recipient, asyncio.Event()).wait()

    def _on_late_reply_arrived(self, close: Callable[[], None], recipient: str, last: OutboundMessage) -> None:
        close()
        if self.late_replies.get(recipient) is last:
            del self.late_replies[recipient]
            if (arrival := self._arrivals.pop(recipient, None)) is not None:
                arrival.set()

    def encode(self, incoming: InboundRequest, key: UUID, *events: TurnEvent) -> list[OutboundMessage]:
        """Encode events of the platform itself as the messages of a reply to a request."""
        return encode_reply(self.channel_of(incoming).make_encoder(incoming, key), *events)

    def send(self, incoming: InboundRequest, event: TurnEvent, key: UUID | None = None) -> None:
        """Send an event of the platform itself as a reply to a request, which is not stored. `key` is by default a new one."""
        self.channel_of(incoming).send(self.encode(incoming, key or uuid4(), event))

    def send_displayed(self, incoming: InboundRequest) -> None:
        """Tell the sender of a request that it is read, if its channel can."""
        channel = self.channel_of(incoming)
        if (displayed := channel.encode_displayed(incoming)) is not None:
            channel.send([displayed])

    def send_problem(self, incoming: InboundRequest, problem: Refused | Failed, key: UUID | None = None) -> None:
        """Tell a sender that a request cannot be accepted: a program each time, all others at most once a minute.

        A refusal with `tells_people` False is told to a program only. The limit ends an exchange with a sender that echoes our
        own text as its next request. `key` is that of the stored request, if it is stored.
        """
        tells_people = not isinstance(problem, Refused) or problem.tells_people
        if incoming.kind.is_program or (tells_people and self._rate_limiter.allow(incoming.owner)):
            self.send(incoming, problem, key)

    def send_final(self, channel_name: str, inbox_row: int, messages: list[OutboundMessage]) -> None:
        """Send the final messages of a reply. The request is closed when the last one is acknowledged."""
        last = messages[-1]
        last.is_last = True
        last.on_acknowledged = close = self._make_closing(inbox_row)
        if self.channels[channel_name].send(messages) and not last.is_acknowledged:
            recipient = bare_jid(last.recipient)
            self.late_replies[recipient] = last
            last.on_acknowledged = partial(self._on_late_reply_arrived, close, recipient, last)

    def close_when_acknowledged(self, inbox_row: int, last: OutboundMessage | None) -> None:
        """Close a request whose whole reply was sent, once its last message is acknowledged."""
        if last is None:
            self._inbox.close(inbox_row)
            return
        close = self._make_closing(inbox_row)
        if last.is_acknowledged:
            close()
        else:
            last.on_acknowledged = close

    def _make_closing(self, inbox_row: int) -> Callable[[], None]:
        """Return the function that closes a request when the server has its whole reply, which is sent now."""
        close: Callable[[], None] = partial(self._inbox.close, inbox_row)
        if self._metrics.latencies is not None:
            close = partial(self._close_measured, inbox_row, self._metrics.now())
        if self.is_traced and (trace := TURN_TRACE.get()) is not None:
            close = _trace_delivery(trace, close)
        return close

    def _close_measured(self, inbox_row: int, sent_at_s: float) -> None:
        self._metrics.record_delivery(sent_at_s)
        self._inbox.close(inbox_row)

    def add_unsent(self, channel_name: str, inbox_row: int, reply: str) -> None:
        """Hold a stored reply, the JSON text of `dump_reply`, until `send_unsent`."""
        load = self.channels[channel_name].load_message
        self._unsent.append((channel_name, inbox_row, [load(content) for content in from_json(reply)]))

    def send_unsent(self, on_written: Callable[[int], None]) -> None:
        """Send the held replies, with the same ids as before.

        `on_written` is called with the row of each request whose reply is handed to the stream.
        """
        unsent, self._unsent = self._unsent, []
        for channel_name, inbox_row, messages in unsent:
            if not messages:  # nobody reads it
                self._inbox.close(inbox_row)
                continue
            messages[-1].on_written = partial(on_written, inbox_row)
            self.send_final(channel_name, inbox_row, messages)


def _trace_delivery(trace: TurnTrace, close: Callable[[], None]) -> Callable[[], None]:
    """Begin the span of a delivery. Return a function that closes the request with `close`, and ends the span."""
    span = trace.begin(DELIVER, "producer", {})

    def close_and_end() -> None:
        close()
        span.end()

    return close_and_end
