"""Tests of agents: the runner of the platform without a network.

```python
async def test_it_remembers_the_city():
    async with AgentTester(weather) as t:
        await t.ask("Berlin")
        assert "Berlin" in (await t.ask("")).text
```

A person's client can do more than send texts:

```python
async def test_a_reply_goes_on_where_the_answer_was():
    async with AgentTester(weather, client_features={"replies"}) as t:
        question = t.send("Berlin?", thread="travel")
        answer = await t.message()  # a ReceivedMessage: id, text, thread, reply_to, …
        assert answer.reply_to == question
        t.send("and tomorrow?", reply_to=answer.id)
        assert (await t.message()).thread == "travel"
        t.react(answer.id, "👍")
```

Time passes when the test says so, and what is due comes at its time:

```python
async def test_it_reminds_each_morning():
    async with AgentTester(weather) as t:
        await t.say("tell me each morning at 8")
        await t.advance(timedelta(days=2))  # all that is due has been sent when this returns
        assert t.unread() == ["Berlin: sunny", "Berlin: sunny"]
        assert [each.state for each in await t.notifications()] == ["sent", "sent"]
```

People answer what an agent asks them, and decide about what needs an approval:

```python
async def test_a_refund_needs_the_approval_of_somebody_else():
    policy = Policy(operators=frozenset({"boss@localhost"}))
    async with AgentTester(refunds, policy=policy) as t:
        await t.say("refund order 7")
        [question] = await t.questions()
        assert question.text == "refund([7])"
        await t.approve()  # as boss@localhost, the only one who was asked
        assert t.unread() == ["Order 7 is refunded."]
```

A FakeModel plays the language model of an agent:

```python
async def test_it_looks_up_the_price():
    model = FakeModel([tool_call("price", item="rye"), "Rye is 3 €."])
    async with AgentTester(Bakery, model=model) as t:
        assert await t.say("What is rye?") == ["Rye is 3 €."]
    assert model.requests[1].tool_results == ["3 €"]
```
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from mimetypes import guess_type
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias
from urllib.parse import quote
from uuid import UUID, uuid4
from xml.etree.ElementTree import Element, SubElement, fromstring

from pydantic_core import from_json, to_json

from .contracts import Agent, AgentDefinition, AgentRequest, ConversationRecord, Notification, QuestionState, Schedule
from .contracts.times import utc_now
from .domain.access import AccessPolicy, TrustedAgents
from .domain.channel_kinds import DEFAULT_CHANNEL
from .domain.jid import bare_jid
from .domain.messages import Bounce, InboundRequest, MalformedRequest, RequestContext
from .domain.policy import Keep, PlatformLimits, Policy, Retention, RetentionStates, Rules, RunnerTimings
from .domain.questions import ApprovalPolicy
from .exceptions import ConfigError, PeerError
from .llm import FakeFailure, FakeModel, FakeReply, FakeToolCall, ModelRequest, Reply, error, stream, tool_call
from .memory import AgentInteractionMemory, Embedder, MemoryLimits, MemoryRows, Summariser, TokenCounter
from .runtime import (
    PLAIN_PRESENTATION,
    AgentParts,
    AgentRules,
    AgentRuntime,
    Channel,
    ChannelGateway,
    ClientFeatures,
    FetchedFile,
    Files,
    InboundGateway,
    InterceptorSource,
    OnConversationEnd,
    OpenRequests,
    OutboundMessage,
    PeerAnswer,
    PeerEvent,
    PeerOptions,
    PersonMessage,
    PlatformDirectory,
    PresentationOptions,
    Progress,
    ReplyEncoder,
    Runner,
    SendMessages,
    UnknownClientFeatures,
    UploadFile,
    UploadWarnings,
    build_agent,
    collect_answer,
    fetch,
    make_interceptor,
    to_request,
)
from .storage import DELIVERY, AgentRepository, Database, StoredAgent, from_micros, open_database, to_notification
from .xmpp import (
    BODY,
    CHAT_STATES,
    CHAT_STATES_NAMESPACE,
    CORRECTION_NAMESPACE,
    DISPLAYED,
    JSON,
    MAX_REQUEST_BYTES,
    MESSAGE,
    OOB,
    OOB_URL,
    REACTIONS_NAMESPACE,
    REPLACE,
    REPLY,
    REPLY_MARKER,
    REPLY_NAMESPACE,
    RESPONSE,
    RETRACT_NAMESPACE,
    THREAD,
    CloudEventEncoder,
    EventWriter,
    Receiver,
    StyledEncoder,
    XmppTransport,
    decode,
    encode_malformed_reply,
    escape,
    escape_attribute,
    parse_stanza,
    read_events,
    read_local,
    read_text,
)

_CHANNEL = "tester"
"""The name of the channel. The inbox stores it."""
_UNAVAILABLE = "service-unavailable"


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as a person received it. Attributes that the message lacks are None."""

    id: str
    sender: str
    """The bare JID of the sender."""
    thread: str | None = None
    text: str | None = None
    """The text; None if the message only shows typing, or is a receipt or a marker."""
    reply_to: str | None = None
    """The id of the person's message that this one replies to (XEP-0461)."""
    corrects: str | None = None
    """The id of the agent's message whose text this one replaces (XEP-0308)."""
    link: str | None = None
    """The link to a file that clients show in place of the message (XEP-0066)."""
    state: str | None = None
    """A chat state (XEP-0085): "active", "composing", "paused", "inactive" or "gone"."""
    displayed: str | None = None
    """The id of the person's message that the agent has started to work on (XEP-0333)."""
    choices: tuple[tuple[str, str], ...] = ()
    """The offered answers (XEP-0439): pairs of value and label."""
    json: str | None = None
    """The JSON of a message between programs (XEP-0335), such as the events of a reply to `ask`."""
    error: str | None = None
    """The condition of the error, if an own message came back (RFC 6120, 8.3.3), such as "service-unavailable"."""
    stanza: Element | None = field(default=None, repr=False, compare=False)
    """The `<message/>` that was received; None for a reply to `ask`, `say` or `stream`, which is none."""

    @property
    def xml(self) -> Element:
        """The whole `<message/>`: the stanza, or else one that is made of the other attributes whenever it is read."""
        if self.stanza is not None:
            return self.stanza
        message = Element(MESSAGE, {"from": self.sender, "id": self.id, "type": "error" if self.error else "chat"})
        for tag, text in ((BODY, self.text), (THREAD, self.thread), (JSON, self.json)):
            if text is not None:
                SubElement(message, tag).text = text
        for tag, ident in ((REPLY, self.reply_to), (REPLACE, self.corrects)):
            if ident is not None:
                SubElement(message, tag, id=ident)
        if self.link is not None:
            SubElement(SubElement(message, OOB), OOB_URL).text = self.link
        if self.state is not None:
            SubElement(message, f"{{{CHAT_STATES_NAMESPACE}}}{self.state}")
        for value, label in self.choices:
            SubElement(message, RESPONSE, value=value, label=label)
        SubElement(message, REPLY_MARKER)
        return message

    @classmethod
    def read(cls, xml: Element) -> ReceivedMessage:
        """Read a `<message/>`."""
        reply, replace_element, displayed = (xml.find(tag) for tag in (REPLY, REPLACE, DISPLAYED))
        return cls(
            id=xml.get("id", ""),
            sender=bare_jid(xml.get("from", "")),
            thread=xml.findtext(THREAD),
            text=xml.findtext(BODY),
            reply_to=reply.get("id") if reply is not None else None,
            corrects=replace_element.get("id") if replace_element is not None else None,
            link=xml.findtext(f"{OOB}/{OOB_URL}"),
            state=next((child.tag.rpartition("}")[2] for child in xml if child.tag in CHAT_STATES), None),
            displayed=displayed.get("id") if displayed is not None else None,
            choices=tuple((each.get("value", ""), each.get("label", "")) for each in xml.iterfind(RESPONSE)),
            json=xml.findtext(JSON),
            stanza=xml,
        )


