"""Replies to people and to rooms: text with Message Styling (XEP-0393), and streams that grow."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID
from zlib import crc32

from pydantic_core import to_jsonable_python

from ....contracts import DataBlock, ThinkingBlock
from ....contracts.blocks import STEP_TITLE
from ....domain.messages import (
    PARENT_THREAD,
    BlockEmitted,
    Completed,
    Failed,
    InboundRequest,
    Refused,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TextEmitted,
    TurnEvent,
)
from ....domain.texts.text import FENCE
from ....domain.texts.translation import translate
from ....runtime import PLAIN_PRESENTATION, PresentationOptions
from ..elements import (
    ANSWER_MARKER_XML,
    MIN_TEXT_BYTES,
    file_element,
    hint_element,
    make_frame,
    replace_element,
    reply_element,
    response_elements,
)
from ..markdown.convert import style_markdown
from ..namespaces import CHAT_STATES_NAMESPACE, ORIGIN_ID_NAMESPACE
from ..xml import clean, escape_attribute, escape_clean, hold_open_character, preview, split_text, wire_size
from .text import render_block, render_thought


class LiveMessage:
    """A stream to a person: its text so far, and the message in which it grows."""

    __slots__ = ("chained_device", "chunks", "last_stanza_id", "message_id", "reply_element", "shown_chunks", "version_count")

    def __init__(self, message_id: str) -> None:
        self.chunks: list[str] = []
        self.shown_chunks = 0
        self.reply_element: str | None = None
        """The reference to the question in every version, from the first version on."""
        self.message_id = message_id
        self.version_count = 0
        self.last_stanza_id: str | None = None
        self.chained_device: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    @property
    def styled(self) -> str:
        """The text as a person reads it. Marks that are not complete yet stay as they are."""
        return style_markdown(self.text)

    def interrupted_text(self, reason: str) -> str:
        """Return the text with a mark that it ends too soon, and the reason."""
        return append_mark(self.styled.rstrip(), f"… ({reason})")

    @property
    def has_unshown_text(self) -> bool:
        """True if it has text that was not shown yet."""
        return self.shown_chunks < len(self.chunks) and bool(self.text.strip())


def append_mark(text: str, mark: str) -> str:
    """Append a mark to a text that ends too soon."""
    # The end of a block of code is recognised only if its line ends there.
    return f"{text}\n{mark.lstrip()}" if text.endswith(FENCE) else f"{text}{mark}"


def content_id(prefix: str, number: int, text: str) -> str:
    """Derive a stanza id from a prefix, a number and the text.

    A turn that runs again and repeats the text gets the same id; another text gets another id.
    """
    return f"{prefix}-{number}-{crc32(text.encode('utf-8', 'surrogatepass')):08x}"


_SHORT_CHARACTERS = 200
"""In a text up to this length, the check for printable characters costs less than `clean`."""
_END = "</message>"


class ChatEncoder:
    """Encoder for people: text with Message Styling (XEP-0393), one message for each block and each stream.

    If it `has_live_messages`, a stream is shown before it is complete. If the person uses replies (XEP-0461), the first
    message is a reply to the question.

    The versions of a growing stream are transient: not stored, not copied, never sent twice. The last one is a correction
    like the others (XEP-0308) and complete in itself; only this one is stored. Thoughts are not stored either, because
    the reply does not include them.

    A chained device drops corrections of messages that it has not seen. If the device has changed, the whole text is sent
    as a new message.
    """

    shows_files = True
    batches = False
    has_quick_responses = True
    """True if answers may be offered. The chosen one is sent to the agent as it is."""

    def __init__(
        self, incoming: InboundRequest, key: UUID, stanza_bytes: int, options: PresentationOptions = PLAIN_PRESENTATION
    ) -> None:
        self.key: str = to_jsonable_python(key)  # `str` takes three times as long
        self._incoming = incoming
        self._options = options
        self._stanza_bytes = stanza_bytes
        self._reply_element = reply_element(incoming) if options.has_replies or incoming.uses_replies else ""
        parent = incoming.metadata.get(PARENT_THREAD)
        self.recipient = incoming.address or incoming.owner
        self._opening, self._thread, frame_bytes = make_frame(
            self.recipient, incoming.message_type, incoming.thread, parent, stanza_bytes
        )
        self._body_bytes = (
            max(frame_bytes - len(self._reply_element.encode()), MIN_TEXT_BYTES) if self._reply_element else frame_bytes
        )
        self._streams: dict[str, LiveMessage] = {}
        self._stream_count = self._message_count = self._thought_count = 0
        self._is_typing = False
        self.has_live_messages = self.follows_streams = options.has_live_messages
        self.shows_typing = incoming.uses_chat_states

    def reads_thoughts(self, title: str | None) -> bool:
        return self._options.shows_thoughts or (title == STEP_TITLE and self._options.shows_steps)

    def encode(self, event: TurnEvent) -> list[str]:
        if isinstance(event, StreamChunk):
            self._streams[event.stream_id].chunks.append(event.chunk)
        elif isinstance(event, TextEmitted):
            stanzas = self._encode_with_links(
                style_markdown(event.content) if event.short_text is None else event.short_text, event.links
            )
            return self._add_responses(stanzas, event.choices) if event.choices else stanzas
        elif isinstance(event, StreamStarted):
            stream = self._streams[event.stream_id] = LiveMessage(f"{self.key}-s{self._stream_count}")
            stream.chained_device = self._options.find_chained_device()
            self._stream_count += 1
        elif isinstance(event, StreamEnded):
            stream = self._streams.pop(event.stream_id)
            return self._encode_with_links(stream.styled if event.short_text is None else event.short_text, event.links, stream)
        elif isinstance(event, Completed) or (isinstance(event, Failed) and event.is_reported):
            return [self._encode_chat_state("active")] if self._is_typing else []
        elif isinstance(event, BlockEmitted):
            block = event.block
            if isinstance(block, ThinkingBlock):
                return self._encode_thought(block)
            return self._encode_with_links(render_block(block) if event.short_text is None else event.short_text, event.links)
        elif isinstance(event, StreamAborted):
            stream = self._streams.pop(event.stream_id)
            if event.replacement is not None:
                return self._encode_text(style_markdown(event.replacement), stream)
            return (
                self._encode_text(
                    stream.interrupted_text(translate("interrupted: {reason}", reason=translate(event.reason))), stream
                )
                if stream.text.strip()
                else []
            )
        elif isinstance(event, Failed | Refused):
            return self._encode_text(event.message)
        return []

    def flush(self) -> list[str]:
        return []

    def render_block(self, block: DataBlock) -> str:
        return render_block(block)

    def preview(self, text: str, *, is_markdown: bool) -> str:
        return style_markdown(preview(text)) if is_markdown else preview(text)

    def readdress(self, content: str, recipient: str) -> str:
        return content  # a person is answered at the bare JID

    def encode_update(self, stream_id: str) -> list[str]:
        stream = self._streams[stream_id]
        return (
            [self._encode_version(stream)]
            if self.has_live_messages and stream.has_unshown_text and self._may_update(stream)
            else []
        )

    def encode_composing(self) -> str | None:
        if not self._incoming.uses_chat_states:
            return None
        return self._encode_chat_state("composing")

    def encode_paused(self) -> str | None:
        return self._encode_chat_state("paused") if self._is_typing else None

    def encode_cancelled(self) -> list[str]:
        shown = [stream for stream in self._streams.values() if stream.version_count]
        return [
            stanza for stream in shown for stanza in self._encode_text(stream.interrupted_text(translate("taken back")), stream)
        ]

    def _encode_chat_state(self, state: str) -> str:
        self._is_typing = state == "composing"
        to = escape_attribute(self.recipient)
        return (
            f"<message to='{to}' type='chat'><{state} xmlns='{CHAT_STATES_NAMESPACE}'/>{ANSWER_MARKER_XML}"
            f"{self._thread}{hint_element('no-store')}</message>"
        )

    def _may_update(self, stream: LiveMessage) -> bool:
        return not stream.version_count or self._replaced_id(stream) is not None

    def _replaced_id(self, stream: LiveMessage) -> str | None:
        """Return the id that the next version of a stream corrects; None if there is none to correct."""
        if stream.chained_device is not None:
            return stream.last_stanza_id if self._options.find_chained_device() == stream.chained_device else None
        # If the turn runs again, the first run may have shown something already.
        return stream.message_id if stream.version_count or self._options.is_rerun else None

    def _encode_version(self, stream: LiveMessage) -> str:
        """Encode the current text of a stream, as far as one stanza holds it."""
        stream.shown_chunks = len(stream.chunks)
        self._is_typing = self.shows_typing
        text = self._cut_to_fit(hold_open_character(clean(stream.styled).strip()).strip())
        replaced_id = self._replaced_id(stream)
        number, stream.version_count = stream.version_count, stream.version_count + 1
        is_first = not (number or self._options.is_rerun)
        stanza_id = stream.message_id if is_first else f"{stream.message_id}.{number}{'r' if self._options.is_rerun else ''}"
        stream.last_stanza_id = stanza_id
        if stream.reply_element is None:
            stream.reply_element = self._pop_reply_element()
        hints = hint_element("no-store") + hint_element("no-copy")
        extra = f"{self._composing_element}{replace_element(replaced_id)}{stream.reply_element}{hints}"
        return self._encode_stanza(stanza_id, text, extra)

    @property
    def _composing_element(self) -> str:
        """The chat state of every message before the last one: more follows."""
        return f"<composing xmlns='{CHAT_STATES_NAMESPACE}'/>" if self.shows_typing else ""

    def _cut_to_fit(self, text: str) -> str:
        """Cut a text to the length that one stanza holds."""
        if len(text) * 12 > self._body_bytes and wire_size(text) > self._body_bytes:
            return append_mark(next(split_text(text, self._body_bytes - 16)), " …")
        return text

    def _encode_thought(self, block: ThinkingBlock) -> list[str]:
        """Encode a thought in one stanza, its lines in italics. Text that does not fit is cut off."""
        text = clean(block.content).strip()
        if not text or not self.reads_thoughts(block.title):
            return []
        stanza_id = content_id(f"{self.key}-t", self._thought_count, text)
        self._thought_count += 1
        self._is_typing = self.shows_typing
        return [
            self._encode_stanza(
                stanza_id, self._cut_to_fit(render_thought(text)), self._composing_element + hint_element("no-store")
            )
        ]

    def _encode_with_links(self, text: str, links: tuple[str, ...], stream: LiveMessage | None = None) -> list[str]:
        """Encode a text, and after it one message for each link. A text that is itself a link is one message."""
        if not links:
            return self._encode_text(text, stream)
        if (stripped := text.strip()) in links:
            return self._encode_text(stripped, stream, is_link=True)
        return [
            *self._encode_text(text, stream),
            *(message for link in links for message in self._encode_text(link, is_link=True)),
        ]

    def _add_responses(self, stanzas: list[str], choices: Iterable[tuple[str, str]]) -> list[str]:
        """Add the offered answers (XEP-0439) to the last stanza, if they fit. The text lists them too."""
        responses = response_elements(choices)
        if not responses or not stanzas or not self.has_quick_responses:
            return stanzas
        last = f"{stanzas[-1].removesuffix(_END)}{responses}{_END}"
        return [*stanzas[:-1], last] if len(last.encode()) <= self._stanza_bytes else stanzas

    def _encode_text(self, text: str, stream: LiveMessage | None = None, *, is_link: bool = False) -> list[str]:
        text = text.strip()
        if len(text) > _SHORT_CHARACTERS or not text.replace("\n", "").isprintable():  # hardly any short text
            text = clean(text).strip()
        if not text:
            return []
        replaced_id = self._replaced_id(stream) if stream is not None and self.has_live_messages else None
        reply = stream.reply_element if stream is not None and stream.reply_element is not None else self._pop_reply_element()
        if is_link:
            return [self._encode_message(text, replaced_id, reply + file_element(text))]
        if len(text) * 12 <= self._body_bytes or wire_size(text) <= self._body_bytes:
            return [self._encode_message(text, replaced_id, reply)]
        first, *others = split_text(text, self._body_bytes)
        return [self._encode_message(first, replaced_id, reply), *(self._encode_message(part) for part in others)]

    def _pop_reply_element(self) -> str:
        reply, self._reply_element = self._reply_element, ""
        return reply

    def _encode_message(self, text: str, replaced_id: str | None = None, extra_xml: str = "") -> str:
        stanza_id = content_id(self.key, self._message_count, text)
        self._message_count += 1
        extra = extra_xml
        if self._incoming.uses_chat_states:
            extra, self._is_typing = f"{extra_xml}<active xmlns='{CHAT_STATES_NAMESPACE}'/>", False
        if replaced_id is not None:
            extra += replace_element(replaced_id) + hint_element("store")
        return self._encode_stanza(stanza_id, text, extra)

    def _encode_stanza(self, stanza_id: str, text: str, extra_xml: str) -> str:
        """Encode a message. Its text must not contain forbidden characters."""
        return (
            f"{self._opening} id='{stanza_id}'><body>{escape_clean(text)}</body>"
            f"{self._thread}{extra_xml}{ANSWER_MARKER_XML}<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/></message>"
        )


class GroupchatEncoder(ChatEncoder):
    """Encoder for rooms: whole messages to everybody, the first one with the nickname of the person who asked.

    It sends no typing, no receipts and no corrections, because each would reach everybody.
    """

    has_quick_responses = False

    def __init__(self, incoming: InboundRequest, key: UUID, stanza_bytes: int) -> None:
        super().__init__(incoming, key, stanza_bytes, PresentationOptions(has_replies=True))
        self._prefix = f"{incoming.nickname}: "

    def _encode_text(self, text: str, stream: LiveMessage | None = None, *, is_link: bool = False) -> list[str]:
        text = clean(text).strip()
        if not text or is_link:
            return super()._encode_text(text, is_link=is_link)
        prefix, self._prefix = self._prefix, ""
        return super()._encode_text(prefix + text)
