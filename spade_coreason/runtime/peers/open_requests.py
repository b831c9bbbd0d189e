"""The open requests of one JID, and the events of their replies.

An event belongs to a reply only if it comes from the JID that was asked, for a request that is still open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...concurrency import RateLimiter
from ...contracts.errors import ErrorCode
from ...domain.jid import bare_jid
from ...domain.messages import MAX_BATCH_REQUESTS, Bounce, InboundMessage, ReplyBatch, ReplyEvent
from ...domain.texts.durations import read_retry_after_s
from ...domain.texts.foreign_json import MAX_JSON_CHARACTERS, parse_foreign_json
from ...exceptions import (
    AnswerTooLongError,
    PeerError,
    PeerFailedError,
    PeerParkedError,
    PeerRefusedError,
    PeerTimeoutError,
    PeerUnavailableError,
)
from .peer_answers import PeerEvent

log = logging.getLogger(__name__)

_MAX_ANSWER_CHARACTERS = 2 * MAX_JSON_CHARACTERS
"""The most JSON in answer to one request, without the XML around it."""
_MAX_BATCH_READERS = 10_000
_MAX_DROPPED_PER_MINUTE = 1000
"""The dropped events of one peer that are not worth a warning: of asks that were cancelled or timed out, or sent twice."""

FINAL_EVENTS = frozenset({"request.completed", "request.failed", "request.refused", "request.parked"})
"""The types of the last event of a request."""


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
    """The requests of one JID that wait for a reply. Events for no open request are dropped, and counted in `dropped`.

    While `is_stopping` returns True, requests that are cancelled are not taken back: their turns run again after the next
    start, and then get the same answers.
    """

    def __init__(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self.is_stopping = is_stopping
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
        return normalise_jid(jid) in self._batch_readers

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
        sender = normalise_jid(reply.sender)
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
        sender = normalise_jid(bounce.sender)
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
        key = request_id, normalise_jid(jid)
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
                if arrival.type in FINAL_EVENTS:
                    _raise_if_failed(request.jid, arrival, timeout_s)
                    return


def normalise_jid(jid: str) -> str:
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


def _raise_if_failed(jid: str, final_event: ReplyEvent, timeout_s: float) -> None:
    message = str(final_event.data.get("message", "no reason given"))
    code = final_event.data.get("code")
    if final_event.type == "request.refused":
        if code == ErrorCode.TIMEOUT:  # the agent saw the end of our time first
            raise PeerTimeoutError(jid, timeout_s)
        raise PeerRefusedError(jid, f"refuses: {message}", read_retry_after_s(final_event.data.get("retry_after_s")))
    if final_event.type == "request.parked":
        raise PeerParkedError(jid, final_event.request_id)
    if final_event.type == "request.failed":
        known_code = code if isinstance(code, int) else None
        raise PeerFailedError(jid, message, known_code, has_asked="has_asked" in final_event.data)
