"""The ports between the runtime and networks: a channel for each request, requests to other agents, notices to people.

The runtime knows requests and the events of a turn. A `Channel` makes messages of its own form of them, which the runtime
sends and stores without reading them. `xmpp/transport.py` has the ports on XMPP. Connections import this module, so it must not
load the storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from ..contracts import AgentRequest, DataBlock, UserErrorBlock
from ..domain.messages import NO_CONTEXT, InboundMessage, InboundRequest, MalformedRequest, RequestContext, TurnEvent
from ..domain.value import value

if TYPE_CHECKING:
    from ..storage import Commit


@dataclass(slots=True, eq=False)
class OutboundMessage:
    """A message on its way out: its recipient, and its content in the form of the network.

    The connection calls `acknowledge` when the server has the message, or when it cannot learn that.
    """

    recipient: str
    """The address: a bare JID or a full one."""
    content: str
    is_last: bool = False
    """True for the last message of a reply."""
    is_acknowledged: bool = False
    on_acknowledged: Callable[[], None] | None = None
    on_refused: Callable[[str], None] | None = None
    """The function that is called instead of `on_acknowledged`, with the reason, if the network will never deliver it."""
    on_written: Callable[[], object] = bool
    """The function that is called each time the message is handed to a stream. `bool`, the cheapest one, does nothing."""

    def refuse(self, reason: str) -> None:
        """Mark the message as one that the network will never deliver."""
        if self.on_refused is not None:
            self.on_acknowledged = None
            self.on_refused(reason)
        self.acknowledge()

    def acknowledge(self) -> None:
        """Mark the message as received by the server, and call `on_acknowledged` once."""
        self.is_acknowledged = True
        if self.on_acknowledged is not None:
            self.on_acknowledged()
            self.on_acknowledged = None


SendMessages: TypeAlias = Callable[[Sequence[OutboundMessage]], object]
"""A function that sends messages in order and never fails. True: earlier ones to the same recipient still wait to be sent."""


RequestState: TypeAlias = Literal["running", "waiting", "answered", "closed"]
"""The state of a request: it is queued or runs, waits for a person's answer, has its reply, or has ended without a turn."""


@value
class PresentationOptions:
    """The features that a person's devices support during one turn, and the content that the person wants to see."""

    has_live_messages: bool = False
    """True if all devices of the person show corrections, so that a message can grow."""
    find_chained_device: Callable[[], str | None] = lambda: None
    """Return the person's current device where each correction must name the version before it; None without one."""
    is_rerun: bool = False
    """True if the turn ran before, and part of its reply may have been sent."""
    shows_thoughts: bool = False
    """True if the person wants to read thoughts."""
    shows_steps: bool = False
    """True if the person wants to read which tools are used."""
    has_replies: bool = False
    """True if the device that asked shows replies."""


PLAIN_PRESENTATION = PresentationOptions()
NO_CHAINED_DEVICE = PLAIN_PRESENTATION.find_chained_device


class ReplyEncoder(Protocol):
    """The encoder of one reply: it turns the events of a turn into messages to the sender of the request.

    The ids of its messages derive from the inbox key of the request, so that a reply sent twice is recognised.
    """

    key: str
    """The inbox key of the request, as text."""
    recipient: str
    """The address of all its messages."""
    shows_typing: bool
    """True if the recipient is shown that the agent is writing."""
    has_live_messages: bool
    """True if a stream is shown as a message that grows."""
    follows_streams: bool
    """True if it takes the chunks of a stream as they come. Otherwise it takes the whole stream at its end."""
    shows_files: bool
    """True if the recipient is a person: a long text may be sent as a file, and a link shows the file behind it."""
    batches: bool
    """True if events are collected, and their messages come from `flush`."""

    shows_thoughts: bool
    """True if thoughts are shown to the recipient."""
    shows_steps: bool
    """True if those with the title `STEP_TITLE` are."""

    def encode(self, event: TurnEvent) -> list[str]:
        """Encode an event as the contents of messages.

        The list is empty while it waits for more events, or if it is not for the recipient.
        """
        ...

    def flush(self) -> list[str]:
        """Encode the events that wait for more events, if the encoder `batches`."""
        return []

    def readdress(self, content: str, recipient: str) -> str:
        """Return a message to a program, which was encoded here, for another recipient."""
        ...

    def render_block(self, block: DataBlock | UserErrorBlock) -> str:
        """Render a block as a person reads it, if the encoder `shows_files`."""
        return ""

    def preview(self, text: str, *, is_markdown: bool) -> str:
        """Return the beginning of a long text as a person reads it, before the link to the whole, if it `shows_files`."""
        return text

    def encode_update(self, stream_id: str) -> list[str]:
        """Encode the current text of a stream, if it has grown and the encoder `has_live_messages`.

        These messages are transient and must not be stored.
        """
        return []

    def encode_composing(self) -> str | None:
        """Encode "typing…"; None unless the encoder `shows_typing`."""
        return None

    def encode_paused(self) -> str | None:
        """Encode the end of "typing…" if no reply follows; None if it was not shown."""
        return None

    def encode_cancelled(self) -> list[str]:
        """Encode the end of a cancelled reply. The list is empty unless part of the reply was shown."""
        return []


def encode_reply(encoder: ReplyEncoder, *events: TurnEvent) -> list[OutboundMessage]:
    """Encode events as the messages of a reply."""
    contents = [content for event in events for content in encoder.encode(event)] + encoder.flush()
    return [OutboundMessage(encoder.recipient, content) for content in contents]


