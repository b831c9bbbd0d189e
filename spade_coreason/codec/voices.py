"""What an agent says, as stanzas: events to a program, text to a person, SPADE's form to a SPADE agent.

A voice serves one turn. It is pure: an event goes in, stanzas come out as strings, in order. The ids of what it makes derive
from the inbox key of the request, so that an answer sent twice is recognised; each id is also the origin-id (XEP-0359).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5
from zlib import crc32

from pydantic_core import to_json

from ..contracts import ErrorCode, ThinkingBlock, UserErrorBlock
from ..names import bare
from .events import (
    Completed,
    Failed,
    Refused,
    Said,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TurnEvent,
)
from .forms import result_form
from .incoming import Incoming, Malformed
from .markdown import styled
from .namespaces import (
    CHAT_STATES_NAMESPACE,
    CORRECTION_NAMESPACE,
    FORM_NAMESPACE,
    FRAGMENT,
    HINTS_NAMESPACE,
    JSON_NAMESPACE,
    MARKER_NAMESPACE,
    MARKERS_NAMESPACE,
    OOB_NAMESPACE,
    ORIGIN_ID_NAMESPACE,
    QUICK_RESPONSE_NAMESPACE,
    RECEIPTS_NAMESPACE,
    REPLY_NAMESPACE,
    SPADE_FORM,
    SPADE_THREAD,
    TYPE_PREFIX,
)
from .rendering import block_text, thought_text
from .tables import FENCE
from .xml import attribute, clean, escape, printable, split, wire_size

_END = "</message>"
_MARKER = f"<answer xmlns='{MARKER_NAMESPACE}'/>"
# What a stanza has besides its text, thread and addressee, at most.
_ENVELOPE_BYTES = 2048
_MOST_A_CHARACTER_TAKES = 6  # a quote in an attribute
_LEAST_TEXT_BYTES = 1024

ChainedTo: TypeAlias = Callable[[], str | None]


class Voice(Protocol):
    """The language of one turn."""

    @property
    def shows_typing(self) -> bool:
        """Whether the other side uses chat states (XEP-0085)."""
        ...

    @property
    def grows(self) -> bool:
        """Whether a stream is shown as a message that grows (XEP-0308)."""
        ...

    @property
    def shows_files(self) -> bool:
        """Whether a text that is too long may be a file, and a link the file behind it: a person listens."""
        ...

    def say(self, event: TurnEvent) -> list[str]:
        """The stanzas that `event` becomes now; none where it waits for more, or is not for this listener."""
        ...

    def growth(self, stream_id: str) -> list[str]:
        """Where it `grows`: a stream that has more to show than before, as it stands. Nothing of it is to be kept."""
        ...

    def composing(self) -> str | None:
        """The stanza that says "typing…", where `shows_typing`."""
        ...

    def paused(self) -> str | None:
        """The stanza that takes "typing…" back, where it was said and no answer comes."""
        ...

    def withdrawn(self) -> list[str]:
        """The last words of an answer that nobody wants any more: only where something of it is seen already."""
        ...


def voice_for(
    incoming: Incoming,
    key: UUID,
    agent: str,
    stanza_bytes: int,
    *,
    grows: bool = False,
    chained_to: ChainedTo = lambda: None,
    is_rerun: bool = False,
    thoughts: bool = False,
    refers: bool = False,
) -> Voice:
    """The voice for whoever sent `incoming` to the bare JID `agent`. No stanza it makes exceeds `stanza_bytes`.

    `grows`: every device of the person shows corrections. `chained_to` names, whenever it is called, the one device of theirs
    where each correction has to name the version before it. `is_rerun`: of the same turn something may have been said before.
    `thoughts`: the person reads them. `refers`: the device that asked shows replies.
    """
    if incoming.language == "program":
        return ProgramVoice(incoming, key, agent, stanza_bytes)
    if incoming.language == "spade":
        return SpadeVoice(incoming, key, stanza_bytes)
    if incoming.language == "room":
        return RoomVoice(incoming, key, stanza_bytes)
    return PersonVoice(
        incoming,
        key,
        stanza_bytes,
        grows=grows,
        chained_to=chained_to,
        is_rerun=is_rerun,
        thoughts=thoughts,
        refers=refers,
    )


def displayed(incoming: Incoming) -> str:
    """The chat marker (XEP-0333) that says that a request is read."""
    return (
        f"<message to='{attribute(_address(incoming))}' type='{attribute(incoming.message_type)}'>"
        f"<displayed xmlns='{MARKERS_NAMESPACE}' id='{attribute(incoming.stanza_id)}'/>{_MARKER}"
        f"{thread_element(incoming.thread)}</message>"
    )


def receipt(incoming: Incoming) -> str:
    """The delivery receipt (XEP-0184) for a request."""
    return (
        f"<message to='{attribute(_address(incoming))}' id='{attribute('receipt-' + incoming.stanza_id)}'>"
        f"<received xmlns='{RECEIPTS_NAMESPACE}' id='{attribute(incoming.stanza_id)}'/></message>"
    )


def notice(to: str, text: str, choices: Iterable[tuple[str, str]] = ()) -> str:
    """What an agent says to a person (a bare JID) without having been asked. Marked as an answer, so that no agent answers.

    `choices` are what they may say to it: a value and its label each.
    """
    # Clients take a first message without a chat state (XEP-0085) for one of somebody who uses none, and then send none.
    stanza_id = str(uuid4())
    return (
        f"<message to='{attribute(to)}' type='chat' id='{stanza_id}'><body>{escape(text)}</body>"
        f"<active xmlns='{CHAT_STATES_NAMESPACE}'/>{_responses(choices)}{_MARKER}"
        f"<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/></message>"
    )


def _responses(choices: Iterable[tuple[str, str]]) -> str:
    """What may be answered (XEP-0439)."""
    return "".join(
        f"<response xmlns='{QUICK_RESPONSE_NAMESPACE}' value='{attribute(value)}' label='{attribute(label)}'/>"
        for value, label in choices
    )


def _address(incoming: Incoming) -> str:
    """Where text goes: to a person wherever they are now, they may have changed the device."""
    return incoming.address or bare(incoming.sender)


def thread_element(thread: str | None) -> str:
    """The native thread, echoed."""
    return f"<thread>{escape(thread)}</thread>" if thread else ""


def _room(stanza_bytes: int, to: str, thread: str | None) -> int:
    """The bytes that a stanza to `to` on `thread` has for its text."""
    taken = _ENVELOPE_BYTES + _MOST_A_CHARACTER_TAKES * (len(to) + len(thread or ""))
    return max(stanza_bytes - taken, _LEAST_TEXT_BYTES)


def _stanza_id(prefix: str, number: int, said: str) -> str:
    """The same for the same thing said again, by a turn that runs again; another if the agent says something else this time."""
    return f"{prefix}-{number}-{crc32(said.encode('utf-8', 'surrogatepass')):08x}"


class _Growing:
    """A stream to a person: its text so far, and the message in which it grows."""

    __slots__ = ("chained_to", "chunks", "last_id", "message_id", "reply", "shown", "versions")

    def __init__(self, message_id: str) -> None:
        self.chunks: list[str] = []
        self.shown = 0
        self.reply: str | None = None
        """The reference to the question in every version of it, as soon as there is one."""
        self.message_id = message_id
        self.versions = 0
        self.last_id: str | None = None
        self.chained_to: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    @property
    def styled(self) -> str:
        """As a person reads it; what is marked and not complete yet stands as it is."""
        return styled(self.text)

    def cut_off(self, why: str) -> str:
        """Its text, which ends before its end."""
        return _and_more(self.styled.rstrip(), f"… ({why})")

    @property
    def has_more(self) -> bool:
        """Whether there is something to show that was not shown."""
        return self.shown < len(self.chunks) and bool(self.text.strip())


class PersonVoice:
    """Text with Message Styling (XEP-0393) for people: every block a message, a stream one message.

    Where it `grows`, a stream is shown before it is whole. Where it `refers`, the first message is a reply to the question.

    What a stream shows while it grows is for the moment: not stored, not copied, never twice. Its last version is a correction
    like the others (XEP-0308) and complete in itself; only that one is kept. Nor is a thought, which is no part of the answer.
    A device to which it is chained drops corrections of what it has not seen: whatever came there instead of it gets the whole
    text, which corrects nothing.
    """

    shows_files = True
    offers = True
    """Whether answers may be offered: what is chosen is said to the agent as it is."""

    def __init__(
        self,
        incoming: Incoming,
        key: UUID,
        stanza_bytes: int,
        *,
        grows: bool = False,
        chained_to: ChainedTo = lambda: None,
        is_rerun: bool = False,
        thoughts: bool = False,
        refers: bool = False,
    ) -> None:
        self._incoming = incoming
        self._key = str(key)
        self._made = 0
        self._reply = _reply_to(incoming) if refers or incoming.uses_replies else ""
        self._stanza_bytes = stanza_bytes
        self._body_bytes = _room(stanza_bytes - len(self._reply.encode()), incoming.sender, incoming.thread)
        self._streams: dict[str, _Growing] = {}
        self._begun = 0
        self._typing = False
        self._chained_to = chained_to
        self._is_rerun = is_rerun
        self._says_thoughts = thoughts
        self._thoughts = 0
        self.grows = grows
        self.shows_typing = incoming.uses_chat_states

    def say(self, event: TurnEvent) -> list[str]:
        if isinstance(event, StreamChunk):
            self._streams[event.stream_id].chunks.append(event.chunk)
        elif isinstance(event, StreamStarted):
            stream = self._streams[event.stream_id] = _Growing(f"{self._key}-s{self._begun}")
            stream.chained_to = self._chained_to()
            self._begun += 1
        elif isinstance(event, StreamEnded):
            stream = self._streams.pop(event.stream_id)
            return self._whole(stream.styled if event.text is None else event.text, event.links, stream)
        elif isinstance(event, Completed) or (isinstance(event, Failed) and event.reported):
            return [self._chat_state("active")] if self._typing else []
        elif isinstance(event, Said):
            block = event.block
            if isinstance(block, ThinkingBlock):
                return self._thought(block.content)
            text = block_text(block) if event.text is None else event.text
            return self._offering(self._whole(text, event.links), event.choices)
        elif isinstance(event, StreamAborted):
            stream = self._streams.pop(event.stream_id)
            return self._text(stream.cut_off(f"interrupted: {event.reason}"), stream) if stream.text.strip() else []
        elif isinstance(event, Failed | Refused):
            return self._text(event.message)
        return []

    def growth(self, stream_id: str) -> list[str]:
        stream = self._streams[stream_id]
        return [self._version(stream)] if self.grows and stream.has_more and self._may_show(stream) else []

    def composing(self) -> str | None:
        if not self._incoming.uses_chat_states:
            return None
        return self._chat_state("composing")

    def paused(self) -> str | None:
        return self._chat_state("paused") if self._typing else None

    def withdrawn(self) -> list[str]:
        seen = [stream for stream in self._streams.values() if stream.versions]
        return [stanza for stream in seen for stanza in self._text(stream.cut_off("taken back"), stream)]

    def _chat_state(self, state: str) -> str:
        self._typing = state == "composing"
        to = attribute(_address(self._incoming))
        return (
            f"<message to='{to}' type='chat'><{state} xmlns='{CHAT_STATES_NAMESPACE}'/>{_MARKER}"
            f"{thread_element(self._incoming.thread)}{_hint('no-store')}</message>"
        )

    def _may_show(self, stream: _Growing) -> bool:
        return not stream.versions or self._replaced(stream) is not None

    def _replaced(self, stream: _Growing) -> str | None:
        """The id that the next version of a stream corrects; None where there is nothing to correct."""
        if stream.chained_to is not None:
            return stream.last_id if self._chained_to() == stream.chained_to else None
        # Of a turn that runs again the first run may have shown something already.
        return stream.message_id if stream.versions or self._is_rerun else None

    def _version(self, stream: _Growing) -> str:
        """The stream as it stands, as much of it as one stanza takes."""
        stream.shown = len(stream.chunks)
        self._typing = self.shows_typing
        text = self._fitting(clean(stream.styled).strip())
        replaced = self._replaced(stream)
        number, stream.versions = stream.versions, stream.versions + 1
        is_first = not (number or self._is_rerun)
        stanza_id = stream.message_id if is_first else f"{stream.message_id}.{number}{'r' if self._is_rerun else ''}"
        stream.last_id = stanza_id
        if stream.reply is None:
            stream.reply = self._take_reply()
        extra = f"{self._state}{_replacing(replaced)}{stream.reply}{_hint('no-store')}{_hint('no-copy')}"
        return self._stanza(stanza_id, text, extra)

    @property
    def _state(self) -> str:
        """Beside what is said before the end: there is more to come."""
        return f"<composing xmlns='{CHAT_STATES_NAMESPACE}'/>" if self.shows_typing else ""

    def _fitting(self, text: str) -> str:
        """As much of a text as one stanza takes."""
        if len(text) * 12 > self._body_bytes and wire_size(text) > self._body_bytes:
            return _and_more(next(split(text, self._body_bytes - 16)), " …")
        return text

    def _thought(self, content: str) -> list[str]:
        """Its lines in italics, in one stanza: what is too long for it is cut off."""
        text = clean(content).strip()
        if not text or not self._says_thoughts:
            return []
        stanza_id = _stanza_id(f"{self._key}-t", self._thoughts, text)
        self._thoughts += 1
        self._typing = self.shows_typing
        return [self._stanza(stanza_id, self._fitting(thought_text(text)), self._state + _hint("no-store"))]

    def _whole(self, text: str, links: tuple[str, ...], stream: _Growing | None = None) -> list[str]:
        """A text, and behind it a message for each link; one where the text is the link."""
        if (alone := text.strip()) in links:
            return self._text(alone, stream, is_link=True)
        return [*self._text(text, stream), *(message for link in links for message in self._text(link, is_link=True))]

    def _offering(self, stanzas: list[str], choices: Iterable[tuple[str, str]]) -> list[str]:
        """With what may be answered (XEP-0439) in the last stanza, if it has room for it; the text says it too."""
        offered = _responses(choices)
        if not offered or not stanzas or not self.offers:
            return stanzas
        whole = f"{stanzas[-1].removesuffix(_END)}{offered}{_END}"
        return [*stanzas[:-1], whole] if len(whole.encode()) <= self._stanza_bytes else stanzas

    def _text(self, text: str, stream: _Growing | None = None, *, is_link: bool = False) -> list[str]:
        text = clean(text).strip()
        if not text:
            return []
        replaced = self._replaced(stream) if stream is not None and self.grows else None
        reply = stream.reply if stream is not None and stream.reply is not None else self._take_reply()
        if is_link:
            return [self._message(text, replaced, reply + _file_at(text))]
        if len(text) * 12 <= self._body_bytes or wire_size(text) <= self._body_bytes:
            return [self._message(text, replaced, reply)]
        first, *others = split(text, self._body_bytes)
        return [self._message(first, replaced, reply), *(self._message(part) for part in others)]

    def _take_reply(self) -> str:
        reply, self._reply = self._reply, ""
        return reply

    def _message(self, text: str, replaced: str | None = None, beside: str = "") -> str:
        stanza_id = _stanza_id(self._key, self._made, text)
        self._made += 1
        extra = beside
        if self._incoming.uses_chat_states:
            extra, self._typing = f"{beside}<active xmlns='{CHAT_STATES_NAMESPACE}'/>", False
        if replaced is not None:
            extra += _replacing(replaced) + _hint("store")
        return self._stanza(stanza_id, text, extra)

    def _stanza(self, stanza_id: str, text: str, extra: str) -> str:
        incoming = self._incoming
        return (
            f"<message to='{attribute(_address(incoming))}' type='{attribute(incoming.message_type)}'"
            f" id='{stanza_id}'><body>{escape(text)}</body>{thread_element(incoming.thread)}{extra}{_MARKER}"
            f"<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/></message>"
        )


def _replacing(stanza_id: str | None) -> str:
    return f"<replace xmlns='{CORRECTION_NAMESPACE}' id='{stanza_id}'/>" if stanza_id is not None else ""


def _reply_to(incoming: Incoming) -> str:
    """The reference to a question (XEP-0461); in a room only the room's own id names it."""
    ident = incoming.origin_id or (incoming.stanza_id if incoming.language != "room" else "")
    return f"<reply xmlns='{REPLY_NAMESPACE}' to='{attribute(incoming.sender)}' id='{attribute(ident)}'/>" if ident else ""


