"""The channel of doors: what is asked with a key goes to the gateway of an agent, and the events of its reply come back.

A reply is fetched: the inbox has it for seven days for a caller who does not read it now.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from pydantic_core import from_json, to_json

from ..concurrency import Tasks
from ..contracts import AgentRequest, ErrorCode
from ..domain.event_data import event_data
from ..domain.jid import bare_jid
from ..domain.messages import PROGRAM_HEADERS, InboundRequest, Refused, RequestContext, TurnEvent
from ..exceptions import StoreError
from ..runtime import (
    PLAIN_PRESENTATION,
    Channel,
    ChannelGateway,
    OutboundMessage,
    PresentationOptions,
    ReplyEncoder,
)
from .caller import TRACEPARENT, Caller
from .unread import UnreadBytes

if TYPE_CHECKING:
    from ..storage import Commit


ANSWERED = frozenset({"request.completed", "request.failed", "request.refused"})
"""The types of the events that end a request."""
FINAL = ANSWERED | {"request.parked", "request.cancelled", "request.interrupted"}
"""The types of the last event of a `DoorReply`."""


class DoorEvent(NamedTuple):
    """One event of a reply: its type, without the prefix `ai.coreason.`, and its data (docs/reference/events.md).

    There are two more types: `request.cancelled`, and `request.interrupted` if the platform stops or the caller does not read.
    """

    type: str
    data: Mapping[str, Any]

    @property
    def is_final(self) -> bool:
        """True for the last event of a reply."""
        return self.type in FINAL


class ReplySource(Protocol):
    """The origin of replies."""

    def forget(self, reply: DoorReply) -> None:
        """Deliver no more events to a reply."""
        ...


class DoorReply:
    """The events of one reply, as they come: `async for event in reply`. The last one is final.

    If it `waits`, a request that asks a person goes on here once they have answered: `request.parked` is not the last event.
    Close it when the caller is gone. Its request goes on. All its events count as unread until then, or until they are taken by
    `take_all` or forgotten by `free`.
    """

    def __init__(self, source: ReplySource, caller: Caller, request_id: UUID, *, waits: bool) -> None:
        self._source = source
        self.caller = caller
        self.address = f"{caller.address}/{token_hex(8)}"
        """The full JID to which the events go."""
        self.request_id = request_id
        self.waits = waits
        self.stored: Commit[bool] | None = None
        """The commit of the request, if it was not refused. Its result is False for one that was there already."""
        self.is_parked = False
        """True while the request waits for a person's answer."""
        self._events: deque[tuple[DoorEvent, int]] = deque()
        self._unread = UnreadBytes(caller.name)
        self._read_bytes = 0
        self._arrival = asyncio.Event()
        self._is_over = False

    def __aiter__(self) -> DoorReply:
        return self

    async def __anext__(self) -> DoorEvent:
        while not self._events:
            if self._is_over:
                raise StopAsyncIteration
            self._arrival.clear()
            await self._arrival.wait()
        event, size = self._events.popleft()
        self._read_bytes += size
        return event

    def free(self) -> None:
        """Count what was read no longer: the caller has it."""
        self._unread.size -= self._read_bytes
        self._read_bytes = 0

    def take_all(self) -> list[DoorEvent]:
        """Return the events that wait to be read; they are read then."""
        taken = [event for event, _ in self._events]
        self._events.clear()
        self._unread.size = self._read_bytes = 0
        return taken

    @property
    def has_begun(self) -> bool:
        """True if an event waits to be read, or the reply is over."""
        return bool(self._events) or self._is_over

    def put(self, event: DoorEvent, size: int = 0) -> None:
        """Add an event, whose JSON has so many bytes. What comes after the last one is dropped.

        If too much waits for this key, the reply ends here, and can be fetched.
        """
        if self._is_over:
            return
        if not self._unread.add(size):
            self.take_all()
            event, size = self._interruption("too much waits to be read with this key"), 0
        self.is_parked = event.type == "request.parked"
        self._is_over = event.is_final and not (self.is_parked and self.waits)
        if self._is_over:
            self._source.forget(self)
        self._events.append((event, size))
        self._arrival.set()

    def interrupt(self, reason: str) -> None:
        """End the reply before the request is answered. `reason` is the beginning of a sentence for the caller."""
        self.put(self._interruption(reason))

    def _interruption(self, reason: str) -> DoorEvent:
        return DoorEvent("request.interrupted", {"request_id": str(self.request_id), "message": reason})

    def close(self) -> None:
        """Read no further events."""
        self._is_over = True
        self.take_all()
        self._arrival.set()
        self._source.forget(self)


class DoorEncoder(ReplyEncoder):
    """The encoder of replies by a door: each event is a message of JSON."""

    shows_typing = False
    has_live_messages = False
    follows_streams = True
    shows_files = False
    batches = False
    shows_thoughts = shows_steps = True

    def __init__(self, incoming: InboundRequest, key: UUID) -> None:
        self.key = str(key)
        self.recipient = incoming.sender
        self._uuid = key
        self._request_id = str(incoming.request_id or key)

    def encode(self, event: TurnEvent) -> list[str]:
        kind, data = event_data(event, self._uuid)
        return [to_json({"to": self.recipient, "request": self._request_id, "type": kind, "data": data}).decode()]

    def readdress(self, content: str, recipient: str) -> str:
        return to_json(from_json(content) | {"to": recipient}).decode()


