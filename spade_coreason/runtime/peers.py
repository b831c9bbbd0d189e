"""Requests to other agents: they are sent, and the events of their replies come back to the caller.

An event belongs to a reply only if it comes from the JID that was asked, for a request that is still open.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from pydantic_core import to_json

from ..concurrency import RateLimiter
from ..contracts import AgentRequest
from ..domain.access import TrustedAgents
from ..domain.cards import AgentCard, Capability
from ..domain.foreign_json import MAX_JSON_CHARACTERS, parse_foreign_json
from ..domain.identifiers import derive_thread, digest_request
from ..domain.jid import bare_jid
from ..domain.messages import (
    CHAIN,
    COMMAND_METADATA,
    DEADLINE,
    MAX_BATCH_REQUESTS,
    ROOT_SENDER,
    Bounce,
    InboundMessage,
    ReplyBatch,
    ReplyEvent,
    RequestContext,
)
from ..exceptions import (
    AnswerTooLongError,
    ConfigError,
    PeerError,
    PeerFailedError,
    PeerRefusedError,
    PeerTimeoutError,
    PeerUnavailableError,
)
from .capability_requests import CapabilityRequests
from .directory import AgentFinder
from .peer_answers import PeerAnswer, PeerEvent, collect_answer
from .steps import CURRENT_JOURNAL, DurableStep
from .topics.requests import make_publish_request, read_item_id
from .transport import OutboundMessage, Transport

if TYPE_CHECKING:
    from .known_people import KnownPeople

log = logging.getLogger(__name__)

CURRENT_REQUEST: ContextVar[AgentRequest | None] = ContextVar("current_request", default=None)
"""The request whose turn runs in this task."""

_MAX_ANSWER_CHARACTERS = 2 * MAX_JSON_CHARACTERS
"""The most JSON in answer to one request, without the XML around it."""
_MAX_BATCH_READERS = 10_000
_MAX_DROPPED_PER_MINUTE = 1000
"""The dropped events of one peer that are not worth a warning: of asks that were cancelled or timed out, or sent twice."""
_MAX_ROOTS = 10_000
_MAX_STEP_JID = 150  # the name of a step has 200 characters at most
_MAX_REPLY_CHARACTERS = 2**17

# The last event of a request.
_FINAL_EVENTS = frozenset({"request.completed", "request.failed", "request.refused"})


@dataclass(slots=True, eq=False)
class _OpenRequest:
    """A sent request whose reply is not complete."""

    jid: str
    arrivals: asyncio.Queue[ReplyEvent | PeerError] = field(default_factory=asyncio.Queue)
    seen_event_ids: set[str] = field(default_factory=set)
    fragments: dict[str, dict[int, str]] = field(default_factory=dict)
    fragment_characters: int = 0
    """The characters of all fragments in `fragments`."""
    characters: int = 0
    """The characters of all events, as JSON."""
    is_too_long: bool = False

    def fail_as_too_long(self, limit: int) -> None:
        """Drop what has arrived, and all that follows. The caller gets `AnswerTooLongError`."""
        self.is_too_long = True
        self.fragments.clear()
        self.seen_event_ids.clear()
        while not self.arrivals.empty():
            self.arrivals.get_nowait()
        self.arrivals.put_nowait(AnswerTooLongError(self.jid, limit))


class OpenRequests:
    """The requests of one JID that wait for a reply. Events for no open request are dropped, and counted in `dropped`."""

    def __init__(self) -> None:
        # By id and JID, because one request may be sent to several peers at once.
        self._open: dict[tuple[str, str], _OpenRequest] = {}
        self._batch_readers: set[str] = set()
        """The peers (bare JIDs) that read batches, as their own batches show."""
        self._dropped_limiter = RateLimiter(_MAX_DROPPED_PER_MINUTE)
        self._warning_limiter = RateLimiter()
        self.dropped = 0

    @property
    def open_count(self) -> int:
        """The number of requests that wait for a reply."""
        return len(self._open)

    def reads_batches(self, jid: str) -> bool:
        """Return True if a peer is known to read several requests in one message, because it replies in batches."""
        return _normalise_jid(jid) in self._batch_readers

    def route(self, message: InboundMessage) -> bool:
        """Receive a message that is a reply or a bounce. Return False for any other, which is left alone."""
        if isinstance(message, ReplyBatch):
            for reply in message.events:
                self.receive(reply, is_in_batch=True)
        elif isinstance(message, ReplyEvent):
            self.receive(message)
        elif isinstance(message, Bounce):
            self.receive_bounce(message)
        else:
            return False
        return True

    def receive(self, reply: ReplyEvent, *, is_in_batch: bool = False) -> None:
        """Receive an event of a reply; drop it if it is no reply to an open request, or a duplicate."""
        sender = _normalise_jid(reply.sender)
        request = self._open.get((reply.request_id, sender))
        if request is None or request.is_too_long or reply.event_id in request.seen_event_ids:
            self._drop(sender)
            return
        request.characters += reply.characters
        if request.characters > _MAX_ANSWER_CHARACTERS:
            request.fail_as_too_long(_MAX_ANSWER_CHARACTERS)
            return
        request.seen_event_ids.add(reply.event_id)
        if is_in_batch and request.jid not in self._batch_readers:
            if len(self._batch_readers) >= _MAX_BATCH_READERS:
                self._batch_readers.clear()
            self._batch_readers.add(request.jid)
        if reply.type == "fragment":
            assembled = _assemble_fragments(request, reply)
            if assembled is not None:
                self.receive(assembled)
            return
        request.arrivals.put_nowait(reply)

    def receive_bounce(self, bounce: Bounce) -> None:
        """Receive the bounce of a request, or of several in one message: their peer is unavailable."""
        problem = f"is not available: {bounce.text or bounce.condition.replace('-', ' ')}"
        sender = _normalise_jid(bounce.sender)
        for request_id in bounce.stanza_id.split(" ", MAX_BATCH_REQUESTS)[:MAX_BATCH_REQUESTS]:
            request = self._open.get((request_id, sender))
            if request is None:
                self._drop(sender)
            else:
                request.arrivals.put_nowait(PeerUnavailableError(request.jid, problem))

    def _drop(self, sender: str) -> None:
        """Count a message that answers no open request. Name the sender if it floods us with them."""
        self.dropped += 1
        if not self._dropped_limiter.allow(sender) and self._warning_limiter.allow(sender):
            text = "%s sent more than %d events within a minute that answer no open request, or came twice; they are dropped"
            log.warning(text, sender, _MAX_DROPPED_PER_MINUTE)

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

    async def events(
        self, jid: str, request_id: str, timeout_s: float, send: Callable[[], object]
    ) -> AsyncGenerator[PeerEvent]:
        """Call `send`, and yield the events of the reply as they arrive, including the last one.

        Raises `PeerTimeoutError` after `timeout_s` without a complete reply, `PeerUnavailableError`, `PeerRefusedError`,
        `AnswerTooLongError` or `PeerFailedError`. `ValueError` if a request with this id to this JID is open already.
        """
        with self._register(request_id, jid) as request:
            send()
            deadline = asyncio.get_running_loop().time() + timeout_s
            has_started = False
            while True:
                if request.arrivals.empty():
                    try:
                        async with asyncio.timeout_at(deadline):
                            arrival = await request.arrivals.get()
                    except TimeoutError:
                        raise PeerTimeoutError(request.jid, timeout_s, has_started=has_started) from None
                else:
                    arrival = request.arrivals.get_nowait()  # of the same message as the event before it
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
        request.fail_as_too_long(MAX_JSON_CHARACTERS)  # without one of its events the answer would be another one
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


@dataclass(frozen=True, slots=True)
class Retry:
    """A rule for trying again: after a bounce, or after a refusal that says when a retry may succeed.

    `attempts` counts the first try too. The first wait is `wait_s` seconds, and each further one is `factor` times as long. No
    wait is shorter than a refusal asks for. An ask that timed out or failed is never tried again.
    """

    attempts: int = 3
    wait_s: float = 0.5
    factor: float = 2.0

    def wait_after(self, attempt: int, error: PeerError) -> float | None:
        """Return the seconds to wait after a failed attempt, counted from 1; None if there is to be no other."""
        if attempt >= self.attempts:
            return None
        wait_s = self.wait_s * self.factor ** (attempt - 1)
        if isinstance(error, PeerUnavailableError):
            return wait_s
        if isinstance(error, PeerRefusedError) and error.retry_after_s is not None:
            return max(wait_s, error.retry_after_s)
        return None


NO_RETRY = Retry(attempts=1)


class FanOutLimit:
    """The number of requests to which one root request may lead, over all agents of the process.

    Counts of the `_MAX_ROOTS` roots that led to requests last are in memory.
    """

    def __init__(self, max_requests: int = 10_000) -> None:
        self.max_requests = max_requests
        self._counts: OrderedDict[UUID, int] = OrderedDict()

    def allow(self, root: UUID | None) -> bool:
        """Count a request of a root. Return False if it has led to too many."""
        if root is None:
            return True
        count = self._counts.get(root, 0) + 1
        if count > self.max_requests:
            return False
        self._counts[root] = count
        self._counts.move_to_end(root)
        if len(self._counts) > _MAX_ROOTS:
            self._counts.popitem(last=False)
        return True


class Peers:
    """The other agents that an agent can ask. A constructor parameter named `peers` receives it.

    A text or a payload becomes a child of the request that this task answers; so does a request made with
    `request.create_child(...)`. It keeps the lineage, and has no more time than that request has left. It is sent on a thread
    of its own, derived from the calling conversation and the peer. So two people who use one agent have two conversations with
    its peer.

    `jid` is the agent that asks. It asks neither itself nor an agent that waits for the current request, which would be a
    circle. Agents in `trusted_agents` are told the person whose request led to theirs, for whose quotas it counts. `tell`
    refuses the addresses of `people`. `topic_broker` is the agent to which `publish` publishes. While `is_stopping` returns
    True, requests that are cancelled are not taken back: their turns run again after the next start, and then get the same
    answers.
    """

    def __init__(
        self,
        jid: str,
        requests: OpenRequests,
        transport: Transport,
        trusted_agents: TrustedAgents | None = None,
        people: KnownPeople | None = None,
        *,
        finder: AgentFinder | None = None,
        topic_broker: str | None = None,
        fan_out: FanOutLimit | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._people = people
        self._topic_broker = topic_broker
        self.finder = finder or AgentFinder(bare_jid(jid))
        """The finder behind `find`; the directory agent of a platform reads its agents there."""
        self._by_capability = CapabilityRequests(self.find, self.stream)
        self._trusted_agents = trusted_agents or TrustedAgents()
        self._own_jid = _normalise_jid(jid)
        self._requests = requests
        self._transport = transport
        self._fan_out = fan_out or FanOutLimit()
        self._is_stopping = is_stopping

    async def find(
        self,
        *,
        capability: str | None = None,
        text: str | None = None,
        accepts: Mapping[str, Any] | None = None,
        timeout: float = 10.0,
    ) -> list[AgentCard]:
        """Find agents that this agent may ask: those of its platform, and those in the directories of `peers.directories`.

        All given criteria must hold; without any, the result is all agents.

        - `capability`: the name of a capability of the agent
        - `text`: words in its name, its description or its capabilities, in any form; the best match comes first
        - `accepts`: the JSON Schema of a payload that the capability accepts; see the guide "Find agents"

        The state on a card (`is_online`, `turns_in_flight`) is at most 5 seconds old. The directories have `timeout` seconds
        to answer. A `PeerError` of a directory that does not answer is raised only if no other agent fits.
        """
        return await self.finder.find(self._ask_directory, capability, text, accepts, timeout)

    async def _ask_directory(self, jid: str, payload: Mapping[str, Any], timeout_s: float) -> PeerAnswer:
        request = to_request(payload).model_copy(update={"session_id": self.finder.session_id})
        return collect_answer(jid, [event async for event in self.stream(jid, request, timeout_s)])

    async def ask(
        self,
        jid: str | Capability,
        request: AgentRequest | Mapping[str, Any] | str,
        timeout: float = 30.0,
        *,
        thoughts: bool = False,
        retry: Retry = NO_RETRY,
        separate: bool = False,
    ) -> PeerAnswer:
        """Ask the agent `jid` and wait for its whole reply, at most `timeout` seconds.

        A `Capability` in place of a JID asks one of the agents that have it and are online: the least busy one, and the next
        after a bounce or a refusal. The answer has to fit the `outputs` of the capability; else it is a `PeerFailedError`.
        Without such an agent it is a `PeerUnavailableError`. `PeerAnswer.jid` is the agent that answered.

        An ask is a durable step: if the turn runs again after a crash, it gets the same answer. The time is never longer than
        what is left to the request that this task answers. After a timeout or a cancellation, the request is retracted; if it
        is sent again, the peer starts anew. With `thoughts`, the events of the answer include those of the peer. With `retry`,
        it is sent again after a bounce or a refusal. With `separate`, it gets a conversation of its own at the peer, beside
        those of other requests. Otherwise the requests of one conversation here form one there, and are answered in order.

        Raises `PeerTimeoutError`, `PeerUnavailableError`, `PeerRefusedError`, `PeerFailedError`,
        `AnswerTooLongError` or `RequestTooLongError`. Each names the peer. A request to the agent itself is a plain
        `PeerError`, before anything is sent.
        """
        child, step = await self._begin_step(jid, request)
        if step is not None and step.is_finished:
            answered, stored = step.result
            return collect_answer(answered, [PeerEvent(*event) for event in stored])
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        for attempt in count(1):
            try:
                time_s = timeout if attempt == 1 else end - loop.time()
                answered, events = await self._ask_once(jid, child, time_s, thoughts=thoughts, separate=separate)
            except PeerError as error:
                wait_s = retry.wait_after(attempt, error)
                if wait_s is None or loop.time() + wait_s >= end:
                    raise
            else:
                await _end_step(step, answered, events)
                return collect_answer(answered, events)
            await asyncio.sleep(wait_s)
        raise AssertionError("not reached")

    async def _ask_once(
        self, jid: str | Capability, request: AgentRequest, timeout: float, **options: bool
    ) -> tuple[str, list[PeerEvent]]:
        """Send a request, and return the agent that answered and the events of its reply."""
        if isinstance(jid, Capability):
            pairs = [pair async for pair in self._by_capability.stream(jid, request, timeout, **options)]
            return pairs[-1][0], [event for _, event in pairs]
        return jid, [event async for event in self.stream(jid, request, timeout, **options)]

    async def gather(
        self,
        asks: Iterable[tuple[str | Capability, AgentRequest | Mapping[str, Any] | str]],
        timeout: float = 30.0,
        *,
        limit: int = 16,
        retry: Retry = NO_RETRY,
        separate: bool = False,
    ) -> list[PeerAnswer | PeerError]:
        """Ask many agents, or one agent many questions, and return the answers in the order of `asks`.

        `asks` are pairs of a JID (or a `Capability`) and a request. At most `limit` of them wait for a reply at once. `timeout`
        counts for each from when it is sent. An ask that fails does not disturb the others: its `PeerError` is in the place of
        its answer. `separate` is that of `ask`: questions to one peer that need not know of each other are then answered at the
        same time.

        If this is cancelled, all open asks are retracted.
        """
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        slots = asyncio.Semaphore(limit)

        async def ask(jid: str | Capability, request: AgentRequest | Mapping[str, Any] | str) -> PeerAnswer | PeerError:
            async with slots:
                try:
                    return await self.ask(jid, request, timeout, retry=retry, separate=separate)
                except PeerError as error:
                    return error

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(jid, request)) for jid, request in asks]
        return [task.result() for task in tasks]

    async def first(
        self, jids: Iterable[str], request: AgentRequest | Mapping[str, Any] | str, timeout: float = 30.0
    ) -> PeerAnswer:
        """Ask several agents the same, and return the first answer. The other asks are cancelled, so that their peers stop.

        If none answers, the `PeerError` of the one that failed last is raised; its notes name the others. ValueError without a
        JID.
        """
        payload = request.payload if isinstance(request, AgentRequest) else request
        tasks = {asyncio.create_task(self.ask(jid, payload, timeout)) for jid in jids}
        if not tasks:
            raise ValueError("first needs at least one agent")
        failures: list[PeerError] = []
        try:
            for finished in asyncio.as_completed(tasks):
                try:
                    return await finished
                except PeerError as error:
                    failures.append(error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        last = failures.pop()
        for failure in failures:
            last.add_note(str(failure))
        raise last

    async def stream(
        self,
        jid: str | Capability,
        request: AgentRequest | Mapping[str, Any] | str,
        timeout: float = 30.0,
        *,
        thoughts: bool = False,
        separate: bool = False,
    ) -> AsyncGenerator[PeerEvent]:
        """Ask the agent `jid`, or one with a `Capability`, and yield the events of its reply as they arrive.

        Parameters, errors and retraction are those of `ask`. The request is also retracted if the stream is closed before the
        last event. Python closes it some time after a `break`, a `return` or an exception in the loop. To have it closed at
        once, loop in `async with contextlib.aclosing(peers.stream(...)) as events:`.
        """
        child = request if isinstance(request, AgentRequest) else (await self._begin_step(jid, request))[0]
        if isinstance(jid, Capability):
            pairs = self._by_capability.stream(jid, child, timeout, thoughts=thoughts, separate=separate)
            async with aclosing(pairs):
                async for _, event in pairs:
                    yield event
            return
        message, timeout = self._prepare_request(jid, child, timeout, thoughts=thoughts, separate=separate)
        request_id, send = str(child.request_id), self._transport.send
        has_ended = False
        try:
            async with aclosing(self._requests.events(jid, request_id, timeout, lambda: send([message]))) as events:
                async for event in events:
                    has_ended = event.type in _FINAL_EVENTS
                    yield event
        except (asyncio.CancelledError, GeneratorExit, PeerTimeoutError, AnswerTooLongError):
            if not has_ended and not self._is_stopping():
                send([self._transport.encode_retraction(jid, request_id)])  # so that the peer stops its turn
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
        self._transport.send([self._prepare_request(jid, child)[0]])

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
        if request_id is None:
            request, _ = await self._begin_step(self._topic_broker, request, keeps_id=False)
        answer = await self.ask(self._topic_broker, request, timeout)
        return read_item_id(answer.jid, answer.data)

    async def _begin_step(
        self, jid: str | Capability, request: AgentRequest | Mapping[str, Any] | str, *, keeps_id: bool = True
    ) -> tuple[AgentRequest, DurableStep | None]:
        """Begin the durable step of an ask, if this task runs a turn. Return the request that it sends.

        A text or a payload gets an id that is the same when the turn runs again, so that the peer recognises the request. An
        `AgentRequest` keeps its id, unless `keeps_id` is False.
        """
        journal = CURRENT_JOURNAL.get()
        if journal is None or journal.is_closed:
            return to_request(request), None
        if isinstance(request, AgentRequest):
            payload, capability = request.payload, request.metadata.get("capability")
        else:
            payload, capability = {"query": request} if isinstance(request, str) else dict(request), None
        digest = digest_request(payload, capability).hex()
        peer = f"capability {jid.name}" if isinstance(jid, Capability) else _normalise_jid(jid)
        step = await journal.open_step(f"ask {peer[:_MAX_STEP_JID]} {digest}", (), "retry")
        if isinstance(request, AgentRequest):
            return request if keeps_id else request.model_copy(update={"request_id": UUID(step.key)}), step
        return to_request(request, UUID(step.key)), step

    def _prepare_request(
        self,
        jid: str,
        request: AgentRequest,
        timeout: float | None = None,
        *,
        thoughts: bool = False,
        separate: bool = False,
    ) -> tuple[OutboundMessage, float]:
        """Check a request, count it against `peers.requests_per_root`, and encode it.

        Return it with its time in seconds: `timeout`, or what is left to the current request. Raise a PeerError if it may not
        be sent: to the agent itself, in a circle, above the limit, too late or too long.
        """
        peer = _normalise_jid(jid)
        if peer == self._own_jid:
            problem = "was not asked: this is the agent's own address, and an agent cannot ask itself; name another agent"
            raise PeerError(bare_jid(jid), problem)
        current = CURRENT_REQUEST.get()
        metadata = {} if current is None else current.metadata
        chain = (*metadata.get(CHAIN, ()), self._own_jid)
        if peer in chain:
            problem = f"was not asked: agents would ask in a circle: {describe_chain((*chain, peer))}"
            raise PeerRefusedError(bare_jid(jid), problem)
        if not self._fan_out.allow(request.root_request_id):
            problem = f"was not asked: one request led to {self._fan_out.max_requests} others already (peers.requests_per_root)"
            raise PeerRefusedError(bare_jid(jid), problem)
        now = time.time()
        deadline = 0.0 if timeout is None else now + timeout
        time_s = timeout or 0.0
        if (parent_deadline := metadata.get(DEADLINE, 0.0)) and not 0.0 < deadline <= parent_deadline:
            deadline, time_s = parent_deadline, parent_deadline - now
        if timeout is not None and deadline <= now:
            raise PeerTimeoutError(bare_jid(jid), max(0.0, timeout), has_started=False)
        root_sender = ""
        if current is not None and jid in self._trusted_agents:
            root_sender = metadata.get(ROOT_SENDER) or bare_jid(metadata.get("sender", ""))
        context = RequestContext(metadata.get("hops", 0) + 1, root_sender, chain, deadline, True, thoughts)
        thread = derive_thread(request.session_id, f"{peer} {request.request_id}" if separate else peer)
        reads_batches = self._requests.reads_batches(jid)
        return self._transport.encode_request(jid, request, thread, context, reads_batches=reads_batches), time_s


async def _end_step(step: DurableStep | None, jid: str, events: Sequence[PeerEvent]) -> None:
    """Store the reply to an ask. A very long one is not stored: the peer has it, and gives it again."""
    journal = CURRENT_JOURNAL.get()
    if step is None or journal is None or journal.is_closed:
        return
    reply = to_json((jid, [(event.type, event.data) for event in events])).decode()
    if len(reply) <= _MAX_REPLY_CHARACTERS:
        await journal.close_step_soon(step, reply)


def describe_chain(chain: Iterable[str]) -> str:
    """Return the agents that a request passed through as text: `a@x → b@x → a@x`."""
    return " → ".join(chain)


def to_request(request: AgentRequest | Mapping[str, Any] | str, request_id: UUID | None = None) -> AgentRequest:
    """Return a request as it is. Make a payload or a text a child of the request that this task answers, if there is one.

    `request_id` is the id of a new request.
    """
    if isinstance(request, AgentRequest):
        return request
    payload = {"query": request} if isinstance(request, str) else dict(request)
    fields = {} if request_id is None else {"request_id": request_id}
    current = CURRENT_REQUEST.get()
    if current is not None:
        return current.create_child(payload, **fields)
    return AgentRequest(session_id=uuid4(), payload=payload, **fields)


def command_request(command: str) -> AgentRequest:
    """Make a request of a command of an agent or its platform, written as people do: `/history 50`."""
    return AgentRequest(session_id=uuid4(), payload={"query": command}, metadata={COMMAND_METADATA: True})