_Item: TypeAlias = OutboundMessage | InboundRequest | MalformedRequest | Bounce | ReceivedMessage
"""A message on its way: one of XMPP, or a value. Requests of `ask`, `say` and `stream` and the replies to them are values."""
_Receive: TypeAlias = Callable[[_Item, str], object]
"""A function that receives a message from a full JID."""


class LocalNetwork:
    """A network in memory that delivers messages in the order in which they are sent.

    What agents say to each other is handed over as JSON text, as between the agents of one platform (`xmpp/local_exchange.py`).
    Messages for a JID that is detached are stored.
    """

    def __init__(self) -> None:
        self._receivers: dict[str, _Receive] = {}
        self._undelivered: dict[str, list[tuple[_Item, str]]] = {}
        self.in_flight_count = 0
        """The number of messages that were sent and have not arrived."""

    def attach(self, jid: str, receive: _Receive) -> None:
        """Deliver messages for this JID to `receive`, beginning with those that were stored for it.

        A full JID gets what is sent to it alone, a bare one the rest.
        """
        self._receivers[jid] = receive
        for item, sender in self._undelivered.pop(jid, []):
            receive(item, sender)

    def is_attached(self, jid: str) -> bool:
        """Return True if messages for this full or bare JID have a receiver."""
        return self._find_receiver(jid) is not None

    def detach(self, jid: str) -> None:
        """Store messages for this bare JID until it is attached again."""
        self._receivers.pop(jid, None)
        self._undelivered.setdefault(jid, [])

    def send(self, sender: str, recipient: str, item: _Item) -> None:
        """Send a message from a full JID."""
        self.in_flight_count += 1
        asyncio.get_running_loop().call_soon(self._deliver, sender, recipient, item)

    def build_sender(self, jid: str) -> SendMessages:
        """Return the function through which a full JID sends messages of XMPP."""

        def send(messages: Sequence[OutboundMessage]) -> None:
            for message in messages:
                self.send(jid, message.recipient, message)
                message.on_written()
                message.acknowledge()

        return send

    async def wait_until_delivered(self) -> None:
        """Wait until all messages sent before have arrived."""
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()
        loop.call_soon(arrived.set_result, None)  # messages arrive in the order in which they were sent
        await arrived

    def _deliver(self, sender: str, recipient: str, item: _Item) -> None:
        self.in_flight_count -= 1
        if (receive := self._find_receiver(recipient)) is not None:
            receive(item, sender)
        elif (stored := self._undelivered.get(bare_jid(recipient))) is not None:
            stored.append((item, sender))
        elif (receive := self._find_receiver(sender)) is not None and (bounce := _bounce(item, sender, recipient)) is not None:
            receive(bounce, recipient)

    def _find_receiver(self, address: str) -> _Receive | None:
        return self._receivers.get(address) or self._receivers.get(bare_jid(address))


def _bounce(item: _Item, sender: str, recipient: str) -> Bounce | None:
    """Return the error for a message without a receiver. None if it is itself an error."""
    message = ReceivedMessage.read(parse_stanza(item, sender)) if isinstance(item, OutboundMessage) else item
    if isinstance(message, ReceivedMessage):
        is_error = message.stanza is not None and message.stanza.get("type") == "error"
        return None if is_error else Bounce(recipient, message.id, _UNAVAILABLE, "")
    return Bounce(recipient, message.stanza_id, _UNAVAILABLE, "")


class LocalPersonEncoder(StyledEncoder):
    """Encoder of replies to `say`: each message as the attributes of a `ReceivedMessage`, in JSON."""

    def write(self, message: PersonMessage) -> str:
        fields = {
            "to": self.recipient,
            "id": message.id,
            "thread": self._incoming.thread,
            "text": message.text,
            "reply_to": message.is_reply and self._incoming.stanza_id,
            "corrects": message.replaces,
            "link": message.is_link and message.text,
            "state": message.state,
            "choices": [[self.texts.clean(text) for text in choice] for choice in message.choices],
        }
        return to_json({name: attribute for name, attribute in fields.items() if attribute}).decode()


