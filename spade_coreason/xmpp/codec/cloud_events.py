"""CloudEvents 1.0 in JSON containers (XEP-0335): the messages between programs and agents."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, TypeGuard
from uuid import UUID, uuid4
from zlib import crc32

from pydantic import ValidationError
from pydantic_core import to_json

from ...contracts import ClientCapabilities
from ...domain.callers import HIDDEN_PERSON
from ...domain.channel_kinds import PROGRAM
from ...domain.jid import bare_jid
from ...domain.messages import (
    LINEAGE_FIELDS,
    MAX_BATCH_REQUESTS,
    MAX_ID_CHARACTERS,
    NO_CONTEXT,
    PROGRAM_HEADERS,
    RESERVED_METADATA,
    InboundMessage,
    InboundRequest,
    MalformedRequest,
    ReplyBatch,
    ReplyEvent,
    RequestBatch,
    RequestContext,
)
from ...domain.observability.tracing import read_traceparent
from ...domain.texts.foreign_json import parse_foreign_json
from ...domain.texts.text import replace_lone_surrogates
from ...runtime import OutboundMessage
from .elements import ANSWER_MARKER_XML, MAX_CHARACTER_BYTES, sent_thread, text_bytes, thread_element
from .namespaces import FRAGMENT_TYPE, JSON_NAMESPACE, ORIGIN_ID_NAMESPACE, REQUEST_TYPE, RETRACT_NAMESPACE, TYPE_PREFIX
from .xml import clean, escape_attribute, escape_clean, split_text, wire_size

_BATCH_CHARACTERS = 4096
"""Number of characters from which on collected events are sent at once."""
_ENVELOPE_BYTES = 1024
"""The bytes that a request takes besides its JSON, in its stanza."""
_JSON_START = f"<json xmlns='{JSON_NAMESPACE}'>"
_MAX_BYTES = 5
"""Number of bytes of a character in a stanza, at most: an ampersand, escaped."""


class EventWriter(ABC):
    """Writer of CloudEvents 1.0 as messages, of which `write` gives the form.

    Events are collected until `flush`, or until they are long enough. A receiver that `accepts_batches` gets them as a JSON
    array in one message (the JSON batch format of CloudEvents), any other a message for each. An event that is too long for one
    message is sent as ordered fragments of its JSON. The messages are as long as stanzas of `stanza_bytes` may be.
    """

    def __init__(
        self,
        *,
        to: str,
        source: str,
        thread: str | None,
        id_prefix: str,
        request_id: str,
        stanza_bytes: int,
        accepts_batches: bool = False,
    ) -> None:
        self.recipient, self.thread = to, thread
        self._source = _json_text(source)
        self._request_id = _json_text(request_id)
        self._id_prefix = id_prefix
        self.json_bytes = text_bytes(stanza_bytes, to, thread)
        """The most bytes that the JSON of a message may have in a stanza."""
        self._event_count = 0
        self._thought_count = 0
        self._checksum = 0
        self._accepts_batches = accepts_batches
        self._batch: list[str] = []
        """The collected events for the next batch, as JSON."""
        self._batch_id = ""
        self._messages: list[str] = []
        """The collected messages. The events of `_batch` come after them."""
        self._characters = 0
        """The characters of all that is collected."""

    @abstractmethod
    def write(self, message_id: str, text: str) -> str:
        """Return a message with this JSON."""

    @abstractmethod
    def readdress(self, content: str, recipient: str) -> str:
        """Return a message, which was written here, for another recipient."""

    def add(self, kind: str, data: dict[str, Any]) -> list[str]:
        """Add an event. Return the messages to send now, of all events so far: none while more events may come."""
        json_data = _json_text(data)
        event_id = self._next_id(kind, json_data)
        event = self._encode_event(kind, event_id, json_data)
        self._characters += len(event) + 1
        if self._accepts_batches and _MAX_BYTES * (len(event) + _BATCH_CHARACTERS) <= self.json_bytes:
            self._batch.append(event)
            self._batch_id = event_id
        else:
            self._close_batch()
            self._messages += self._write_event(event_id, event)
        return self.flush() if self._characters >= _BATCH_CHARACTERS else []

    def flush(self) -> list[str]:
        """Return the messages of all collected events."""
        self._close_batch()
        messages, self._messages, self._characters = self._messages, [], 0
        return messages

    def _close_batch(self) -> None:
        """Make a message of the events for the next batch. Its id is that of its last event."""
        if self._batch:
            self._messages.append(self.write(self._batch_id, f"[{','.join(self._batch)}]"))
            self._batch.clear()

    def _write_event(self, event_id: str, whole: str) -> list[str]:
        """Return the messages of one event: one, or several fragments if it is too long."""
        if len(whole) * _MAX_BYTES <= self.json_bytes or wire_size(whole) <= self.json_bytes:
            return [self.write(event_id, whole)]
        # A fragment is quoted JSON again. A quote or a backslash takes twice the bytes, so a part gets a third of the room.
        parts = list(split_text(whole, self.json_bytes // 3, at_boundaries=False))
        fragments = []
        for index, part in enumerate(parts):
            fragment_id = f"{event_id}.{index}"
            fragment = {"event_id": event_id, "index": index, "count": len(parts), "chunk": part}
            text = self._encode_event(FRAGMENT_TYPE.removeprefix(TYPE_PREFIX), fragment_id, _json_text(fragment))
            fragments.append(self.write(fragment_id, text))
        return fragments

    def _next_id(self, kind: str, data: str) -> str:
        """Derive the id of an event; `data` is JSON. The same event after the same events has the same id.

        A turn that runs again may produce a different event. From there on all its events get new ids, so that receivers
        of the first run take them as new. This includes a piece of text that both runs have at the same place.
        A thought does not change the ids of later events.
        """
        checksum = crc32((kind + data).encode(), self._checksum)
        if kind == "block.thought":
            self._thought_count += 1
            return f"{self._id_prefix}-{self._event_count}.{self._thought_count}-{checksum:08x}"
        self._checksum = checksum
        self._event_count += 1
        return f"{self._id_prefix}-{self._event_count - 1}-{checksum:08x}"

    def _encode_event(self, kind: str, event_id: str, data: str) -> str:
        """Return a CloudEvent with its data, which is JSON."""
        return (
            f'{{"specversion":"1.0","type":"{TYPE_PREFIX}{kind}","source":{self._source},"id":"{event_id}",'
            f'"time":{to_json(datetime.now(UTC)).decode()},"datacontenttype":"application/json",'
            f'"requestid":{self._request_id},"data":{data}}}'
        )


class EventStanzaWriter(EventWriter):
    """Writer of CloudEvents as stanzas."""

    def write(self, message_id: str, text: str) -> str:
        return (
            f"<message to='{escape_attribute(self.recipient)}' id='{message_id}'>{_JSON_START}{escape_clean(text)}</json>"
            f"{thread_element(self.thread)}{ANSWER_MARKER_XML}{_origin_id_element(message_id)}</message>"
        )

    def readdress(self, content: str, recipient: str) -> str:
        _, _, rest = content.partition("' id='")
        return f"<message to='{escape_attribute(recipient)}' id='{rest}"


def read_reply_json(stanza: str) -> str | None:
    """Return the JSON of a stanza of an `EventStanzaWriter`, without parsing XML; None for any other stanza of ours."""
    _, _, rest = stanza.partition(_JSON_START)
    text, _, tail = rest.partition("</json>")
    if ANSWER_MARKER_XML not in tail:
        return None
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") if "&" in text else text


def _origin_id_element(stanza_id: str) -> str:
    return f"<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/>"


class RequestMessage(OutboundMessage):
    """A program's request on its way (event type `ai.coreason.request`): JSON text, with its thread and its context.

    The text is a copy that does not change. An agent of this process reads it with `read`. Its stanza, the `content`, is
    written when it is needed. Both give the recipient the same request.

    `request_json` is the dump of an AgentRequest, without what JSON cannot have. If the recipient `reads_batches`, the event in
    the stanza is in an array, with its thread.
    """

    def __init__(
        self,
        to: str,
        request_json: dict[str, Any],
        *,
        source: str,
        thread: str | None,
        stanza_id: str,
        context: RequestContext = NO_CONTEXT,
        reads_batches: bool = False,
    ) -> None:
        self.recipient, self.is_last, self.is_acknowledged = to, False, False
        self.on_acknowledged = self.on_refused = None
        self.on_written = bool
        self._text = _json_text(request_json)
        self._source, self._thread, self._stanza_id = source, thread, stanza_id
        self._context, self._reads_batches = context, reads_batches

    def find_excess(self, limit_bytes: int) -> int:
        """Return the size in bytes of a request that is longer than `limit_bytes`; 0 for all others.

        It is as large as its JSON is in a stanza, and 1 KiB for all around it. Long addresses may take more.
        """
        context = self._context
        around = len(self.recipient) + len(self._source) + 2 * len(self._thread or "") + len(context.root_sender)
        characters = len(self._text) + around + sum(map(len, context.chain))
        if MAX_CHARACTER_BYTES * characters + _ENVELOPE_BYTES <= limit_bytes:
            return 0  # nearly always
        size = max(wire_size(self._text) + _ENVELOPE_BYTES, len(self.content.encode()))
        return size if size > limit_bytes else 0

    @cached_property
    def content(self) -> str:  # type: ignore[override]  # a cached property can be set
        """The stanza."""
        thread, stanza_id = sent_thread(self._thread), escape_attribute(self._stanza_id)
        fields: dict[str, Any] = {
            "specversion": "1.0",
            "type": f"{TYPE_PREFIX}request",
            "source": self._source,
            "id": self._stanza_id,
            "time": datetime.now(UTC),
            "datacontenttype": "application/json",
        }
        if self._reads_batches and thread is not None:
            fields["thread"] = thread
        event = self._write_event(fields)
        text = escape_clean(f"[{event}]" if self._reads_batches else event)
        return (
            f"<message to='{escape_attribute(self.recipient)}' id='{stanza_id}'>"
            f"{_JSON_START}{text}</json>{thread_element(thread)}{_origin_id_element(stanza_id)}</message>"
        )

    def read(self, sender: str) -> InboundRequest | MalformedRequest:
        """Read the request as its recipient reads the stanza, which comes from `sender` (a full JID)."""
        thread = sent_thread(self._thread)
        if thread is not None and len(thread) > MAX_ID_CHARACTERS:
            return refuse_long_id(sender)
        try:
            text = self._write_event({"id": self._stanza_id})
            # In an array it is a level deeper, which counts.
            event = parse_foreign_json(f"[{text}]")[0] if self._reads_batches else parse_foreign_json(text)
        except ValueError:
            return MalformedRequest(sender, self._stanza_id, thread, _NO_REQUEST)
        context = _read_context(event, time.time())
        return _read_request(event["data"], self._text, sender, self._stanza_id, thread, context)

    def _write_event(self, fields: dict[str, Any]) -> str:
        """Return an event with these fields and the data. The parts of the context are extension attributes."""
        return f'{_json_text(fields | _context_attributes(self._context))[:-1]},"data":{self._text}}}'


def retraction_stanza(to: str, stanza_id: str) -> str:
    """Encode the retraction (XEP-0424) of the request with that id, at whatever stage it is."""
    retract = f"<retract xmlns='{RETRACT_NAMESPACE}' id='{escape_attribute(stanza_id)}'/>"
    return f"<message to='{escape_attribute(to)}' id='{uuid4()}'>{retract}</message>"


def _json_text(value: Any) -> str:
    """Return a value as JSON that is valid in XML once it is escaped."""
    try:
        text = to_json(value)
    except ValueError:  # lone surrogates, which UTF-8 cannot encode
        text = to_json(replace_lone_surrogates(value))
    return clean(text.decode())


def refuse_long_id(sender: str, *, is_text: bool = False) -> MalformedRequest:
    """Return what is read in place of a request whose id or thread is too long: neither is repeated."""
    problem = f"an id or a thread has more than {MAX_ID_CHARACTERS:,} characters"
    return MalformedRequest(sender, "", None, problem, is_text=is_text)


_NO_REQUEST = "the JSON container holds no CloudEvent of a request"
_MAX_JID_CHARACTERS = 3071  # RFC 7622, 3.1
_MAX_CHAIN = 64  # more agents than a request may pass through
_MAX_NUMBER = 2**31  # an Integer of CloudEvents 1.0 has 32 bits
FOREIGN_CONTAINER = MalformedRequest("", "", None, "a container of another application")

_parse_uuid = lru_cache(maxsize=256)(UUID)  # most requests are their own root


def read_container(
    text: str,
    sender: str,
    stanza_id: str,
    thread: str | None,
    is_answer: bool,
    has_body: bool,
    sent_at: float | None = None,
) -> InboundMessage:
    """Read a JSON container (XEP-0335). `sent_at` is the time (in seconds since 1970) of a message that was stored on its way.

    Another application's container gives FOREIGN_CONTAINER: then only the body beside it counts.
    """
    try:
        event = parse_foreign_json(text)
    except ValueError:
        event = None
    if isinstance(event, list):
        if not is_answer and _is_request(event):
            return _read_requests(event, sender, stanza_id, thread, time.time() if sent_at is None else sent_at)
        if (batch := _read_batch(event, sender, len(text))) is not None:
            return batch
    kind = event.get("type") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(kind, str) or not kind.startswith(TYPE_PREFIX):
        if has_body or is_answer or (isinstance(event, dict) and kind is not None):
            return FOREIGN_CONTAINER
        return MalformedRequest(sender, stanza_id, thread, _NO_REQUEST)
    if kind != REQUEST_TYPE:
        return _read_reply_event(event, sender, len(text))
    if is_answer:
        return None
    context = _read_context(event, time.time() if sent_at is None else sent_at)
    return _read_request(event.get("data"), text, sender, stanza_id, thread, context)


def read_events(text: str | None, sender: str) -> InboundMessage:
    """Read the events of a reply of a program, as JSON. None for any other text, as `decode` reads it, and for None."""
    reply = None if text is None else read_container(text, sender, "", None, is_answer=True, has_body=False)
    return None if reply is FOREIGN_CONTAINER else reply


def _read_batch(events: list[Any], sender: str, characters: int) -> ReplyBatch | None:
    """Read several events of replies (the JSON batch format of CloudEvents). None if there is none."""
    each = math.ceil(characters / max(1, len(events)))
    objects = [event for event in events if isinstance(event, dict)]
    replies = [reply for event in objects if (reply := _read_reply_event(event, sender, each)) is not None]
    return ReplyBatch(tuple(replies)) if replies else None


def _is_request(events: list[Any]) -> bool:
    return bool(events) and isinstance(events[0], dict) and events[0].get("type") == REQUEST_TYPE


def _read_requests(events: list[Any], sender: str, stanza_id: str, thread: str | None, sent_at: float) -> InboundMessage:
    """Read a batch of requests. The id of each event is that of its request, as the id of a message is."""
    if len(events) > MAX_BATCH_REQUESTS:
        return MalformedRequest(sender, stanza_id, thread, f"the JSON container holds more than {MAX_BATCH_REQUESTS} requests")
    requests: list[InboundRequest | MalformedRequest] = []
    for event in events:
        if not isinstance(event, dict) or event.get("type") != REQUEST_TYPE:
            problem = "the JSON container mixes requests with other events"
            requests.append(MalformedRequest(sender, stanza_id, thread, problem))
            continue
        own_thread = event.pop("thread", thread)
        own_id = event.get("id")
        if not _is_id(own_id) or not (own_thread is None or _is_id(own_thread)):
            problem = f"an id or a thread is not a text of 1 to {MAX_ID_CHARACTERS} characters that XML allows"
            requests.append(MalformedRequest(sender, stanza_id, thread, problem))
            continue
        context, text = _read_context(event, sent_at), _json_text(event)  # the text of the event without a batch
        requests.append(_read_request(event.get("data"), text, sender, own_id, own_thread, context))
    return RequestBatch(tuple(requests))


def _is_id(value: Any) -> TypeGuard[str]:
    # JSON can have characters that XML cannot: no reply could repeat them, and PostgreSQL does not store each of them.
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARACTERS and clean(value) == value


def _read_reply_event(event: Mapping[str, Any], sender: str, characters: int) -> ReplyEvent | None:
    """Read an event of a reply. None for another event, or one that is malformed."""
    kind, request_id, data = event.get("type"), event.get("requestid"), event.get("data")
    if not isinstance(kind, str) or not kind.startswith(TYPE_PREFIX) or kind == REQUEST_TYPE:
        return None
    if not isinstance(request_id, str) or not isinstance(data, dict):
        return None
    return ReplyEvent(sender, request_id, kind.removeprefix(TYPE_PREFIX), str(event.get("id")), data, characters)


def _context_attributes(context: RequestContext) -> dict[str, Any]:
    """Return the extension attributes of a request: names of lower-case letters, and simple values (CloudEvents 1.0)."""
    attributes: dict[str, Any] = {}
    if context.hops:
        attributes["hops"] = context.hops
    if context.root_sender:
        attributes["rootsender"] = context.root_sender
    if context.chain:
        attributes["chain"] = " ".join(context.chain)
    if context.deadline:
        attributes["remainingms"] = max(0, math.ceil((context.deadline - time.time()) * 1000))
    if context.accepts_batches:
        attributes["batch"] = True
    if context.wants_thoughts:
        attributes["thoughts"] = True
    if context.traceparent:
        attributes["traceparent"] = context.traceparent  # CloudEvents' distributed tracing extension
    return attributes


def _read_context(event: Mapping[str, Any], sent_at: float) -> RequestContext:
    """Read the extension attributes of a request, whose time runs from `sent_at`. One of a wrong type counts as missing.

    A root sender that is no text hides the person, as one that is no JID does.
    """
    hops, root_sender, chain, remaining_ms = (event.get(name) for name in ("hops", "rootsender", "chain", "remainingms"))
    is_text = isinstance(root_sender, str) and len(root_sender) <= _MAX_JID_CHARACTERS
    return RequestContext(
        hops if isinstance(hops, int) and 0 < hops < _MAX_NUMBER else 0,
        bare_jid(root_sender).lower() if is_text else "" if root_sender is None else HIDDEN_PERSON,
        tuple(jid.lower() for jid in chain.split()[-_MAX_CHAIN:]) if isinstance(chain, str) else (),
        sent_at + remaining_ms / 1000 if isinstance(remaining_ms, int) and 0 <= remaining_ms < _MAX_NUMBER else 0.0,
        event.get("batch") is True,
        event.get("thoughts") is True,
        traceparent=read_traceparent(event.get("traceparent")),
    )


def _read_request(
    data: Any, text: str, sender: str, stanza_id: str, thread: str | None, context: RequestContext
) -> InboundRequest | MalformedRequest:
    """Read a request from the data of an event.

    Only payload, capabilities, lineage and unreserved metadata are taken from the envelope, as data.
    """

    def malformed(problem: str) -> MalformedRequest:
        given_id = data.get("request_id") if isinstance(data, dict) else None
        is_id = isinstance(given_id, str) and len(given_id) <= MAX_ID_CHARACTERS
        return MalformedRequest(sender, stanza_id, thread, problem, given_id if is_id else None)

    if not isinstance(data, dict) or not isinstance(data.get("payload"), dict):
        return malformed("data.payload is no object")
    metadata = data.get("metadata") or {}
    if not isinstance(metadata, dict):
        return malformed("data.metadata is no object")
    try:
        ids = [_parse_uuid(data[name]) if data.get(name) is not None else None for name in LINEAGE_FIELDS]
        capabilities = data.get("capabilities")
        if capabilities is not None:
            capabilities = ClientCapabilities.model_validate(capabilities)
    except (ValueError, TypeError, AttributeError) as error:
        problem = "data.capabilities is wrong" if isinstance(error, ValidationError) else "an id in data is no UUID"
        return malformed(problem)
    if context.traceparent:  # a message that is sent again has the same content, and another span
        text = text.replace(context.traceparent, "")
    request_id, root, parent = ids
    if parent is not None and root is None:
        return malformed("Broken Trace: Root ID missing while Parent ID is present")
    return InboundRequest(
        PROGRAM,
        sender,
        stanza_id,
        thread,
        data["payload"],
        f"{thread}\n{text}",
        {k: v for k, v in metadata.items() if k not in RESERVED_METADATA},
        PROGRAM_HEADERS,
        request_id=request_id,
        context=context._replace(root_request_id=root, parent_request_id=parent, capabilities=capabilities),
        owner=bare_jid(sender),
    )
