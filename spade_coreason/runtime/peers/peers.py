"""Requests to other agents, as an agent makes them: `Peers`, with retries, deadlines, circles and fan-out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from pydantic_core import to_json

from ...concurrency import cancel_tasks
from ...contracts import AgentRequest
from ...domain.access import TrustedAgents
from ...domain.callers import CALLER_IS_NO_AGENT, HIDDEN_PERSON, is_caller
from ...domain.cards import AgentCard, Capability
from ...domain.identifiers import derive_thread, digest_request
from ...domain.jid import bare_jid
from ...domain.messages import (
    CHAIN,
    COMMAND_METADATA,
    DEADLINE,
    RequestContext,
    find_root,
)
from ...domain.observability import spans
from ...domain.observability.tracing import TURN_TRACE, TurnTrace
from ...domain.policy import REQUESTS_PER_ROOT
from ...exceptions import (
    AnswerTooLongError,
    ConfigError,
    PeerError,
    PeerParkedError,
    PeerRefusedError,
    PeerTimeoutError,
    PeerUnavailableError,
)
from ..channels import OutboundMessage, RequestSender
from ..steps.current import CURRENT_JOURNAL, CURRENT_REQUEST
from ..steps.steps import DurableStep
from .capability_requests import CapabilityRequests
from .directory import AgentFinder, PlatformDirectory
from .open_requests import FINAL_EVENTS, OpenRequests, normalise_jid
from .peer_answers import PeerAnswer, PeerEvent, collect_answer
from .topic_requests import make_publish_request, read_item_id

if TYPE_CHECKING:
    from ..access.known_people import KnownPeople

log = logging.getLogger(__name__)

_MAX_ROOTS = 10_000
_MAX_STEP_JID = 150  # the name of a step has 200 characters at most
_MAX_REPLY_CHARACTERS = 2**17


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

    def __init__(self, max_requests: int = REQUESTS_PER_ROOT) -> None:
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


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """The relations of one agent to others. `AgentParts` takes them whole, and passes them on to `Peers`."""

    platform: PlatformDirectory = field(default_factory=PlatformDirectory)
    """The agents of its platform."""
    directories: tuple[str, ...] = ()
    """The directories of other platforms (bare JIDs)."""
    trusted_agents: TrustedAgents = field(default_factory=TrustedAgents)
    """The agents that tell each other the person whose request they pass on."""
    fan_out: FanOutLimit = field(default_factory=FanOutLimit)
    """The limit of all agents of the process."""
    topic_broker: str | None = None
    """The agent (a bare JID) that passes on the items of topics, if there is one."""
    is_directory: bool = False
    """True for the directory of its platform, whose presence shows the version of the list."""


class Peers:
    """The other agents that an agent can ask. A constructor parameter named `peers` receives it.

    A text or a payload becomes a child of the request that this task answers; so does a request made with
    `request.create_child(...)`. It keeps the lineage, and has no more time than that request has left. It is sent on a thread
    of its own, derived from the calling conversation and the peer. So two people who use one agent have two conversations with
    its peer.

    `jid` is the agent that asks. It asks neither itself nor an agent that waits for the current request, which would be a
    circle. Trusted agents are told the person whose request led to theirs, for whose quotas it counts. `tell` refuses the
    addresses of `people`.
    """

    def __init__(
        self,
        jid: str,
        requests: OpenRequests,
        sender: RequestSender,
        options: PeerOptions,
        people: KnownPeople | None = None,
    ) -> None:
        self.options = options
        self._people = people
        self._topic_broker = options.topic_broker
        self.finder = AgentFinder(bare_jid(jid), options.platform, options.directories)
        """The finder behind `find`; the directory agent of a platform reads its agents there."""
        self._by_capability = CapabilityRequests(self.find, self.stream)
        self._trusted_agents = options.trusted_agents
        self._own_jid = normalise_jid(jid)
        self.requests = requests
        self._sender = sender
        self._fan_out = options.fan_out

    @property
    def jid(self) -> str:
        """The bare JID of the agent that asks."""
        return self._own_jid

    @property
    def is_stopping(self) -> bool:
        """True while a stop of the platform cancels the running turns, whose requests run again after the next start."""
        return self.requests.is_stopping()

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

        Raises `PeerTimeoutError`, `PeerUnavailableError`, `PeerRefusedError`, `PeerFailedError`, `PeerParkedError`,
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
                _end_step(step, answered, events)
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

        An answer ends also those that wait for a person. If there is none, the `PeerParkedError` of one that waits is raised,
        or else the `PeerError` of the one that failed last; its notes name the others. ValueError without a JID.
        """
        payload = request.payload if isinstance(request, AgentRequest) else request
        tasks = {asyncio.create_task(self.ask(jid, payload, timeout)) for jid in jids}
        if not tasks:
            raise ValueError("first needs at least one agent")
        failures: list[PeerError] = []
        try:
            for finished in asyncio.as_completed(tasks):
                try:
                    answer = await finished
                except PeerError as error:
                    failures.append(error)
                else:
                    for failure in failures:
                        if isinstance(failure, PeerParkedError):
                            self._sender.send([self._sender.encode_retraction(failure.jid, failure.request_id)])
                    return answer
        finally:
            await cancel_tasks(*tasks)
        waiting = [failure for failure in failures if isinstance(failure, PeerParkedError)]
        raised = (waiting or failures)[-1]
        for failure in failures:
            if failure is not raised:
                raised.add_note(str(failure))
        raise raised

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
        with _open_span(spans.ASK, jid, child) as traceparent:
            message, timeout = self._prepare_request(jid, child, timeout, traceparent, thoughts=thoughts, separate=separate)
            request_id, send = str(child.request_id), self._sender.send
            has_ended = False
            try:
                async with aclosing(self.requests.events(jid, request_id, timeout, lambda: send([message]))) as events:
                    async for event in events:
                        has_ended = event.type in FINAL_EVENTS
                        yield event
            except (asyncio.CancelledError, GeneratorExit, PeerTimeoutError, AnswerTooLongError):
                if not has_ended and not self.requests.is_stopping():
                    send([self._sender.encode_retraction(jid, request_id)])  # so that the peer stops its turn
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
        with _open_span(spans.TELL, jid, child) as traceparent:
            self._sender.send([self._prepare_request(jid, child, traceparent=traceparent)[0]])

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
        peer = f"capability {jid.name}" if isinstance(jid, Capability) else normalise_jid(jid)
        step = await journal.open_step(f"ask {peer[:_MAX_STEP_JID]} {digest}", (), "retry")
        if isinstance(request, AgentRequest):
            return request if keeps_id else request.model_copy(update={"request_id": UUID(step.key)}), step
        return to_request(request, UUID(step.key)), step

    def _prepare_request(
        self,
        jid: str,
        request: AgentRequest,
        timeout: float | None = None,
        traceparent: str = "",
        *,
        thoughts: bool = False,
        separate: bool = False,
    ) -> tuple[OutboundMessage, float]:
        """Check a request, count it against `peers.requests_per_root`, and encode it.

        Return it with its time in seconds: `timeout`, or what is left to the current request. Raise a PeerError if it may not
        be sent: to the agent itself, in a circle, above the limit, too late or too long.
        """
        peer = normalise_jid(jid)
        if peer == self._own_jid:
            problem = "was not asked: this is the agent's own address, and an agent cannot ask itself; name another agent"
            raise PeerError(bare_jid(jid), problem)
        if is_caller(peer):
            raise PeerError(bare_jid(jid), CALLER_IS_NO_AGENT)
        current = CURRENT_REQUEST.get()
        metadata = {} if current is None else current.metadata
        chain = (*metadata.get(CHAIN, ()), self._own_jid)
        if peer in chain:
            problem = f"was not asked: agents would ask in a circle: {' → '.join((*chain, peer))}"
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
        if current is not None:
            root_sender = find_root(metadata)
            if root_sender != self._own_jid and jid not in self._trusted_agents:
                root_sender = HIDDEN_PERSON  # else the peer would take this agent for the person
        hops = metadata.get("hops", 0) + 1
        context = RequestContext(hops, root_sender, chain, deadline, True, thoughts, traceparent=traceparent)
        thread = derive_thread(request.session_id, f"{peer} {request.request_id}" if separate else peer)
        reads_batches = self.requests.reads_batches(jid)
        return self._sender.encode_request(jid, request, thread, context, reads_batches=reads_batches), time_s


