"""Replies to people and to rooms: text with Message Styling (XEP-0393), and streams that grow."""

from __future__ import annotations

import re
from uuid import UUID

from ....contracts import DataBlock, UserErrorBlock
from ....domain.messages import PARENT_THREAD, InboundRequest
from ....domain.texts.approval_mark import quote_forgeries
from ....runtime import LiveMessage, PersonEncoder, PersonMessage, PresentationOptions, TextForm
from ..elements import (
    ANSWER_MARKER_XML,
    MIN_TEXT_BYTES,
    file_element,
    hint_element,
    make_frame,
    replace_element,
    reply_element,
    response_elements,
    text_bytes,
)
from ..namespaces import CHAT_STATES_NAMESPACE, ORIGIN_ID_NAMESPACE
from ..xml import clean, escape_attribute, escape_clean, preview, split_text, wire_size
from .text import render_block, render_thought

_NO_STORE = hint_element("no-store")
_HINTS = {"version": _NO_STORE + hint_element("no-copy"), "thought": _NO_STORE, "state": _NO_STORE}
_STORE = hint_element("store")
_END = "</message>"

# Longer texts are logs and dumps. The parser reads some ten thousand lines a second.
_MAX_CHARACTERS = 100_000
# Each bracket costs the parser as much as a word. No text for people has as many.
_MAX_BRACKETS = 5_000
# A mark at the beginning of a line. The search is fast because the expression begins with a fixed character.
_LINE_MARK = re.compile(r"\n[ \t]*(?:[-+#=]|\d+[.)])")

# The characters that are no marks within a line, in bytes of ASCII.
_PLAIN = bytes(set(range(32, 127)) - set(b"*_`[|<>~&/"))


def style_markdown(markdown: str) -> str:
    """Convert Markdown to Message Styling, for people who read it in a chat.

    `**x**` becomes `*x*`, `[text](url)` becomes `text (url)`, and tables are aligned. All other text stays as it is, to the
    character. More stays as text than in CommonMark:

    - Indented lines are no code.
    - HTML, backslashes and link definitions are text. An entity, such as `&lt;`, becomes its character, except in code.
    - A line that is not indented belongs to no list and no quote above it.
    - A rule or an underlined heading needs blank lines around it.

    A mark that would be ambiguous is left out. A formula or a name (`2**3**4`, `__init__`, `*.py,*.txt`) keeps its
    characters. The language after the opening fence of a code block is dropped. A text of more than 100,000 characters, or
    5,000 brackets, is returned as it is.
    """
    if len(markdown) > _MAX_CHARACTERS or not _has_marks(markdown) or markdown.count("[") > _MAX_BRACKETS:
        return markdown
    from ..markdown.blocks import render_blocks

    text = markdown.replace("\r\n", "\n").replace("\r", "\n") if "\r" in markdown else markdown
    rendered = render_blocks(text)
    return markdown if rendered == text else rendered


def _has_marks(text: str) -> bool:
    """True if the text may contain Markdown. Otherwise it stays as it is, and the parser is not even imported."""
    if text[:1].isalpha() and text.isascii() and not text.encode().translate(None, _PLAIN):
        return False  # most short texts: this check costs a third of the others
    # One after the other, these checks cost a fiftieth of one expression for all of them.
    if "*" in text or "_" in text or "`" in text or "[" in text or "|" in text or "<" in text or ">" in text:
        return True
    return "~" in text or "://" in text or ("&" in text and ";" in text) or _LINE_MARK.search("\n" + text) is not None


class StyledEncoder(PersonEncoder):
    """Encoder for people whose clients show Message Styling (XEP-0393). It has the texts, not the form of the messages."""

    texts = TextForm(style_markdown, render_thought, clean, wire_size, split_text)

    def find_text_bytes(self, incoming: InboundRequest) -> int:
        return text_bytes(self._max_bytes, self.recipient, incoming.thread)

    def render_block(self, block: DataBlock | UserErrorBlock) -> str:
        return render_block(block)

    def preview(self, text: str, *, is_markdown: bool) -> str:
        shown = preview(text)
        return quote_forgeries(style_markdown(shown) if is_markdown else shown)


class ChatEncoder(StyledEncoder):
    """Encoder for people: each message is a stanza.

    The reference to the question is a reply (XEP-0461). A version of a growing stream is a correction (XEP-0308) of the one
    before. Only the last one is stored and copied by servers. Offered answers (XEP-0439) are left out if they do not fit.
    """

    has_quick_responses = True
    """True if answers may be offered. The chosen one is sent to the agent as it is."""

    def find_text_bytes(self, incoming: InboundRequest) -> int:
        parent = incoming.metadata.get(PARENT_THREAD)
        self._opening, self._thread, bytes_left = make_frame(
            self.recipient, incoming.headers.message_type, incoming.thread, parent, self._max_bytes
        )
        if not self._is_reply:
            return bytes_left
        self._reply_element = reply_element(incoming)
        return max(bytes_left - len(self._reply_element.encode()), MIN_TEXT_BYTES)

    def write(self, message: PersonMessage) -> str:
        """Return the stanza of a message. Its text must not contain forbidden characters."""
        stanza_id, kind, state = message.id, message.kind, message.state
        extra = f"<{state} xmlns='{CHAT_STATES_NAMESPACE}'/>" if state else ""
        if kind == "state":
            return (
                f"<message to='{escape_attribute(self.recipient)}' type='chat'>{extra}{ANSWER_MARKER_XML}"
                f"{self._thread}{_HINTS[kind]}</message>"
            )
        reply = self._reply_element if message.is_reply else ""
        if kind != "text":
            extra = f"{extra}{replace_element(message.replaces)}{reply}{_HINTS[kind]}"
        elif message.is_link or reply or message.replaces is not None:
            file = file_element(message.text) if message.is_link else ""
            corrected = f"{replace_element(message.replaces)}{_STORE}" if message.replaces is not None else ""
            extra = f"{reply}{file}{extra}{corrected}"
        stanza = (
            f"{self._opening} id='{stanza_id}'><body>{escape_clean(message.text)}</body>"
            f"{self._thread}{extra}{ANSWER_MARKER_XML}<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/></message>"
        )
        if message.choices and self.has_quick_responses:
            offering = f"{stanza.removesuffix(_END)}{response_elements(message.choices)}{_END}"
            return offering if len(offering.encode()) <= self._max_bytes else stanza
        return stanza


class GroupchatEncoder(ChatEncoder):
    """Encoder for rooms: whole messages to everybody, the first one with the nickname of the person who asked.

    It sends no typing, no receipts and no corrections, because each would reach everybody.
    """

    has_quick_responses = False

    def __init__(self, incoming: InboundRequest, key: UUID, stanza_bytes: int) -> None:
        super().__init__(incoming, key, stanza_bytes, PresentationOptions(has_replies=True))
        self._prefix = f"{nickname}: " if (nickname := incoming.room.nickname) else ""

    def _decide_text(self, text: str, stream: LiveMessage | None = None, *, is_link: bool = False) -> list[PersonMessage]:
        text = clean(text).strip()
        if text and not is_link:
            text, self._prefix = self._prefix + text, ""
        return super()._decide_text(text, stream, is_link=is_link)