class ClientFeatures(Protocol):
    """The features of the clients of people. It is asked in every turn, so no method waits."""

    def has_corrections(self, person: str) -> bool:
        """Return True if all clients of a person (a bare JID) show corrections (XEP-0308), so that a stream can grow there."""
        ...

    def has_replies(self, device: str) -> bool:
        """Return True if a client (a full JID) shows replies (XEP-0461)."""
        ...

    def find_chained_device(self, person: str) -> str | None:
        """Return the resource of a person's only client, if that accepts corrections of the previous version only."""
        ...


class UnknownClientFeatures:
    """The features without any knowledge of clients: messages only."""

    def has_corrections(self, person: str) -> bool:
        """Return False: not known."""
        return False

    def has_replies(self, device: str) -> bool:
        """Return False: not known."""
        return False

    def find_chained_device(self, person: str) -> str | None:
        """Return None: not known."""
        return None


class ChannelGateway(Protocol):
    """The entry of an agent, as its channels use it (`InboundGateway`)."""

    def receive(self, message: InboundMessage, *, channel: str) -> Commit[bool] | None:
        """Receive a message by the channel of a name. Once the commit, if any, is done, it is stored."""
        ...

    async def repeat_reply(self, incoming: InboundRequest, *, channel: str) -> bool:
        """Send the reply to an earlier request once more, by the channel of a name. Return False if there is none."""
        ...

    async def find_state(self, owner: str, request_id: UUID, *, channel: str) -> RequestState | None:
        """Return the state of a program's request of `owner` (a bare JID), by the channel of a name. None without one."""
        ...

    def cancel_request(self, owner: str, request_id: UUID) -> Commit[Any] | None:
        """Cancel a program's request of `owner` (a bare JID). Return its commit; None if there is no such open request."""
        ...

    def is_allowed(self, jid: str) -> bool:
        """Return True if `jid` may talk to the agent."""
        ...


class Channel(Protocol):
    """The way back of a request, for one agent. It serves all requests that name it, of one kind or several (`ChannelKind`).

    A channel decodes what comes in and passes it to the gateway that `open` gets, with its name. The gateway binds the request
    to that name, and the inbox stores it, so that a reply finds its way also after a restart. Only `open` and `close` wait, and
    only `open` may fail. A subclass has to define `send`, `make_encoder` and `load_message`.
    """

    client_features: ClientFeatures = UnknownClientFeatures()

    async def open(self, gateway: ChannelGateway) -> None:
        """Begin to pass what comes in to the gateway of the agent. If this raises, the agent does not start.

        It is called at each start of the agent, once stored requests run and stored replies are sent.
        """

    async def close(self) -> None:
        """Pass nothing more to the gateway.

        It is called at the stop of the agent, when its turns have ended, and when a start has failed. The channel may not be
        open then, and it may be opened again later. It has ten seconds (`RunnerTimings.shutdown_s`), and is left after that.
        """

    def send(self, messages: Sequence[OutboundMessage]) -> object:
        """Send messages in order, as `SendMessages`.

        A channel that pushes them acknowledges each when the other side has it; until then they are sent again after a restart.
        A channel whose replies are fetched may acknowledge the reply of a turn at once: the inbox has the turn for seven days.
        A reply without a turn, such as a refusal or the result of a command, is gone when it is acknowledged.
        """
        ...

    def make_encoder(
        self, incoming: InboundRequest, key: UUID, options: PresentationOptions = PLAIN_PRESENTATION
    ) -> ReplyEncoder:
        """Return the encoder of the reply to a request. `options` apply to replies to a person."""
        ...

    def load_message(self, content: str) -> OutboundMessage:
        """Return a message from its stored content."""
        ...

    def is_room(self, address: str) -> bool:
        """Return True if an address (a bare JID) is that of a room in which the agent is."""
        return False

    def encode_receipt(self, incoming: InboundRequest) -> OutboundMessage | None:
        """Encode that a request has arrived, for one that `wants_receipt`."""
        return None

    def encode_displayed(self, incoming: InboundRequest) -> OutboundMessage | None:
        """Encode that a request was read, for one that `wants_displayed_marker`."""
        return None

    def encode_malformed_reply(self, message: MalformedRequest) -> list[OutboundMessage]:
        """Encode the reply to a message that is no request, though it was meant as one.

        If it `is_text`, its problem is a text for the person who sent it, in their language.
        """
        return []


class RequestSender(Protocol):
    """The port for requests to other agents. No method waits or fails, except as it says."""

    send: SendMessages
    """Send messages in order. They wait while there is no connection."""

    def encode_request(
        self,
        to: str,
        request: AgentRequest,
        thread: str | None,
        context: RequestContext = NO_CONTEXT,
        *,
        reads_batches: bool = False,
    ) -> OutboundMessage:
        """Encode a request to another agent. `RequestTooLongError` if the network does not carry that much.

        If the agent `reads_batches`, the request may travel in one message with others.
        """
        ...

    def encode_retraction(self, to: str, request_id: str) -> OutboundMessage:
        """Encode that a request to another agent is taken back."""
        ...


class NoticeSender(Protocol):
    """The port for messages to people that answer no request. No method waits or fails."""

    send: SendMessages
    """Send messages in order. They wait while there is no connection."""

    def encode_notice(self, person: str, text: str, choices: Sequence[tuple[str, str]] = ()) -> OutboundMessage:
        """Encode a message to a person (a bare JID). `choices` are offered answers: value and label."""
        ...


class AgentNetwork(NamedTuple):
    """The ports of one agent."""

    channels: Mapping[str, Channel]
    """The channels by which requests come, by name."""
    requests: RequestSender
    notices: NoticeSender