class LocalEventWriter(EventWriter):
    """Writer of replies to `ask` and `stream`: messages as in `LocalPersonEncoder`."""

    def write(self, message_id: str, text: str) -> str:
        return to_json({"to": self.recipient, "id": message_id, "thread": self.thread, "json": text}).decode()

    def readdress(self, content: str, recipient: str) -> str:
        return to_json(from_json(content) | {"to": recipient}).decode()


class LocalChannel(Channel):
    """The channel of `ask`, `say` and `stream` for one agent, with the full JID of the agent. Nothing on it is a stanza."""

    def __init__(self, jid: str, network: LocalNetwork, stanza_bytes: int, client_features: ClientFeatures) -> None:
        self._jid, self._network, self._stanza_bytes = jid, network, stanza_bytes
        self.client_features = client_features

    async def open(self, gateway: ChannelGateway) -> None:
        """Do nothing: the tester passes on what comes in."""

    async def close(self) -> None:
        """Do nothing, as above."""

    def send(self, messages: Sequence[OutboundMessage]) -> None:
        for message in messages:
            fields = from_json(message.content)
            recipient, choices = fields.pop("to"), tuple(map(tuple, fields.pop("choices", ())))
            received = ReceivedMessage(sender=bare_jid(self._jid), choices=choices, **fields)
            self._network.send(self._jid, recipient, received)
            message.on_written()
            message.acknowledge()

    def make_encoder(
        self, incoming: InboundRequest, key: UUID, options: PresentationOptions = PLAIN_PRESENTATION
    ) -> ReplyEncoder:
        if incoming.kind.is_program:
            return CloudEventEncoder(incoming, key, bare_jid(self._jid), self._stanza_bytes, LocalEventWriter)
        return LocalPersonEncoder(incoming, key, self._stanza_bytes, options)

    def load_message(self, content: str) -> OutboundMessage:
        return OutboundMessage(from_json(content)["to"], content)

    def encode_malformed_reply(self, message: MalformedRequest) -> list[OutboundMessage]:
        if message.is_text:
            fields = {"to": message.sender, "id": str(uuid4()), "text": message.problem, "state": "active"}
            contents = [to_json(fields).decode()]
        else:
            contents = encode_malformed_reply(message, bare_jid(self._jid), self._stanza_bytes, LocalEventWriter)
        return [OutboundMessage(message.sender, content) for content in contents]


class PeopleChannel(XmppTransport):
    """The channel of XMPP for one agent. It adds the keys of what the agent sends without being asked to `unasked_keys`."""

    def __init__(
        self, jid: str, send: SendMessages, stanza_bytes: int, client_features: ClientFeatures, unasked_keys: set[str]
    ) -> None:
        super().__init__(jid, send, stanza_bytes, client_features)
        self._unasked_keys = unasked_keys

    def make_encoder(
        self, incoming: InboundRequest, key: UUID, options: PresentationOptions = PLAIN_PRESENTATION
    ) -> ReplyEncoder:
        if incoming.kind.is_due or not incoming.payload:  # a notification answers no request
            self._unasked_keys.add(str(key))
        return super().make_encoder(incoming, key, options)


ClientFeature: TypeAlias = Literal["corrections", "replies"]
"""A feature of a person's client: corrections (XEP-0308), with which a streamed reply grows, or replies (XEP-0461)."""


class LocalClientFeatures(UnknownClientFeatures):
    """The devices of all people. They support `features`, which may change."""

    def __init__(self, features: Set[ClientFeature]) -> None:
        self.features = features

    def has_corrections(self, person: str) -> bool:
        """Return the same for all people."""
        return "corrections" in self.features

    def has_replies(self, device: str) -> bool:
        """Return the same for all devices."""
        return "replies" in self.features


@dataclass(frozen=True, slots=True)
class Question:
    """A question that an agent has asked people, or a call that it wants approved."""

    id: str
    kind: Literal["question", "approval"]
    people: tuple[str, ...]
    """The bare JIDs of those who were asked. One answer counts, the first."""
    text: str
    """The question, or the call with its arguments."""
    choices: tuple[str, ...]
    """The answers to choose from; none for an approval, and if any text is an answer."""
    code: str
    """The code of the answer: `/answer CODE TEXT`, `/approve CODE`, `/deny CODE REASON`."""
    requester: str
    """The bare JID of the person behind the request; "" if it is the agent itself."""
    state: QuestionState
    decided_by: str
    """The bare JID of the person who answered; "" if no one did."""
    expires_at: datetime