def _file_at(link: str) -> str:
    return f"<x xmlns='{OOB_NAMESPACE}'><url>{escape(link)}</url></x>"


def _and_more(text: str, mark: str) -> str:
    # The end of a block of code is one only if nothing stands behind it.
    return f"{text}\n{mark.lstrip()}" if text.endswith(FENCE) else f"{text}{mark}"


def _hint(name: str) -> str:
    return f"<{name} xmlns='{HINTS_NAMESPACE}'/>"


class RoomVoice(PersonVoice):
    """Whole messages to everybody in a room, the first of them with the name of whoever asked.

    No typing, no receipts and no corrections there: each would come to everybody.
    """

    offers = False

    def __init__(self, incoming: Incoming, key: UUID, stanza_bytes: int) -> None:
        super().__init__(incoming, key, stanza_bytes, refers=True)
        self._prefix = f"{incoming.nickname}: "

    def _text(self, text: str, stream: _Growing | None = None, *, is_link: bool = False) -> list[str]:
        text = clean(text).strip()
        if not text or is_link:
            return super()._text(text, is_link=is_link)
        prefix, self._prefix = self._prefix, ""
        return super()._text(prefix + text)


class SpadeVoice(PersonVoice):
    """SPADE's metadata form, with what the sender's own templates look for (performative, in-reply-to, thread)."""

    shows_files = False
    offers = False
    _PERFORMATIVES: dict[type, str] = {Failed: "failure", Refused: "refuse"}

    def __init__(self, incoming: Incoming, key: UUID, stanza_bytes: int) -> None:
        super().__init__(incoming, key, stanza_bytes)
        self._fields: dict[str, str] = dict(incoming.metadata.get("spade", {}))
        fields_bytes = sum(_MOST_A_CHARACTER_TAKES * len(name) + wire_size(value) + 80 for name, value in self._fields.items())
        if fields_bytes > stanza_bytes // 4:
            self._fields, fields_bytes = {}, 0
        in_reply_to = self._fields.get("reply-with", incoming.stanza_id)
        echoed = _MOST_A_CHARACTER_TAKES * (len(in_reply_to) + len(incoming.thread or ""))  # the thread stands in both forms
        self._body_bytes = max(self._body_bytes - fields_bytes - echoed, _LEAST_TEXT_BYTES)
        self._performative = "inform"
        self.shows_typing = False

    def say(self, event: TurnEvent) -> list[str]:
        is_error = isinstance(event, Said) and isinstance(event.block, UserErrorBlock)
        self._performative = "failure" if is_error else self._PERFORMATIVES.get(type(event), "inform")
        return super().say(event)

    def _message(self, text: str, replaced: str | None = None, beside: str = "") -> str:
        incoming = self._incoming
        stanza_id = _stanza_id(self._key, self._made, text)
        self._made += 1
        fields = {**self._fields, "performative": self._performative}
        fields.pop("in-reply-to", None)  # that is what the request itself answered
        asked_as = fields.pop("reply-with", incoming.stanza_id)
        if asked_as:
            fields["in-reply-to"] = asked_as
        if incoming.thread:
            fields[SPADE_THREAD] = incoming.thread
        form = "".join(
            f"<field var='{attribute(name)}' type='text-single'><value>{escape(value)}</value></field>"
            for name, value in fields.items()
        )
        return (
            f"<message to='{attribute(incoming.sender)}' type='chat' id='{stanza_id}'><body>{escape(text)}</body>"
            f"{thread_element(incoming.thread)}<x xmlns='{FORM_NAMESPACE}' type='form'><title>{SPADE_FORM}</title>{form}</x>"
            f"{_MARKER}<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/></message>"
        )