class DoorChannel(Channel):
    """The channel of doors for one agent (a bare JID). It is open while the agent runs, also without a connection to XMPP."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.replies: dict[str, DoorReply] = {}
        """The replies that are read, by their addresses."""
        self._gateway: ChannelGateway | None = None
        self._opened = asyncio.Event()
        self._tasks = Tasks()

    @property
    def is_open(self) -> bool:
        """True while requests are taken."""
        return self._gateway is not None

    async def wait_until_open(self, timeout_s: float) -> None:
        """Wait until requests are taken, at most for so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._opened.wait()

    @property
    def gateway(self) -> ChannelGateway:
        """The gateway of the agent. Raise ConnectionError while it does not run."""
        if self._gateway is None:
            raise ConnectionError(f"{self.agent} does not run at the moment")
        return self._gateway

    async def open(self, gateway: ChannelGateway) -> None:
        """Take requests from now on."""
        self._gateway = gateway
        self._opened.set()

    async def close(self) -> None:
        """Take no more requests, and end the replies that are read."""
        self._gateway = None
        self._opened.clear()
        for reply in list(self.replies.values()):
            reply.interrupt("the platform stops, and goes on after its next start")
        await self._tasks.cancel()

    def open_reply(self, caller: Caller, request_id: UUID, *, waits: bool) -> DoorReply:
        """Return a reply whose events are delivered from now on."""
        reply = DoorReply(self, caller, request_id, waits=waits)
        self.replies[reply.address] = reply
        return reply

    def forget(self, reply: DoorReply) -> None:
        """Deliver no more events to a reply."""
        self.replies.pop(reply.address, None)

    def find_replies(self, owner: str, request_id: UUID) -> list[DoorReply]:
        """Return the replies to a request of a caller that are read."""
        return [reply for reply in self.replies.values() if (reply.caller.address, reply.request_id) == (owner, request_id)]

    async def repeat(self, reply: DoorReply) -> bool:
        """Deliver the stored reply to an earlier request, and what follows. Return False without such a request."""
        return await self.gateway.repeat_reply(make_request(reply, {}, None, {}), channel=reply.caller.channel)

    # The way back

    def send(self, messages: Sequence[OutboundMessage]) -> None:
        """Deliver events to those who read them. All count as delivered: who comes later fetches the stored reply."""
        for message in messages:
            fields = from_json(message.content)
            event = DoorEvent(fields["type"], fields["data"])
            if (reply := self.replies.get(message.recipient)) is not None:
                reply.put(event, getsizeof(message.content))
                if reply.caller.is_person:  # a question was shown, and its answer may be a text
                    message.on_written()
            message.acknowledge()
            if event.type in ANSWERED:
                self._go_on(bare_jid(message.recipient), UUID(fields["request"]))

    def _go_on(self, owner: str, request_id: UUID) -> None:
        """Fetch the reply for those who wait since before a person was asked, by another address."""
        for reply in self.find_replies(owner, request_id):
            if reply.is_parked:
                reply.is_parked = False
                self._tasks.start(self._repeat_after_question(reply))

    async def _repeat_after_question(self, reply: DoorReply) -> None:
        try:
            is_known = await self.repeat(reply)
        except (ConnectionError, StoreError):
            is_known = False
        if not is_known:
            reply.interrupt("the answer cannot be read at the moment")

    def make_encoder(
        self, incoming: InboundRequest, key: UUID, options: PresentationOptions = PLAIN_PRESENTATION
    ) -> ReplyEncoder:
        return DoorEncoder(incoming, key)

    def load_message(self, content: str) -> OutboundMessage:
        return OutboundMessage(from_json(content)["to"], content)


def make_request(
    reply: DoorReply,
    payload: dict[str, Any],
    thread: str | None,
    metadata: Mapping[str, Any],
    request: AgentRequest | None = None,
) -> InboundRequest:
    """Return a request for the gateway, whose events go to `reply`."""
    context = RequestContext(wants_thoughts=True, traceparent=TRACEPARENT.get(), account=reply.caller.account)
    if request is not None:
        context = context._replace(
            root_request_id=request.root_request_id,
            parent_request_id=request.parent_request_id,
            capabilities=request.capabilities,
        )
    return InboundRequest(
        reply.caller.kind,
        reply.address,
        str(reply.request_id),
        thread,
        payload,
        f"{thread}\n{to_json(payload).decode()}",
        dict(metadata),
        PROGRAM_HEADERS,
        request_id=reply.request_id,
        context=context,
        owner=reply.caller.address,
    )


def make_refusal(text: str, code: ErrorCode, retry_after_s: float) -> DoorEvent:
    """Return the event of a request that is refused."""
    return DoorEvent(*event_data(Refused(text, code, retry_after_s), UUID(int=0)))


NOT_STORED = make_refusal("the request cannot be stored", ErrorCode.UNAVAILABLE, 5.0)
"""The event of a request that the database has not stored."""
