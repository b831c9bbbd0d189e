"""Requests to other agents: they are sent, and the events of their replies come back to the caller.

An event belongs to a reply only if it comes from the JID that was asked, for a request that is still open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from ..contracts import AgentRequest
from ..domain.access import TrustedAgents
from ..domain.foreign_json import MAX_JSON_CHARACTERS, parse_foreign_json
from ..domain.identifiers import derive_thread
from ..domain.jid import bare_jid
from ..domain.messages import COMMAND_METADATA, ROOT_SENDER, Bounce, InboundMessage, ReplyBatch, ReplyEvent, RequestContext
from ..exceptions import (
    ConfigError,
    PeerError,
    PeerFailedError,
    PeerRefusedError,
    PeerTimeoutError,
    PeerUnavailableError,
)
from .topics.requests import make_publish_request, read_item_id
from .transport import OutboundMessage, Transport

if TYPE_CHECKING:
    from .known_people import KnownPeople

CURRENT_REQUEST: ContextVar[AgentRequest | None] = ContextVar("current_request", default=None)
"""The request whose turn runs in this task."""

# The last event of a request.
_FINAL_EVENTS = frozenset({"request.completed", "request.failed", "request.refused"})


@dataclass(frozen=True, slots=True)
class PeerEvent:
    """One event of a reply. `type` has no prefix `ai.coreason.`, for example `block.markdown` or `stream.chunk`."""

    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """A whole reply of a peer: its text, its data blocks, and all its events in the order of arrival."""

    jid: str
    text: str
    data: tuple[Mapping[str, Any], ...] = ()
    events: tuple[PeerEvent, ...] = ()
    conversation_id: str | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True, eq=False)
class _OpenRequest:
    """A sent request whose reply is not complete."""

    jid: str
    arrivals: asyncio.Queue[ReplyEvent | PeerError] = field(default_factory=asyncio.Queue)
    seen_event_ids: set[str] = field(default_factory=set)
    fragments: dict[str, dict[int, str]] = field(default_factory=dict)
    fragment_characters: int = 0
    """The characters of all fragments in `fragments`."""


class OpenRequests:
    """The requests of one JID that wait for a reply. Events for no open request are dropped, and counted in `dropped`."""

    def __init__(self) -> None:
        # By id and JID, because one request may be sent to several peers at once.
        self._open: dict[tuple[str, str], _OpenRequest] = {}
        self.dropped = 0

    def route(self, message: InboundMessage) -> bool:
        """Receive a message that is a reply or a bounce. Return False for any other, which is left alone."""
        if isinstance(message, ReplyBatch):
            for reply in message.events:
                self.receive(reply)
        elif isinstance(message, ReplyEvent):
            self.receive(message)
        elif isinstance(message, Bounce):
            self.receive_bounce(message)
        else:
            return False
        return True

    def receive(self, reply: ReplyEvent) -> None:
        """Receive an event of a reply; drop it if it is no reply to an open request, or a duplicate."""
        request = self._open.get((reply.request_id, _normalise_jid(reply.sender)))
        if request is None or reply.event_id in request.seen_event_ids:
            self.dropped += 1
            return
        request.seen_event_ids.add(reply.event_id)
        if reply.type == "fragment":
            assembled = _assemble_fragments(request, reply)
            if assembled is not None:
                self.receive(assembled)
            return
        request.arrivals.put_nowait(reply)

    def receive_bounce(self, bounce: Bounce) -> None:
        """Receive the bounce of a request: its peer is unavailable."""
        request = self._open.get((bounce.stanza_id, _normalise_jid(bounce.sender)))
        if request is None:
            self.dropped += 1
            return
        problem = f"is not available: {bounce.text or bounce.condition.replace('-', ' ')}"
        request.arrivals.put_nowait(PeerUnavailableError(request.jid, problem))

    @contextmanager
    def _register(self, request_id: str, jid: str) -> Iterator[_OpenRequest]:
        key = request_id, _normalise_jid(jid)
        if key in self._open:
            raise ValueError(f"the request {request_id} to {key[1]} is still open; for a second one use request.create_child()")
        request = self._open[key] = _OpenRequest(key[1])
        try:
            yield request
        finally:
            del self._open[key]

    async def events(self, jid: str, request_id: str, timeout_s: float, send: Callable[[], object]) -> AsyncIterator[PeerEvent]:
        """Call `send`, and yield the events of the reply as they arrive, including the last one.

        Raises `PeerTimeoutError` after `timeout_s` without a complete reply, `PeerUnavailableError`, `PeerRefusedError` or
        `PeerFailedError`. `ValueError` if a request with this id to this JID is open already.
        """
        with self._register(request_id, jid) as request:
            send()
            deadline = asyncio.get_running_loop().time() + timeout_s
            has_started = False
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        arrival = await request.arrivals.get()
                except TimeoutError:
                    raise PeerTimeoutError(request.jid, timeout_s, has_started=has_started) from None
                if isinstance(arrival, PeerError):
                    raise arrival
                has_started = has_started or arrival.type != "block.thought"
                yield PeerEvent(arrival.type, arrival.data)
                if arrival.type in _FINAL_EVENTS:
                    _raise_if_failed(request.jid, arrival)
                    return


def _normalise_jid(jid: str) -> str:
    """Return the bare JID in lower case, as a server writes it."""
    return bare_jid(jid).lower()


def _assemble_fragments(request: _OpenRequest, fragment: ReplyEvent) -> ReplyEvent | None:
    data = fragment.data
    event_id, index, count, chunk = (data.get(name) for name in ("event_id", "index", "count", "chunk"))
    if not isinstance(event_id, str) or not isinstance(index, int) or not isinstance(chunk, str):
        return None
    if request.fragment_characters + len(chunk) > MAX_JSON_CHARACTERS:
        request.fragments.clear()  # of events that cannot become complete any more
        request.fragment_characters = 0
        return None
    parts = request.fragments.setdefault(event_id, {})
    request.fragment_characters += len(chunk) - len(parts.get(index, ""))
    parts[index] = chunk
    if len(parts) != count:
        return None
    del request.fragments[event_id]
    request.fragment_characters -= sum(map(len, parts.values()))
    try:
        event = parse_foreign_json("".join(parts[number] for number in range(len(parts))))
        event_type, event_data = event["type"].removeprefix("ai.coreason."), event["data"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if event_type == "fragment" or not isinstance(event_data, dict):
        return None
    return ReplyEvent(fragment.sender, fragment.request_id, event_type, event_id, event_data)


def _raise_if_failed(jid: str, final_event: ReplyEvent) -> None:
    message = str(final_event.data.get("message", "no reason given"))
    if final_event.type == "request.refused":
        retry_after_s = final_event.data.get("retry_after_s")
        raise PeerRefusedError(jid, f"refuses: {message}", retry_after_s if isinstance(retry_after_s, int | float) else None)
    if final_event.type == "request.failed":
        code = final_event.data.get("code")
        raise PeerFailedError(jid, message, code if isinstance(code, int) else None)


def collect_answer(jid: str, events: list[PeerEvent]) -> PeerAnswer:
    """Build the reply from its events: blocks and streams in the order of their start, with two line breaks between them.

    A turn that was interrupted and runs again may send other text. Then the newer text counts, from where it differs. A reply
    that is repeated as a whole takes the place of what came before it.
    """
    texts: dict[str, dict[int, str]] = {}
    data: dict[str, Mapping[str, Any]] = {}
    conversation_id = None
    for number, event in enumerate(events):
        if event.type == "block.markdown":
            texts[str(event.data.get("id", number))] = {0: str(event.data.get("content", ""))}
        elif event.type == "stream.chunk":
            _add_chunk(texts.setdefault(str(event.data.get("stream_id")), {}), event.data)
        elif event.type == "stream.abort" and isinstance(replacement := event.data.get("replacement"), str):
            texts[str(event.data.get("stream_id"))] = {0: replacement}
        elif event.type == "stream.start":
            texts.setdefault(str(event.data.get("stream_id")), {})
        elif event.type == "request.repeated":
            texts.clear()
            data.clear()
        elif event.type == "block.data":
            data[str(event.data.get("id", number))] = event.data
        elif event.type == "request.completed":
            given_id = event.data.get("conversation_id")
            conversation_id = given_id if isinstance(given_id, str) else None
    text = "\n\n".join(filter(None, ("".join(parts.values()).strip() for parts in texts.values())))
    return PeerAnswer(bare_jid(jid), text, tuple(data.values()), tuple(events), conversation_id)


def _add_chunk(chunks: dict[int, str], data: Mapping[str, Any]) -> None:
    seq = data.get("seq")
    number = seq if isinstance(seq, int) else len(chunks)
    if number in chunks:
        for stale in [later for later in chunks if later >= number]:
            del chunks[stale]
    chunks[number] = str(data.get("chunk", ""))


class Peers:
    """The other agents that an agent can ask. A constructor parameter named `peers` receives it.

    A request made with `request.create_child(...)` keeps its lineage. It is sent on a thread of its own, derived from the
    calling conversation and the peer. So two people who use one agent have two conversations with its peer.

    `jid` is the agent that asks. It cannot ask itself: a `PeerError` says so, and nothing is sent. Agents in `trusted_agents`
    are told the person whose request led to theirs, for whose quotas it counts. `tell` refuses the addresses of `people`.
    `topic_broker` is the agent to which `publish` publishes.
    """

    def __init__(
        self,
        jid: str,
        requests: OpenRequests,
        transport: Transport,
        trusted_agents: TrustedAgents | None = None,
        people: KnownPeople | None = None,
        topic_broker: str | None = None,
    ) -> None:
        self._people = people
        self._topic_broker = topic_broker
        self._trusted_agents = trusted_agents or TrustedAgents()
        self._own_jid = _normalise_jid(jid)
        self._requests = requests
        self._transport = transport

    async def ask(
        self, jid: str, request: AgentRequest | Mapping[str, Any] | str, timeout: float = 30.0, *, thoughts: bool = False
    ) -> PeerAnswer:
        """Ask the agent `jid` and wait for its whole reply, at most `timeout` seconds.

        A text or a payload becomes a child of the request that this task answers. After a timeout or a cancellation, the
        request is retracted; if it is sent again, the peer starts anew. With `thoughts`, the events of the answer include those
        of the peer.

        Raises `PeerTimeoutError`, `PeerUnavailableError`, `PeerRefusedError`, `PeerFailedError` or `RequestTooLongError`.
        Each names the peer. A request to the agent itself is a plain `PeerError`, before anything is sent.
        """
        return collect_answer(jid, [event async for event in self.stream(jid, request, timeout, thoughts=thoughts)])

    async def stream(
        self, jid: str, request: AgentRequest | Mapping[str, Any] | str, timeout: float = 30.0, *, thoughts: bool = False
    ) -> AsyncIterator[PeerEvent]:
        """Ask the agent `jid`, and yield the events of its reply as they arrive.

        Parameters, errors and retraction are those of `ask`.
        """
        child = to_request(request)
        message, send = self._encode(jid, child, thoughts=thoughts), self._transport.send
        try:
            async for event in self._requests.events(jid, str(child.request_id), timeout, lambda: send([message])):
                yield event
        except (asyncio.CancelledError, PeerTimeoutError):
            send([self._transport.encode_retraction(jid, str(child.request_id))])  # so that the peer stops its turn
            raise

    async def tell(self, jid: str, request: AgentRequest | Mapping[str, Any] | str) -> None:
        """Send a request to the agent `jid` without waiting. Its reply is dropped.

        `RequestTooLongError` and `PeerError` as for `ask`. It is also a `PeerError` if `jid` is known as a person or a room:
        an operator, or the sender of a plain message, whose client does not show requests. Other addresses are not checked.
        """
        child = to_request(request)
        if self._people is not None and (noun := await self._people.describe(jid)) is not None:
            problem = f"was not notified: this is the address of {noun}, and agents cannot write to {noun} first"
            raise PeerError(bare_jid(jid), f"{problem}; answer with `response` in a turn")
        self._transport.send([self._encode(jid, child)])

    async def publish(
        self, topic: str, payload: Mapping[str, Any], timeout: float = 30.0, *, request_id: UUID | None = None
    ) -> str:
        """Publish a payload, a JSON object, to a topic such as `news/sport`, and return the id of the item.

        When it returns, the broker has stored the item for all its subscribers. Publish with the same `request_id` again after
        an error: it is the same item. Without one, each call publishes a new item.

        Raises what `ask` raises; `PeerRefusedError` also for a topic that this agent may not use. ValueError or TypeError for a
        wrong topic or payload, and ConfigError if no topic broker is configured.
        """
        if self._topic_broker is None:
            raise ConfigError("peers.topics", "names no topic broker to publish to; set it to the JID of the broker")
        request = make_publish_request(topic, payload, request_id, CURRENT_REQUEST.get())
        answer = await self.ask(self._topic_broker, request, timeout)
        return read_item_id(answer.jid, answer.data)

    def _encode(self, jid: str, request: AgentRequest, *, thoughts: bool = False) -> OutboundMessage:
        if _normalise_jid(jid) == self._own_jid:
            problem = "was not asked: this is the agent's own address, and an agent cannot ask itself; name another agent"
            raise PeerError(bare_jid(jid), problem)
        thread = derive_thread(request.session_id, _normalise_jid(jid))
        current = CURRENT_REQUEST.get()
        metadata = {} if current is None else current.metadata
        root_sender = ""
        if current is not None and jid in self._trusted_agents:
            root_sender = metadata.get(ROOT_SENDER) or bare_jid(metadata.get("sender", ""))
        context = RequestContext(metadata.get("hops", 0) + 1, root_sender, accepts_batches=True, wants_thoughts=thoughts)
        return self._transport.encode_request(jid, request, thread, context)


def to_request(request: AgentRequest | Mapping[str, Any] | str) -> AgentRequest:
    """Return a request as it is. Make a payload or a text a child of the request that this task answers, if there is one."""
    if isinstance(request, AgentRequest):
        return request
    payload = {"query": request} if isinstance(request, str) else dict(request)
    current = CURRENT_REQUEST.get()
    return current.create_child(payload) if current is not None else AgentRequest(session_id=uuid4(), payload=payload)


def command_request(command: str) -> AgentRequest:
    """Make a request of a command of an agent or its platform, written as people do: `/history 50`."""
    return AgentRequest(session_id=uuid4(), payload={"query": command}, metadata={COMMAND_METADATA: True})