class ProgramVoice:
    """CloudEvents in JSON containers (XEP-0335), at full speed, to the full JID that asked.

    Data is a data form (XEP-0004) too, for programs that know those.
    """

    shows_typing = False
    grows = False
    shows_files = False

    def __init__(self, incoming: Incoming, key: UUID, agent: str, stanza_bytes: int) -> None:
        self._events = EventWriter(
            to=incoming.sender,
            source=f"xmpp:{agent}",
            thread=incoming.thread,
            id_prefix=str(key),
            request_id=str(incoming.request_id or key),
            stanza_bytes=stanza_bytes,
        )

    def say(self, event: TurnEvent) -> list[str]:
        kind, data = _event(event)
        return self._events.write(kind, data, beside=result_form(data) if kind == "block.data" else "")

    def growth(self, stream_id: str) -> list[str]:
        return []

    def composing(self) -> str | None:
        return None

    def paused(self) -> str | None:
        return None

    def withdrawn(self) -> list[str]:
        return []


def _event(event: TurnEvent) -> tuple[str, dict[str, Any]]:
    """The type (without its prefix) and the data of an event."""
    match event:
        case StreamChunk(stream_id, seq, chunk):
            return "stream.chunk", {"stream_id": stream_id, "seq": seq, "chunk": chunk}
        case StreamStarted(stream_id, title):
            return "stream.start", {"stream_id": stream_id, "title": title}
        case StreamEnded(stream_id):
            return "stream.end", {"stream_id": stream_id}
        case StreamAborted(stream_id, reason):
            return "stream.abort", {"stream_id": stream_id, "reason": reason}
        case Said(block, _, _, choices):
            offered = {"choices": [{"value": value, "label": label} for value, label in choices]} if choices else {}
            return f"block.{block.block_type.lower()}", block.dump() | offered
        case Completed(conversation_id, state):
            return "request.completed", {"conversation_id": conversation_id, "state": state}
        case Failed(message, code, recoverable, incident):
            failed = {"message": message, "code": code, "recoverable": recoverable, "incident": incident}
            return "request.failed", failed
        case Refused(message, code, retry_after_s):
            return "request.refused", {"message": message, "code": code, "retry_after_s": retry_after_s}


