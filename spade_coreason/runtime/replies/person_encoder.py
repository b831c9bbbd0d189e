"""Replies to people, for each channel of people: which messages a reply has, and what each says.

A channel of people has a subclass of `PersonEncoder`, which gives the messages its own form: `write` makes a stanza of a
`PersonMessage` (`xmpp/codec/encoders/chat.py`), or a line for a web page.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias
from uuid import UUID
from zlib import crc32

from pydantic_core import to_jsonable_python

from ...contracts import ThinkingBlock
from ...contracts.blocks import STEP_TITLE
from ...domain.messages import (
    BlockEmitted,
    Completed,
    Failed,
    InboundRequest,
    Parked,
    Refused,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TextEmitted,
    TurnEvent,
    reply_id_prefix,
)
from ...domain.texts.approval_mark import MARK, quote_forgeries
from ...domain.texts.text import FENCE, hold_open_character
from ...domain.texts.translation import translate
from ...domain.value import value
from ..channels import PLAIN_PRESENTATION, PresentationOptions, ReplyEncoder

MessageKind: TypeAlias = Literal["text", "version", "thought", "state"]
"""The kind of a message. All but "text" are transient: not stored, and never sent twice.

A "version" is the text of a stream so far. A "state" has no text.
"""


@value
class PersonMessage:
    """One message of a reply to a person."""

    id: str
    """The id, which derives from the inbox key of the request; "" for a state."""
    text: str
    kind: MessageKind = "text"
    state: Literal["", "active", "composing", "paused"] = ""
    """The state of the agent from this message on: "composing" if more follows. It is "" if the person is shown none."""
    replaces: str | None = None
    """The id of the message of the agent whose text this one replaces."""
    is_reply: bool = False
    """True if it refers to the question."""
    is_link: bool = False
    """True if the text is a link, in whose place the file behind it is shown."""
    choices: tuple[tuple[str, str], ...] = ()
    """The offered answers: pairs of value and label. The text lists them too."""


class LiveMessage:
    """A stream to a person: its text so far, and the message in which it grows."""

    __slots__ = ("chained_device", "chunks", "is_reply", "last_id", "message_id", "shown_chunks", "version_count")

    def __init__(self, message_id: str, chained_device: str | None) -> None:
        self.chunks: list[str] = []
        self.shown_chunks = 0
        self.is_reply: bool | None = None
        """True if every version refers to the question; None before the first version."""
        self.message_id = message_id
        self.version_count = 0
        self.last_id: str | None = None
        self.chained_device = chained_device

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    @property
    def has_unshown_text(self) -> bool:
        """True if it has text that was not shown yet."""
        return self.shown_chunks < len(self.chunks) and bool(self.text.strip())


def append_mark(text: str, mark: str) -> str:
    """Append a mark to a text that ends too soon."""
    # The end of a block of code is recognised only if its line ends there.
    return f"{text}\n{mark.lstrip()}" if text.endswith(FENCE) else f"{text}{mark}"


def content_id(prefix: str, number: int, text: str) -> str:
    """Derive a message id from a prefix, a number and the text.

    A turn that runs again and repeats the text gets the same id; another text gets another id.
    """
    return f"{prefix}-{number}-{crc32(text.encode('utf-8', 'surrogatepass')):08x}"


_SHORT_CHARACTERS = 200
"""In a text up to this length, the check for printable characters costs less than `TextForm.clean`."""


class TextForm(NamedTuple):
    """The texts of a channel of people."""

    style: Callable[[str], str]
    """Return a Markdown text as a person reads it. Marks that are not complete yet stay as they are."""
    style_thought: Callable[[str], str]
    """Return a thought as a person reads it."""
    clean: Callable[[str], str]
    """Return a text without the characters that the channel cannot carry."""
    measure: Callable[[str], int]
    """Return the bytes that a text takes, at most twelve for each character."""
    split: Callable[[str, int], Iterator[str]]
    """Split a text into parts of at most so many bytes."""


class PersonEncoder(ReplyEncoder):
    """Encoder for people: one message for each block and each stream.

    If it `has_live_messages`, a stream is shown before it is complete. If the person uses replies, the first message is a
    reply to the question.

    The last version of a growing stream replaces the one before, like the others, and is complete in itself; only this one is
    stored. Thoughts are not stored either, because the reply does not include them.

    A chained device drops corrections of messages that it has not seen. If the device has changed, the whole text is sent
    as a new message.

    A subclass defines the abstract methods and `texts`. No message has more than `max_bytes`.
    """

    texts: TextForm
    shows_files = True
    batches = False

    def __init__(
        self, incoming: InboundRequest, key: UUID, max_bytes: int, options: PresentationOptions = PLAIN_PRESENTATION
    ) -> None:
        self.key: str = to_jsonable_python(key)  # `str` takes three times as long
        self._id_prefix = self.key if incoming.earlier_runs is None else reply_id_prefix(self.key, incoming)
        self.recipient = incoming.room.address or incoming.owner
        self._incoming = incoming
        self._max_bytes = max_bytes
        self._options = options
        self.shows_thoughts = options.shows_thoughts
        self.shows_steps = options.shows_thoughts or options.shows_steps
        self._is_reply = options.has_replies or incoming.headers.uses_replies
        """True if the next message is a reply to the question."""
        self._streams: dict[str, LiveMessage] = {}
        self._stream_count = self._message_count = self._thought_count = 0
        self._is_typing = False
        self.has_live_messages = self.follows_streams = options.has_live_messages
        self.shows_typing = incoming.headers.uses_chat_states
        self._text_bytes = self.find_text_bytes(incoming)

    @abstractmethod
    def find_text_bytes(self, incoming: InboundRequest, /) -> int:
        """Return the bytes that a message of `max_bytes` has for its text, as `measure` counts them. It is called once."""

    @abstractmethod
    def write(self, message: PersonMessage) -> str:
        """Return a message in the form of the channel."""

    def encode(self, event: TurnEvent) -> list[str]:
        if isinstance(event, StreamChunk):
            self._streams[event.stream_id].chunks.append(event.chunk)
        elif isinstance(event, TextEmitted):
            text = self._show(event.content) if event.short_text is None else event.short_text
            messages = self._decide_with_links(text, event.links) if event.links else self._decide_text(text)
            if event.choices and messages:
                messages[-1] = replace(messages[-1], choices=event.choices)
            return self._write_all(messages)
        # A tuple, because `Completed | Parked` builds a union each time, which costs some calls.
        elif isinstance(event, (Completed, Parked)) or (isinstance(event, Failed) and event.is_reported):
            return [self._write_state("active")] if self._is_typing else []
        elif isinstance(event, StreamStarted):
            message_id = f"{self._id_prefix}-s{self._stream_count}"
            self._streams[event.stream_id] = LiveMessage(message_id, self._options.find_chained_device())
            self._stream_count += 1
        elif isinstance(event, StreamEnded):
            stream = self._streams.pop(event.stream_id)
            text = self._show(stream.text) if event.short_text is None else event.short_text
            return self._write_all(self._decide_with_links(text, event.links, stream))
        elif isinstance(event, BlockEmitted):
            block = event.block
            if isinstance(block, ThinkingBlock):
                return self._write_all(self._decide_thought(block))
            text = quote_forgeries(self.render_block(block)) if event.short_text is None else event.short_text
            return self._write_all(self._decide_with_links(text, event.links))
        elif isinstance(event, StreamAborted):
            stream = self._streams.pop(event.stream_id)
            if event.replacement is not None:
                return self._write_all(self._decide_text(self._show(event.replacement), stream))
            if stream.text.strip():
                return self._write_interrupted(stream, translate("interrupted: {reason}", reason=translate(event.reason)))
        elif isinstance(event, Failed | Refused):
            return self._write_all(self._decide_text(event.message))
        return []

    def flush(self) -> list[str]:
        return []

    def readdress(self, content: str, recipient: str) -> str:
        return content  # a person is answered at the bare JID

    def encode_update(self, stream_id: str) -> list[str]:
        stream = self._streams[stream_id]
        if not self.has_live_messages or not stream.has_unshown_text:
            return []
        may_update = not stream.version_count or self._replaced_id(stream) is not None
        return [self.write(self._decide_version(stream))] if may_update else []

    def encode_composing(self) -> str | None:
        return self._write_state("composing") if self.shows_typing else None

    def encode_paused(self) -> str | None:
        return self._write_state("paused") if self._is_typing else None

    def encode_cancelled(self) -> list[str]:
        shown = [stream for stream in self._streams.values() if stream.version_count]
        return [content for stream in shown for content in self._write_interrupted(stream, translate("taken back"))]

    def _show(self, markdown: str) -> str:
        """Return a Markdown text as a person reads it. Its entities are characters then, so it is looked through again."""
        text = self.texts.style(markdown)
        # Only the text of an approval begins with the mark itself.
        return text if text.isascii() or markdown.startswith(MARK) else quote_forgeries(text)

    def _write_all(self, messages: list[PersonMessage]) -> list[str]:
        contents = []
        for message in messages:  # a loop costs a third less than a comprehension or `map`, for one message
            contents.append(self.write(message))
        return contents

    def _write_state(self, state: Literal["active", "composing", "paused"]) -> str:
        self._is_typing = state == "composing"
        return self.write(PersonMessage("", "", "state", state))

    def _replaced_id(self, stream: LiveMessage) -> str | None:
        """Return the id that the next version of a stream corrects; None if there is none to correct."""
        if stream.chained_device is not None:
            return stream.last_id if self._options.find_chained_device() == stream.chained_device else None
        # If the turn runs again, the first run may have shown something already.
        return stream.message_id if stream.version_count or self._options.is_rerun else None

    def _decide_version(self, stream: LiveMessage) -> PersonMessage:
        """Return the current text of a stream, as far as one message holds it."""
        stream.shown_chunks = len(stream.chunks)
        text = self._cut_to_fit(hold_open_character(self.texts.clean(self._show(stream.text)).strip()).strip())
        replaced_id = self._replaced_id(stream)
        number, stream.version_count = stream.version_count, stream.version_count + 1
        is_first = not (number or self._options.is_rerun)
        stream.last_id = (
            stream.message_id if is_first else f"{stream.message_id}.{number}{'r' if self._options.is_rerun else ''}"
        )
        if stream.is_reply is None:
            stream.is_reply, self._is_reply = self._is_reply, False
        return self._decide_transient(stream.last_id, text, "version", replaced_id, stream.is_reply)

    def _decide_thought(self, block: ThinkingBlock) -> list[PersonMessage]:
        """Return a thought in one message. Text that does not fit is cut off."""
        text = self.texts.clean(block.content).strip()
        if not text or not (self.shows_thoughts or (block.title == STEP_TITLE and self.shows_steps)):
            return []
        message_id = content_id(f"{self._id_prefix}-t", self._thought_count, text)
        self._thought_count += 1
        return [
            self._decide_transient(message_id, self._cut_to_fit(quote_forgeries(self.texts.style_thought(text))), "thought")
        ]

    def _decide_transient(
        self, message_id: str, text: str, kind: MessageKind, replaced_id: str | None = None, is_reply: bool = False
    ) -> PersonMessage:
        self._is_typing = self.shows_typing  # more follows
        return PersonMessage(message_id, text, kind, "composing" if self.shows_typing else "", replaced_id, is_reply)

    def _cut_to_fit(self, text: str) -> str:
        """Cut a text to the length that one message holds."""
        return text if self._fits(text) else append_mark(next(self.texts.split(text, self._text_bytes - 16)), " …")

    def _fits(self, text: str) -> bool:
        return len(text) * 12 <= self._text_bytes or self.texts.measure(text) <= self._text_bytes

    def _decide_with_links(self, text: str, links: tuple[str, ...], stream: LiveMessage | None = None) -> list[PersonMessage]:
        """Return a text, and after it one message for each link. A text that is itself a link is one message."""
        if (stripped := text.strip()) in links:
            return self._decide_text(stripped, stream, is_link=True)
        messages = self._decide_text(text, stream)
        for link in links:
            messages += self._decide_text(link, is_link=True)
        return messages

    def _write_interrupted(self, stream: LiveMessage, reason: str) -> list[str]:
        """Write the text of a stream with a mark that it ends too soon, and the reason."""
        text = append_mark(self._show(stream.text).rstrip(), f"… ({reason})")
        return self._write_all(self._decide_text(quote_forgeries(text), stream))

    def _decide_text(self, text: str, stream: LiveMessage | None = None, *, is_link: bool = False) -> list[PersonMessage]:
        """Return a whole text, in several messages if it is long."""
        text = text.strip()
        if len(text) > _SHORT_CHARACTERS or not (
            text.isprintable() or text.replace("\n", "").isprintable()
        ):  # hardly any short text
            text = self.texts.clean(text).strip()
        if not text:
            return []
        replaced_id = self._replaced_id(stream) if stream is not None and self.has_live_messages else None
        if stream is not None and stream.is_reply is not None:
            is_reply = stream.is_reply
        else:
            is_reply, self._is_reply = self._is_reply, False
        if is_link or len(text) * 12 <= self._text_bytes or self.texts.measure(text) <= self._text_bytes:
            return [self._decide_message(text, replaced_id, is_reply, is_link)]
        # A part may begin with what stood within a line. The mark of a quotation takes at most eight bytes.
        first, *others = self.texts.split(text, self._text_bytes - 8)
        return [
            self._decide_message(first, replaced_id, is_reply),
            *(self._decide_message(quote_forgeries(other)) for other in others),
        ]

    def _decide_message(
        self, text: str, replaced_id: str | None = None, is_reply: bool = False, is_link: bool = False
    ) -> PersonMessage:
        message_id = content_id(self._id_prefix, self._message_count, text)
        self._message_count += 1
        if not self.shows_typing:
            return PersonMessage(message_id, text, "text", "", replaced_id, is_reply, is_link)
        self._is_typing = False
        return PersonMessage(message_id, text, "text", "active", replaced_id, is_reply, is_link)