class LocalUser:
    """A user who talks to agents, with the open requests of a program and the messages of a person."""

    def __init__(self, jid: str, network: LocalNetwork) -> None:
        self.jid = jid
        self.full_jid = jid if "/" in jid else f"{jid}/test"
        self.requests = OpenRequests()
        self.transport = XmppTransport(jid, network.build_sender(self.full_jid), MAX_REQUEST_BYTES)
        self.messages: list[ReceivedMessage] = []
        """All received messages, oldest first."""
        self._unread: list[ReceivedMessage] = []
        self._arrival = asyncio.Event()
        network.attach(jid, self._receive)

    def pop_texts(self, *source: str | None, without: Set[str] = frozenset()) -> list[str]:
        """Return the unread texts and mark them as read: all of them, or those of one `source` (a sender and a thread).

        `without` has the beginnings of ids (36 characters) of messages that stay unread.
        """
        selected = [
            message
            for message in self._unread
            if (not source or source == (message.sender, message.thread)) and message.id[:36] not in without
        ]
        self._unread = [message for message in self._unread if message not in selected]
        return [message.text for message in selected if message.text is not None]

    async def next(self) -> ReceivedMessage:
        """Return the oldest unread message with a text, waiting for one if necessary, and mark it as read."""
        while not self._unread:
            self._arrival.clear()
            await self._arrival.wait()
        return self._unread.pop(0)

    def _receive(self, item: _Item, sender: str) -> None:
        if isinstance(item, OutboundMessage):
            item = ReceivedMessage.read(parse_stanza(item, sender))
        if isinstance(item, ReceivedMessage):
            received, decoded = item, decode(item.stanza) if item.stanza is not None else read_events(item.json, sender)
        elif isinstance(item, Bounce):
            received, decoded = ReceivedMessage(item.stanza_id, bare_jid(sender), error=item.condition), item
        else:  # of another user
            text = item.payload.get("query") if isinstance(item, InboundRequest) else None
            received, decoded = ReceivedMessage(item.stanza_id, bare_jid(sender), item.thread, text), None
        self.messages.append(received)
        if not self.requests.route(decoded) and received.text is not None:
            self._unread.append(received)
            self._arrival.set()


class TesterClock:
    """The time of a tester: that of `source`, until it is set. Then it stands still between calls of `set`."""

    def __init__(self, source: Callable[[], datetime]) -> None:
        self._source = source
        self.is_set = False

    def __call__(self) -> datetime:
        return self._source()

    def set(self, now: datetime) -> None:
        """Set the time."""
        self._source, self.is_set = lambda: now, True


class LocalFiles:
    """The files that agents uploaded, by link. Other links are fetched from the network."""

    def __init__(self) -> None:
        self.files: dict[str, FetchedFile] = {}
        self._of_people: dict[str, FetchedFile] = {}

    def add(self, name: str, data: bytes) -> str:
        """Store a file of a person and return its link."""
        url = f"https://files.localhost/people/{len(self._of_people) + 1}/{quote(name, safe='')}"
        self._of_people[url] = FetchedFile(url, name, guess_type(name)[0] or "application/octet-stream", data)
        return url

    async def upload(self, name: str, data: bytes, type: str, progress: Progress | None) -> str:
        """Store a file and return its link."""
        url = f"https://files.localhost/{len(self.files) + 1}/{quote(name, safe='')}"
        self.files[url] = FetchedFile(url, name, type, data)
        if progress is not None:
            progress(len(data), len(data))
        return url

    async def fetch(self, url: str, **limits: Any) -> FetchedFile:
        """Return the stored file with this link, or fetch it with `fetch`."""
        stored = self.files.get(url) or self._of_people.get(url)
        return stored if stored is not None else await fetch(url, **limits)


__all__ = [
    "AgentTester",
    "ApprovalPolicy",
    "ClientFeature",
    "Embedder",
    "FakeFailure",
    "FakeModel",
    "FakeReply",
    "FakeToolCall",
    "FetchedFile",
    "Keep",
    "ModelRequest",
    "OnConversationEnd",
    "PlatformLimits",
    "Policy",
    "Question",
    "QuestionState",
    "ReceivedMessage",
    "Reply",
    "Retention",
    "RetentionStates",
    "Rules",
    "RunnerTimings",
    "Summariser",
    "TokenCounter",
    "UploadFile",
    "error",
    "stream",
    "tool_call",
]

_AGENT_RESOURCE = "agent"