def _json_text(event: dict[str, Any]) -> str:
    try:
        return to_json(event).decode()
    except ValueError:  # lone surrogates, which no UTF-8 has
        return to_json(printable(event)).decode()


class EventWriter:
    """CloudEvents 1.0 as stanzas. An event too long for one is sent as ordered fragments of its JSON."""

    def __init__(self, *, to: str, source: str, thread: str | None, id_prefix: str, request_id: str, stanza_bytes: int) -> None:
        self._to = attribute(to)
        self._source = source
        self._tail = f"</json>{thread_element(thread)}{_MARKER}</message>"
        self._id_prefix = id_prefix
        self._request_id = request_id
        self._json_bytes = _room(stanza_bytes, to, thread)
        self._made = 0
        self._thoughts = 0
        self._said = 0

    def write(self, kind: str, data: dict[str, Any], beside: str = "") -> list[str]:
        """The stanzas of one event; more than one only where it is too long. `beside` is XML, left out where it has no room."""
        stanza_id = self._next_id(kind, data)
        text = escape(self._json(kind, stanza_id, data))
        if len(text) * 4 <= self._json_bytes or len(text.encode()) <= self._json_bytes:
            if beside and len(text.encode()) + len(beside.encode()) > self._json_bytes:
                beside = ""
            return [self._stanza(stanza_id, text, beside)]
        whole = self._json(kind, stanza_id, data)
        # A fragment is quoted JSON again: a quote or a backslash takes two bytes more, and a third of the room is enough.
        parts = list(split(whole, self._json_bytes // 3, sensibly=False))
        fragments = []
        for index, part in enumerate(parts):
            fragment_id = f"{stanza_id}.{index}"
            fragment = {"event_id": stanza_id, "index": index, "count": len(parts), "chunk": part}
            text = self._json(FRAGMENT.removeprefix(TYPE_PREFIX), fragment_id, fragment)
            fragments.append(self._stanza(fragment_id, escape(text)))
        return fragments

    def _next_id(self, kind: str, data: dict[str, Any]) -> str:
        """The same for the same event after the same events.

        From where a turn that runs again says something else, all its events are new to whoever heard the first run: a
        piece of text that both have at the same place too. A thought changes nothing of what follows.
        """
        said = crc32(f"{kind}{data}".encode("utf-8", "surrogatepass"), self._said)
        if kind == "block.thought":
            self._thoughts += 1
            return f"{self._id_prefix}-{self._made}.{self._thoughts}-{said:08x}"
        self._said = said
        self._made += 1
        return f"{self._id_prefix}-{self._made - 1}-{said:08x}"

    def _json(self, kind: str, event_id: str, data: dict[str, Any]) -> str:
        event = {
            "specversion": "1.0",
            "type": TYPE_PREFIX + kind,
            "source": self._source,
            "id": event_id,
            "time": datetime.now(UTC),
            "datacontenttype": "application/json",
            "requestid": self._request_id,
            "data": data,
        }
        return _json_text(event)

    def _stanza(self, stanza_id: str, text: str, beside: str = "") -> str:
        return f"<message to='{self._to}' id='{stanza_id}'>{beside}<json xmlns='{JSON_NAMESPACE}'>{text}{self._tail}"


def malformed_answer(malformed: Malformed, agent: str, stanza_bytes: int) -> list[str]:
    """Says once to whoever sent it why a request cannot be read."""
    writer = EventWriter(
        to=malformed.sender,
        source=f"xmpp:{agent}",
        thread=malformed.thread,
        id_prefix=f"malformed-{uuid5(NAMESPACE_URL, malformed.stanza_id)}",  # theirs could hold anything
        request_id=malformed.request_id or malformed.stanza_id,
        stanza_bytes=stanza_bytes,
    )
    return writer.write(*_event(Failed(f"not a request: {malformed.problem}", ErrorCode.BAD_REQUEST, False)))


def request_stanza(
    to: str, request_json: dict[str, Any], *, source: str, thread: str | None, stanza_id: str, hops: int = 0
) -> str:
    """A program's request (event type `ai.coreason.request`); `request_json` is the dump of an AgentRequest.

    `hops` says through how many agents it came.
    """
    event = {
        "specversion": "1.0",
        "type": f"{TYPE_PREFIX}request",
        "source": source,
        "id": stanza_id,
        "time": datetime.now(UTC),
        "datacontenttype": "application/json",
        **({"hops": hops} if hops else {}),
        "data": request_json,
    }
    text = escape(_json_text(event))
    return (
        f"<message to='{attribute(to)}' id='{attribute(stanza_id)}'>"
        f"<json xmlns='{JSON_NAMESPACE}'>{text}</json>{thread_element(thread)}</message>"
    )
