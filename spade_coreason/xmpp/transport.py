"""The port of the runtime on XMPP: stanzas are decoded for the gateway, and replies, requests and notices encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID
from xml.etree.ElementTree import Element, fromstring

from ..contracts import AgentRequest
from ..domain.channel_kinds import DEFAULT_CHANNEL
from ..domain.jid import bare_jid
from ..domain.messages import NO_CONTEXT, InboundMessage, InboundRequest, MalformedRequest, RequestContext, map_requests
from ..exceptions import RequestTooLongError
from ..runtime import (
    PLAIN_PRESENTATION,
    AgentNetwork,
    ChannelGateway,
    ClientFeatures,
    OutboundMessage,
    PresentationOptions,
    ReplyEncoder,
    SendMessages,
    UnknownClientFeatures,
)
from .codec import (
    ChatEncoder,
    CloudEventEncoder,
    GroupchatEncoder,
    Receiver,
    RequestMessage,
    SpadeEncoder,
    decode,
    encode_displayed,
    encode_malformed_reply,
    encode_notice,
    encode_receipt,
    read_events,
    read_reply_json,
    retraction_stanza,
)

if TYPE_CHECKING:
    from ..runtime import InboundGateway
    from ..storage import Commit

MAX_REQUEST_BYTES = 250_000
"""Largest size of a request on the wire, in bytes. Servers accept stanzas of 262,144 bytes by default."""
_NO_FEATURES = UnknownClientFeatures()


def encoder_for(
    incoming: InboundRequest, key: UUID, agent: str, stanza_bytes: int, options: PresentationOptions = PLAIN_PRESENTATION
) -> ReplyEncoder:
    """Return the encoder of replies to a request that was sent to the bare JID `agent`.

    None of its stanzas exceeds `stanza_bytes`. `options` apply to replies to a person.
    """
    kind = incoming.kind
    if kind.is_program:
        return CloudEventEncoder(incoming, key, agent, stanza_bytes)
    if kind.is_room:
        return GroupchatEncoder(incoming, key, stanza_bytes)
    if kind.is_human:
        return ChatEncoder(incoming, key, stanza_bytes, options)
    return SpadeEncoder(incoming, key, stanza_bytes)


class XmppTransport:
    """The ports of the agent `jid` (a bare JID) on XMPP: `Channel`, `RequestSender` and `NoticeSender`.

    `send` passes stanzas on in order. No stanza of a reply exceeds `stanza_bytes`. `is_room` tells the rooms in which
    the agent is.
    """

    def __init__(
        self,
        jid: str,
        send: SendMessages,
        stanza_bytes: int,
        client_features: ClientFeatures = _NO_FEATURES,
        is_room: Callable[[str], bool] = lambda address: False,
    ) -> None:
        self._jid = bare_jid(jid)
        self._stanza_bytes = stanza_bytes
        self.send = send
        self.client_features = client_features
        self._is_room = is_room

    @property
    def network(self) -> AgentNetwork:
        """The network of an agent that is on XMPP only."""
        return AgentNetwork({DEFAULT_CHANNEL: self}, self, self)

    async def open(self, gateway: ChannelGateway) -> None:
        """Do nothing: the owner of the connection opens it, and receives what comes."""

    async def close(self) -> None:
        """Do nothing: the owner of the connection closes it."""

    def make_encoder(
        self, incoming: InboundRequest, key: UUID, options: PresentationOptions = PLAIN_PRESENTATION
    ) -> ReplyEncoder:
        return encoder_for(incoming, key, self._jid, self._stanza_bytes, options)

    def is_room(self, address: str) -> bool:
        return self._is_room(address)

    def load_message(self, content: str) -> OutboundMessage:
        return OutboundMessage(fromstring(content).get("to", ""), content)

    def encode_receipt(self, incoming: InboundRequest) -> OutboundMessage:
        return OutboundMessage(incoming.reply_address, encode_receipt(incoming))

    def encode_displayed(self, incoming: InboundRequest) -> OutboundMessage:
        return OutboundMessage(incoming.reply_address, encode_displayed(incoming))

    def encode_malformed_reply(self, message: MalformedRequest) -> list[OutboundMessage]:
        if message.is_text:
            return [self.encode_notice(message.sender, message.problem)]
        stanzas = encode_malformed_reply(message, self._jid, self._stanza_bytes)
        return [OutboundMessage(message.sender, stanza) for stanza in stanzas]

    def encode_notice(self, person: str, text: str, choices: Sequence[tuple[str, str]] = ()) -> OutboundMessage:
        return OutboundMessage(person, encode_notice(person, text, choices))

    def encode_request(
        self,
        to: str,
        request: AgentRequest,
        thread: str | None,
        context: RequestContext = NO_CONTEXT,
        *,
        reads_batches: bool = False,
    ) -> RequestMessage:
        """Encode a request. The stanza has the id of the request, so that a bounce names it; the id of the session is not sent.

        `RequestTooLongError` if its JSON and 1 KiB have more than `stanza_bytes`.
        """
        message = RequestMessage(
            to,
            _dump_request(request),
            source=f"xmpp:{self._jid}",
            thread=thread,
            stanza_id=str(request.request_id),
            context=context,
            reads_batches=reads_batches,
        )
        if size := message.find_excess(self._stanza_bytes):
            raise RequestTooLongError(bare_jid(to), size, self._stanza_bytes)
        return message

    def encode_retraction(self, to: str, request_id: str) -> OutboundMessage:
        return OutboundMessage(to, retraction_stanza(to, request_id))


def _dump_request(request: AgentRequest) -> dict[str, Any]:
    """Return a request without its session, as its `dump` does, with values that JSON is made of later."""
    dumped: dict[str, Any] = {"request_id": request.request_id, "root_request_id": request.root_request_id}
    if request.parent_request_id is not None:
        dumped["parent_request_id"] = request.parent_request_id
    dumped["created_at"], dumped["payload"] = request.created_at, request.payload
    if request.capabilities is not None:
        dumped["capabilities"] = request.capabilities.dump()
    dumped["metadata"] = request.metadata
    return dumped


def receive_stanza(
    gateway: InboundGateway, receiver: Receiver, stanza: Element, *, is_replay: bool = False, is_archived: bool = False
) -> Commit[bool] | None:
    """Decode a `<message/>` to our account `receiver` and pass it to the gateway of the agent.

    `is_replay` is True if the server repeats it after a resumption (XEP-0198), `is_archived` if it was fetched from what the
    server keeps for the agent. Once the returned commit, if any, is done, the message may be acknowledged.
    """
    message = decode(stanza, receiver)
    return gateway.receive(map_requests(message, mark_as_replay) if is_replay else message, is_archived=is_archived)


async def receive_archived_stanza(gateway: InboundGateway, receiver: Receiver, stanza: Element) -> Commit[bool] | None:
    """Decode a `<message/>` from the archive of our account `receiver` (XEP-0313) and pass it to the gateway of the agent."""
    return await gateway.receive_archived(decode(stanza, receiver))


def read_local(message: OutboundMessage, receiver: Receiver, sender: str) -> InboundMessage:
    """Read a message from `sender` (a full JID), an agent of this process, as `decode` reads its stanza.

    What agents say to each other nearly always is JSON, and read as such.
    """
    if isinstance(message, RequestMessage):
        return message.read(sender)
    if (text := read_reply_json(message.content)) is not None:
        return read_events(text, sender)
    return decode(parse_stanza(message, sender), receiver)


def parse_stanza(message: OutboundMessage, sender: str) -> Element:
    """Parse the stanza of a message from `sender` (a full JID) as its recipient gets it."""
    stanza = fromstring(f"<stream xmlns='jabber:client'>{message.content}</stream>")[0]  # it has the namespace of its stream
    stanza.set("from", sender)
    return stanza


def mark_as_replay(request: InboundRequest) -> InboundRequest:
    """Return a request with the evidence that the server repeats it."""
    return replace(request, evidence=request.evidence._replace(is_replay=True))