_NO_SPAN = nullcontext("")


def _open_span(name: str, jid: str, request: AgentRequest) -> AbstractContextManager[str]:
    """Return a context manager with a span around a request to an agent. It gives its `traceparent`; "" without tracing."""
    trace = TURN_TRACE.get()
    return _NO_SPAN if trace is None else _run_span(trace, name, bare_jid(jid), request)


@contextmanager
def _run_span(trace: TurnTrace, name: str, peer: str, request: AgentRequest) -> Iterator[str]:
    # It is never the current span: an asynchronous generator shares the context with the task that reads it.
    span = trace.begin(f"{name} {peer}", "client", {spans.PEER: peer, spans.REQUEST: str(request.request_id)})
    span.set_text(spans.PAYLOAD, lambda: request.payload)
    try:
        yield span.traceparent
    except GeneratorExit:  # nobody reads further events
        raise
    except BaseException as error:
        span.fail(type(error).__name__)
        raise
    finally:
        span.end()


def _end_step(step: DurableStep | None, jid: str, events: Sequence[PeerEvent]) -> None:
    """Store the reply to an ask. A very long one is not stored: the peer has it, and gives it again."""
    journal = CURRENT_JOURNAL.get()
    if step is None or journal is None or journal.is_closed:
        return
    reply = to_json((jid, [(event.type, event.data) for event in events])).decode()
    if len(reply) <= _MAX_REPLY_CHARACTERS:
        journal.close_step_soon(step, reply)


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