class AgentTester:
    """A platform for tests. It runs agents with inbox, sessions and memory, but without a network.

    Data is stored in a temporary directory, which is deleted at the end.

    Use it as an asynchronous context manager: agents start on entry and stop on exit.

    - As a program, call `ask` or `stream`.
    - As a person, call `say`, which waits for the reply, or `send`, `retract` and `react`, which do not wait. Received
      messages are in `messages`; `message` waits for the next one.

    Parameters:
        agent: The agent under test: a class, a factory or an instance. The parameters of its constructor are filled as in a
            configuration. Entry raises ConfigError if they are wrong.
        jid: The bare JID of the agent.
        peers: Further agents, by JID or by name on the agent's domain. `peers.find` finds all agents of the tester.
        topics: The agent that is the topic broker of all others, by JID or by name: `peers={"topics": TopicBroker}` and
            `topics="topics"`. On entry it knows all their subscriptions.
        options: Keyword arguments for the constructor of `agent`.
        manifest: The manifest of `agent`, or its file, as `manifest` of a configuration.
        model: The language model of all agents, or of each by its JID or name. An agent that a mapping leaves out may ask
            nothing. Exit raises AssertionError if a reply is left over. Without a `model`, agents ask the server that their
            options or the environment name.
        policy: The limits and rules of all agents.
        user: The bare JID of the user whom a call does not name.
        allow: The JIDs and domains that may talk to the agents, as in a configuration. By default each agent's own domain.
        clock: The time of conversations, turns, memories, notifications and schedules, by default that of the machine. From
            the first `advance` on it stands still between calls of `advance`. Waits within a turn use real time.
        on_conversation_end: Functions that are called with conversation id and state when a conversation of `agent` ends.
        embedder: The embedder of all agents. The default needs no model.
        summariser: The summariser of all agents. The default needs no model.
        count: The token counter of all agents. The default needs no model.
        database: The address of an empty database (`storage.url`). By default an SQLite file in the temporary directory.
        client_features: The features of all people's clients: "corrections" (a streamed reply grows) and "replies". By
            default clients show texts only.
        upload: `upload(name, data, type, progress)` stores a file of an agent and returns its link, or raises UploadError.
            By default files are stored in `uploaded`.
        interceptors: The interceptors of all agents: instances, or classes and functions that are called once for each
            agent.
    """

    def __init__(
        self,
        agent: Any,
        *,
        jid: str = "agent@localhost",
        peers: Mapping[str, Any] | None = None,
        topics: str | None = None,
        options: Mapping[str, Any] | None = None,
        manifest: AgentDefinition | str | os.PathLike[str] | None = None,
        model: FakeModel | Mapping[str, FakeModel] | None = None,
        policy: Policy | None = None,
        user: str = "tester@localhost",
        allow: tuple[str, ...] | None = None,
        clock: Callable[[], datetime] = utc_now,
        on_conversation_end: tuple[OnConversationEnd, ...] = (),
        embedder: Embedder | None = None,
        summariser: Summariser | None = None,
        count: TokenCounter | None = None,
        database: str | None = None,
        client_features: Set[ClientFeature] = frozenset(),
        upload: UploadFile | None = None,
        interceptors: Sequence[InterceptorSource] = (),
    ) -> None:
        self.jid = jid
        self._manifest = manifest if isinstance(manifest, AgentDefinition) else None
        self._manifest_file = None if manifest is None or isinstance(manifest, AgentDefinition) else Path(manifest)
        self._database_url = database
        self._embedder, self._summariser, self._count_tokens = embedder, summariser, count
        peer_specs = {self._complete_jid(peer): spec for peer, spec in (peers or {}).items()}
        self._agent_specs = {jid: agent, **peer_specs}
        self._topic_broker = None if topics is None else self._complete_jid(topics)
        self._models = self._assign_models(model)
        self._options = {jid: dict(options or {})}
        self._policy = policy or Policy()
        self._user = user
        self._allow = allow
        self._clock = TesterClock(clock)
        self._on_conversation_end = on_conversation_end
        self._users: dict[str, LocalUser] = {}
        self._unasked_keys: set[str] = set()
        self._stack = AsyncExitStack()
        self._directory = Path()
        self._network = LocalNetwork()
        self._files = LocalFiles()
        self._interceptors = interceptors
        self._upload = upload or self._files.upload
        self._devices = LocalClientFeatures(client_features)
        self._database: Database | None = None
        self._platform_directory = PlatformDirectory()
        self._memories: dict[str, AgentInteractionMemory] = {}
        self.runners: dict[str, Runner] = {}
        self.gateways: dict[str, InboundGateway] = {}
        self.runtimes: dict[str, AgentRuntime] = {}
        self.built_agents: dict[str, Agent] = {}

    async def __aenter__(self) -> AgentTester:
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-tester-")))
        try:
            await self._open()
        except BaseException:
            await self._close_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close_all()
        if kind is None:
            for model in self._models.values():
                model.check()

    async def _close_all(self) -> None:
        try:
            await self._close(grace_s=1.0)
        finally:
            await self._stack.aclose()

    @property
    def agent(self) -> Agent:
        """The agent under test, as it was built."""
        return self.built_agents[self.jid]

    async def ask(
        self,
        request: AgentRequest | Mapping[str, Any] | str,
        *,
        thread: str | None = None,
        user: str | None = None,
        to: str | None = None,
        timeout: float = 10.0,
    ) -> PeerAnswer:
        """Send a request as a program, wait for the complete reply and return it.

        `request` is an AgentRequest, a payload or a text. `user` and `to` are bare JIDs; by default they are the tester's
        user and the agent under test. A full JID is one device of a user, with messages of its own.
        The reply must be complete after `timeout` seconds. Its events include thoughts.

        Raise a PeerError if the request is not successful: PeerTimeoutError, PeerUnavailableError, PeerRefusedError,
        RequestTooLongError, PeerFailedError, or PeerParkedError if the agent has asked a person. Its reply comes if the same
        AgentRequest is asked again once they have answered.
        """
        to = to or self.jid
        events = [event async for event in self.stream(request, thread=thread, user=user, to=to, timeout=timeout)]
        return collect_answer(to, events)

    async def stream(
        self,
        request: AgentRequest | Mapping[str, Any] | str,
        *,
        thread: str | None = None,
        user: str | None = None,
        to: str | None = None,
        timeout: float = 10.0,
    ) -> AsyncIterator[PeerEvent]:
        """Send a request as a program, and yield the events of the reply as they arrive.

        The parameters and errors are those of `ask`.
        """
        sender = self._local_user(user)
        agent_request = to_request(request)
        context = RequestContext(accepts_batches=True, wants_thoughts=True)
        to, request_id = to or self.jid, str(agent_request.request_id)
        item = sender.transport.encode_request(to, agent_request, thread, context).read(sender.full_jid)
        send = partial(self._network.send, sender.full_jid, to, item)
        try:
            async for event in sender.requests.events(to, request_id, timeout, send):
                yield event
        except PeerError:
            self._raise_model_problem()
            raise
        self._raise_model_problem()

    async def say(
        self, text: str, *, thread: str | None = None, user: str | None = None, to: str | None = None, timeout: float = 10.0
    ) -> list[str]:
        """Send a text as a person, wait for the end of its turn, and return the texts of the reply.

        They have the marks of a chat (XEP-0393): `**bold**` of the agent's Markdown is `*bold*`. The list is empty if the
        agent sends no text. If the agent asks a person, it has what was said so far; the rest is unread once they have
        answered. Notifications, reminders and results of jobs are no reply: they stay unread. Raise TimeoutError after
        `timeout` seconds.
        """
        person, to = self._local_user(user), to or self.jid
        if (request := read_text(text, person.full_jid, str(uuid4()), thread)) is not None:
            self._network.send(person.full_jid, to, request)
        async with asyncio.timeout(timeout):
            await self._network.wait_until_delivered()
            if to in self.runners:
                await self.runners[to].mailboxes.wait_until_idle(person.jid, thread)
            await self._network.wait_until_delivered()
        self._raise_model_problem()
        return person.pop_texts(to, thread, without=self._unasked_keys)

    def send(
        self,
        text: str,
        *,
        id: str | None = None,
        thread: str | None = None,
        reply_to: str | None = None,
        corrects: str | None = None,
        extra: str = "",
        user: str | None = None,
        to: str | None = None,
    ) -> str:
        """Send a text as a person without waiting for the reply, and return the id of the message.

        Parameters:
            text: The body of the message.
            id: The id of the message; "" sends it without an id. By default a new id is generated.
            thread: The thread of the message.
            reply_to: The id of the message that this one replies to (XEP-0461).
            corrects: The id of an earlier message of the same person that this one replaces (XEP-0308).
            extra: Further elements of the message, as XML.
            user: The bare JID of the person. By default the tester's user.
            to: The bare JID of the agent. By default the agent under test.
        """
        to, id = to or self.jid, str(uuid4()) if id is None else id
        inner = f"<body>{escape(text)}</body>"
        if thread:
            inner += f"<thread>{escape(thread)}</thread>"
        if reply_to is not None:
            inner += f"<reply xmlns='{REPLY_NAMESPACE}' to='{escape_attribute(to)}' id='{escape_attribute(reply_to)}'/>"
        if corrects is not None:
            inner += f"<replace xmlns='{CORRECTION_NAMESPACE}' id='{escape_attribute(corrects)}'/>"
        self._send(f"{inner}{extra}", id, user, to)
        return id

    def retract(self, id: str, *, user: str | None = None, to: str | None = None) -> None:
        """Retract the person's message with this id (XEP-0424)."""
        # Clients add a text for other clients that do not support retraction.
        inner = (
            f"<retract xmlns='{RETRACT_NAMESPACE}' id='{escape_attribute(id)}'/><body>This person took a message back</body>"
        )
        self._send(inner, str(uuid4()), user, to)

    def react(self, id: str, *emojis: str, user: str | None = None, to: str | None = None) -> None:
        """React to the agent's message with this id (XEP-0444). Without emojis, earlier reactions are taken back."""
        reactions = "".join(f"<reaction>{escape(emoji)}</reaction>" for emoji in emojis)
        inner = f"<reactions xmlns='{REACTIONS_NAMESPACE}' id='{escape_attribute(id)}'>{reactions}</reactions>"
        self._send(inner, str(uuid4()), user, to)

    def _send(self, inner: str, id: str, user: str | None, to: str | None) -> None:
        id_attribute = f" id='{escape_attribute(id)}'" if id else ""
        message = f"<message to='{escape_attribute(to or self.jid)}' type='chat'{id_attribute}>{inner}</message>"
        self.send_stanza(message, user=user)

    def send_stanza(self, stanza: str, *, user: str | None = None) -> None:
        """Send any `<message/>`, unchanged, from a user."""
        self._local_user(user).transport.send([OutboundMessage(fromstring(stanza).get("to", ""), stanza)])

    def unread(self, user: str | None = None) -> list[str]:
        """Return the texts that a person received and that no call has returned yet, in the order of their arrival."""
        return self._local_user(user).pop_texts()

    async def message(self, user: str | None = None, *, timeout: float = 10.0) -> ReceivedMessage:
        """Wait for the next unread message with a text, mark it as read and return it.

        Raise TimeoutError after `timeout` seconds.
        """
        async with asyncio.timeout(timeout):
            message = await self._local_user(user).next()
        self._raise_model_problem()
        return message

    def messages(self, user: str | None = None) -> list[ReceivedMessage]:
        """Return all messages that a person has received, oldest first: read or not, typing and corrections included."""
        return list(self._local_user(user).messages)

    async def delivered(self) -> None:
        """Wait until all messages sent before have arrived. Turns may still be running."""
        await self._network.wait_until_delivered()

    async def settled(self) -> None:
        """Wait until no turn runs or waits, all messages have arrived, and the compaction of windows has finished.

        Notifications that are due are sent then, and due times of schedules have had their turns.
        No item of a topic is on its way to an agent then. One that an agent did not take waits for its next attempt.
        """
        while True:
            while self._is_busy():
                for runner in self.runners.values():
                    await runner.task_clock.catch_up()
                    await runner.mailboxes.wait_until_idle()
                await self._network.wait_until_delivered()
                if self._database is not None and self._database.writes.has_writes:
                    await self._database.writes.submit([]).wait()
            clocks = (runner.task_clock.tasks for runner in self.runners.values())
            busy = next((clock for clock in clocks if clock.is_under_way(DELIVERY, self._agent_specs)), None)
            if busy is None:
                break
            await busy.wait_for_progress()
        for runner in self.runners.values():
            await runner.conversations.history_windows.wait_until_idle()
        self._raise_model_problem()

    def _is_busy(self) -> bool:
        has_writes = self._database is not None and self._database.writes.has_writes  # such as the end of a request that waits
        return bool(self._network.in_flight_count or has_writes) or any(
            runner.mailboxes.busy_count or runner.task_clock.tasks.is_busy for runner in self.runners.values()
        )

    @property
    def now(self) -> datetime:
        """The time of the tester."""
        return self._clock()

    async def advance(self, to: timedelta | datetime) -> None:
        """Let time pass for all agents, by a timedelta or until a datetime, and wait until all that is due has happened.

        The clock goes from due time to due time: a day of hourly reminders is 24 turns, each at its own time. Items of topics
        are tried again at their times. Notifications are sent and turns have ended on return, as after `settled`. No real time
        passes, and from the first call on the clock stands still between calls.

        Raise ValueError for a time that is over, and for a datetime without a time zone.
        """
        begin = self.now
        if isinstance(to, datetime) and to.tzinfo is None:
            raise ValueError(f"{to} has no time zone; add one: datetime(…, tzinfo=UTC)")
        end = begin + to if isinstance(to, timedelta) else to
        if end < begin:
            raise ValueError(f"the clock is at {begin}, and time does not go back to {end}")
        self._clock.set(begin)
        await self._catch_up()
        while (due_at := await self._find_next_due()) is not None and self.now < due_at <= end:
            self._clock.set(due_at)
            await self._catch_up()
        self._clock.set(end)
        await self._catch_up()

    async def _catch_up(self) -> None:
        for runner in self.runners.values():
            runner.task_clock.tasks.alarm.has_timer = False
            runner.task_clock.check()
        await self.settled()

    async def _find_next_due(self) -> datetime | None:
        found = [await runner.task_clock.find_next_due() for runner in self.runners.values()]
        return min((due_at for due_at in found if due_at is not None), default=None)

    async def notifications(self, person: str | None = None) -> list[Notification]:
        """Return the newest notifications of the agent under test, at most 1000, oldest first.

        `person` is the bare JID of a person, by default all. What they say is in `message` and `messages` of the person, once
        they are sent.
        """
        found = await self.runners[self.jid].repository.notifications.load_page(person=person)
        return [to_notification(stored) for stored in reversed(found)]

    async def schedules(self, owner: str | None = None) -> list[Schedule]:
        """Return the schedules of the agent under test, the next due ones first.

        `owner` is the bare JID of a person, or of the agent for those of `@every`; by default all.
        """
        return await self.runners[self.jid].control.schedules.find_all(owner)

    async def questions(self, person: str | None = None, *, state: QuestionState | None = QuestionState.OPEN) -> list[Question]:
        """Return the questions and approvals of the agent under test, oldest first: those that wait for an answer.

        `person` is the bare JID of one who was asked, by default all. `state` is another state, or None for all. An answer is
        a text of the person: a choice or its number, a reply to the question, or `/answer CODE TEXT`.
        """
        repository = self.runners[self.jid].repository.questions
        found = await repository.load_page(state=state)
        asked = await repository.load_people(stored.id for stored in found)
        return [
            Question(
                stored.question_id,
                "question" if stored.kind == "question" else "approval",
                asked[stored.id],
                stored.text,
                tuple(stored.choices),
                stored.code,
                stored.requester,
                QuestionState(stored.state),
                stored.decided_by,
                from_micros(stored.expires_at),
            )
            for stored in reversed(found)
            if person is None or person in asked[stored.id]
        ]

    async def approve(self, question: Question | None = None, *, user: str | None = None, timeout: float = 10.0) -> list[str]:
        """Approve a call as a person: send `/approve CODE`, and wait until the call has run and its request has ended.

        Return the texts of the reply to the person. What the requester receives is in `unread` and `message`.
        By default `question` is the only open approval, and `user` the first person who was asked about it (a bare JID).
        Another user sends the code as well, and is told that it is unknown.

        Raise ValueError without a `question` unless exactly one approval is open, and TimeoutError after `timeout` seconds.
        """
        return await self._decide("approve", question, user, timeout)

    async def deny(
        self, question: Question | None = None, reason: str = "", *, user: str | None = None, timeout: float = 10.0
    ) -> list[str]:
        """Deny a call as a person, with a reason for the requester. All else is as in `approve`."""
        return await self._decide("deny", question, user, timeout, reason)

    async def _decide(
        self, verb: str, question: Question | None, user: str | None, timeout: float, reason: str = ""
    ) -> list[str]:
        if question is None:
            approvals = [each for each in await self.questions() if each.kind == "approval"]
            if len(approvals) != 1:
                raise ValueError(f"{len(approvals)} approvals are open; pass one of `await t.questions()`")
            [question] = approvals
        person = user or question.people[0]
        await self.settled()  # the person has been asked
        texts = await self.say(f"/{verb} {question.code} {reason}".strip(), user=person, timeout=timeout)
        async with asyncio.timeout(timeout):
            await self.settled()
        return texts

    @property
    def uploaded(self) -> dict[str, FetchedFile]:
        """The files that agents uploaded, by link; empty with an `upload` of your own."""
        return self._files.files

    def add_file(self, name: str, data: bytes) -> str:
        """Store a file as a person does who uploads it, and return its link, which agents can fetch."""
        return self._files.add(name, data)

    async def conversations(self) -> list[ConversationRecord]:
        """Return the records of the agent's newest conversations, at most 100, newest first."""
        return [record.contract_record for record in await self.runners[self.jid].repository.list_conversations()]

    @property
    def client_features(self) -> Set[ClientFeature]:
        """The features of all people's clients. They may be set at any time."""
        return self._devices.features

    @client_features.setter
    def client_features(self, features: Set[ClientFeature]) -> None:
        self._devices.features = features

    async def restart(self, grace_s: float = 1.0, *, policy: Policy | None = None, down_for: timedelta = timedelta(0)) -> None:
        """Stop the agents as a platform does, and start them again with the stored data.

        Classes and factories build new agents. Turns have `grace_s` seconds to finish. Without a `policy`, the present one
        remains. With `down_for`, the clock is set forward by that time while the agents are stopped, so that they miss what
        is due in that time.
        """
        await self._close(grace_s)
        if down_for:
            self._clock.set(self.now + down_for)
        self._policy = policy or self._policy
        await self._open()

    def _local_user(self, user: str | None) -> LocalUser:
        jid = user or self._user
        if jid not in self._users:
            self._users[jid] = LocalUser(jid, self._network)
        return self._users[jid]

    async def _open(self) -> None:
        url = self._database_url or f"sqlite+aiosqlite:///{self._directory}/platform.db"
        self._database = await open_database(url, "off")
        self._platform_directory = PlatformDirectory()
        for jid, agent_spec in self._agent_specs.items():
            self._build_runner(jid, agent_spec, self._database)
        stored: dict[str, StoredAgent] = {}
        for jid, runner in self.runners.items():
            stored[jid] = await runner.repository.load_agent()
            self.gateways[jid].access_requests.load(stored[jid])
            with self._install_model(jid):
                await runner.open(stored[jid])
        for jid, runner in self.runners.items():
            self._network.attach(jid, partial(_receive, self.gateways[jid], Receiver(jid)))
            runner.send_unsent()
        for jid, runtime in self.runtimes.items():
            runtime.announcement.start(stored[jid])
        for runtime in self.runtimes.values():
            await runtime.announcement.wait_until_tried()

    def _build_runner(self, jid: str, agent_spec: Any, database: Database) -> None:
        full_jid, stanza_bytes = f"{jid}/{_AGENT_RESOURCE}", self._policy.limits.stanza_bytes
        network = XmppTransport(jid, self._network.build_sender(full_jid), stanza_bytes, self._devices).network
        own_channel = LocalChannel(full_jid, self._network, stanza_bytes, self._devices)
        send = self._build_sender_to_people(full_jid)
        to_people = PeopleChannel(jid, send, stanza_bytes, self._devices, self._unasked_keys)
        policy = self._policy
        if not policy.approvals.operators:  # as in a configuration, which has one list of them
            policy = replace(policy, approvals=replace(policy.approvals, operators=tuple(sorted(policy.operators))))
        parts = AgentParts(
            AgentRepository(database, jid),
            network._replace(channels={DEFAULT_CHANNEL: to_people, _CHANNEL: own_channel}),
            Files(self._upload, self._files.fetch, UploadWarnings()),
            PeerOptions(
                self._platform_directory, trusted_agents=TrustedAgents(self._agent_specs), topic_broker=self._topic_broker
            ),
            AgentRules(AccessPolicy(jid, self._allow, operators=policy.operators), policy),
            memory=partial(self._get_memory, jid),
            embedder=self._embedder,
            clock=self._clock,
        )
        with self._install_model(jid):
            agent = self.built_agents[jid] = self._build_agent(jid, agent_spec, parts)
        runtime = parts.build_runtime(
            agent,
            agent.manifest.config.memory,
            on_conversation_end=self._on_conversation_end if jid == self.jid else (),
            summariser=self._summariser,
            count_tokens=self._count_tokens,
            interceptors=[make_interceptor(source, "interceptors", jid, Path.cwd()) for source in self._interceptors],
        )
        self.runtimes[jid], self.runners[jid], self.gateways[jid] = runtime, runtime.runner, runtime.gateway
        runtime.runner.task_clock.tasks.alarm.has_timer = not self._clock.is_set
        self._platform_directory.add(
            jid,
            agent.manifest,
            runtime.gateway.access_requests,
            lambda: not runtime.runner.control.is_paused,
            lambda: runtime.runner.mailboxes.busy_count,
        )
        self._network.detach(jid)

    def _build_sender_to_people(self, full_jid: str) -> SendMessages:
        """Return the function through which an agent sends its replies: a person whom no call has named gets them too."""
        send = self._network.build_sender(full_jid)

        def send_to_people(messages: Sequence[OutboundMessage]) -> None:
            for message in messages:
                person = bare_jid(message.recipient)
                if person not in self._agent_specs and not self._network.is_attached(message.recipient):
                    self._local_user(person)
            send(messages)

        return send_to_people

    def _build_agent(self, jid: str, agent_spec: Any, parts: AgentParts) -> Agent:
        manifests = (self._manifest_file, self._manifest) if jid == self.jid else ()
        return build_agent(agent_spec, injectables=parts.as_injectables(*manifests), options=self._options.get(jid, {}))

    def _complete_jid(self, name: str) -> str:
        return name if "@" in name else f"{name}@{self.jid.rpartition('@')[2]}"

    def _assign_models(self, model: FakeModel | Mapping[str, FakeModel] | None) -> dict[str, FakeModel]:
        """Return the model of each agent by its JID; of none if there is no model."""
        if model is None:
            return {}
        if isinstance(model, FakeModel):
            models = dict.fromkeys(self._agent_specs, model)
        else:
            given = {self._complete_jid(name): one for name, one in model.items()}
            if unknown := [jid for jid in given if jid not in self._agent_specs]:
                raise ConfigError("model", f"there is no agent {unknown[0]}; the agents are {', '.join(self._agent_specs)}")
            models = {jid: given.get(jid) or FakeModel([]) for jid in self._agent_specs}
        from .llm import LLMAgent

        if built := [jid for jid, spec in self._agent_specs.items() if isinstance(spec, LLMAgent)]:
            raise ConfigError("model", f"{built[0]} is already built with its own model; pass its class or a function")
        return models

    def _install_model(self, jid: str) -> AbstractContextManager[None]:
        return self._models[jid].install(jid) if jid in self._models else nullcontext()

    def _raise_model_problem(self) -> None:
        for model in self._models.values():
            model.raise_problem()

    def _get_memory(self, jid: str) -> AgentInteractionMemory:
        if jid not in self._memories:
            store = None
            if self._database is not None and self._database.backend.has_memories:
                store = MemoryRows(self._database, jid, MemoryLimits())
            directory = self._directory / "memory"
            self._memories[jid] = AgentInteractionMemory(jid, directory, clock=self._clock, durability="normal", store=store)
        return self._memories[jid]

    async def _close(self, grace_s: float) -> None:
        runners, self.runners = self.runners, {}
        runtimes, self.runtimes = self.runtimes, {}
        memories, self._memories = self._memories, {}
        async with AsyncExitStack() as stack:  # whatever fails, the rest is closed
            for memory in memories.values():
                stack.push_async_callback(memory.aclose)
            if self._database is not None:
                stack.push_async_callback(self._database.close)
            for jid, runner in runners.items():
                stack.push_async_callback(runner.close)
                stack.callback(self._network.detach, jid)
            await asyncio.gather(*(runtime.announcement.close() for runtime in runtimes.values()))
            await asyncio.gather(*(runner.drain(grace_s) for runner in runners.values()))


def _receive(gateway: InboundGateway, receiver: Receiver, item: _Item, sender: str) -> None:
    if isinstance(item, OutboundMessage):
        gateway.receive(read_local(item, receiver, sender))
    elif not isinstance(item, ReceivedMessage):
        gateway.receive(item, channel=_CHANNEL)
