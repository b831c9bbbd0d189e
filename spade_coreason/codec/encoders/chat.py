"""What an agent says to a person: text with Message Styling (XEP-0393), and streams that grow."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from ...contracts import ThinkingBlock
from ...contracts.blocks import STEP
from ...domain.messages import (
    PARENT_THREAD,
    Completed,
    Failed,
    Incoming,
    Refused,
    Said,
    SaidText,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TurnEvent,
)
from ..elements import ANSWER_MARK, LEAST_TEXT_BYTES, address, file_at, frame, hint, replacing, reply_to, responses, said_id
from ..markdown.convert import styled
from ..markdown.tables import FENCE
from ..namespaces import CHAT_STATES_NAMESPACE, ORIGIN_ID_NAMESPACE
from ..xml import attribute, clean, escape_clean, split, wire_size
from .base import PLAIN, Manner
from .text import block_text, thought_text


class Growing:
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
        return and_more(self.styled.rstrip(), f"… ({why})")

    @property
    def has_more(self) -> bool:
        """Whether there is something to show that was not shown."""
        return self.shown < len(self.chunks) and bool(self.text.strip())


def and_more(text: str, mark: str) -> str:
    """A text with a mark behind it that says that it ends too soon."""
    # The end of a block of code is one only if nothing stands behind it.
    return f"{text}\n{mark.lstrip()}" if text.endswith(FENCE) else f"{text}{mark}"


_END = "</message>"


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

    def __init__(self, incoming: Incoming, key: UUID, stanza_bytes: int, manner: Manner = PLAIN) -> None:
        self.key = str(key)
        self._incoming = incoming
        self._manner = manner
        self._stanza_bytes = stanza_bytes
        self._reply = reply_to(incoming) if manner.refers or incoming.uses_replies else ""
        parent = incoming.metadata.get(PARENT_THREAD)
        self._opening, self._thread, most = frame(
            address(incoming), incoming.message_type, incoming.thread, parent, stanza_bytes
        )
        self._body_bytes = max(most - len(self._reply.encode()), LEAST_TEXT_BYTES) if self._reply else most
        self._streams: dict[str, Growing] = {}
        self._begun = self._made = self._thoughts = 0
        self._typing = False
        self.grows = self.follows_streams = manner.grows
        self.shows_typing = incoming.uses_chat_states

    def reads_thoughts(self, title: str | None) -> bool:
        return self._manner.thoughts or (title == STEP and self._manner.steps)

    def say(self, event: TurnEvent) -> list[str]:
        if isinstance(event, StreamChunk):
            self._streams[event.stream_id].chunks.append(event.chunk)
        elif isinstance(event, SaidText):
            stanzas = self._whole(styled(event.content) if event.text is None else event.text, event.links)
            return self._offering(stanzas, event.choices) if event.choices else stanzas
        elif isinstance(event, StreamStarted):
            stream = self._streams[event.stream_id] = Growing(f"{self.key}-s{self._begun}")
            stream.chained_to = self._manner.chained_to()
            self._begun += 1
        elif isinstance(event, StreamEnded):
            stream = self._streams.pop(event.stream_id)
            return self._whole(stream.styled if event.text is None else event.text, event.links, stream)
        elif isinstance(event, Completed) or (isinstance(event, Failed) and event.reported):
            return [self._chat_state("active")] if self._typing else []
        elif isinstance(event, Said):
            block = event.block
            if isinstance(block, ThinkingBlock):
                return self._thought(block)
            return self._whole(block_text(block) if event.text is None else event.text, event.links)
        elif isinstance(event, StreamAborted):
            stream = self._streams.pop(event.stream_id)
            if event.replacement is not None:
                return self._text(styled(event.replacement), stream)
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
        to = attribute(address(self._incoming))
        return (
            f"<message to='{to}' type='chat'><{state} xmlns='{CHAT_STATES_NAMESPACE}'/>{ANSWER_MARK}"
            f"{self._thread}{hint('no-store')}</message>"
        )

    def _may_show(self, stream: Growing) -> bool:
        return not stream.versions or self._replaced(stream) is not None

    def _replaced(self, stream: Growing) -> str | None:
        """The id that the next version of a stream corrects; None where there is nothing to correct."""
        if stream.chained_to is not None:
            return stream.last_id if self._manner.chained_to() == stream.chained_to else None
        # Of a turn that runs again the first run may have shown something already.
        return stream.message_id if stream.versions or self._manner.is_rerun else None

    def _version(self, stream: Growing) -> str:
        """The stream as it stands, as much of it as one stanza takes."""
        stream.shown = len(stream.chunks)
        self._typing = self.shows_typing
        text = self._fitting(clean(stream.styled).strip())
        replaced = self._replaced(stream)
        number, stream.versions = stream.versions, stream.versions + 1
        is_first = not (number or self._manner.is_rerun)
        stanza_id = stream.message_id if is_first else f"{stream.message_id}.{number}{'r' if self._manner.is_rerun else ''}"
        stream.last_id = stanza_id
        if stream.reply is None:
            stream.reply = self._take_reply()
        extra = f"{self._state}{replacing(replaced)}{stream.reply}{hint('no-store')}{hint('no-copy')}"
        return self._stanza(stanza_id, text, extra)

    @property
    def _state(self) -> str:
        """Beside what is said before the end: there is more to come."""
        return f"<composing xmlns='{CHAT_STATES_NAMESPACE}'/>" if self.shows_typing else ""

    def _fitting(self, text: str) -> str:
        """As much of a text as one stanza takes."""
        if len(text) * 12 > self._body_bytes and wire_size(text) > self._body_bytes:
            return and_more(next(split(text, self._body_bytes - 16)), " …")
        return text

    def _thought(self, block: ThinkingBlock) -> list[str]:
        """Its lines in italics, in one stanza: what is too long for it is cut off."""
        text = clean(block.content).strip()
        if not text or not self.reads_thoughts(block.title):
            return []
        stanza_id = said_id(f"{self.key}-t", self._thoughts, text)
        self._thoughts += 1
        self._typing = self.shows_typing
        return [self._stanza(stanza_id, self._fitting(thought_text(text)), self._state + hint("no-store"))]

    def _whole(self, text: str, links: tuple[str, ...], stream: Growing | None = None) -> list[str]:
        """A text, and behind it a message for each link; one where the text is the link."""
        if not links:
            return self._text(text, stream)
        if (alone := text.strip()) in links:
            return self._text(alone, stream, is_link=True)
        return [*self._text(text, stream), *(message for link in links for message in self._text(link, is_link=True))]

    def _offering(self, stanzas: list[str], choices: Iterable[tuple[str, str]]) -> list[str]:
        """With what may be answered (XEP-0439) in the last stanza, if it has room for it; the text says it too."""
        offered = responses(choices)
        if not offered or not stanzas or not self.offers:
            return stanzas
        whole = f"{stanzas[-1].removesuffix(_END)}{offered}{_END}"
        return [*stanzas[:-1], whole] if len(whole.encode()) <= self._stanza_bytes else stanzas

    def _text(self, text: str, stream: Growing | None = None, *, is_link: bool = False) -> list[str]:
        text = clean(text).strip()
        if not text:
            return []
        replaced = self._replaced(stream) if stream is not None and self.grows else None
        reply = stream.reply if stream is not None and stream.reply is not None else self._take_reply()
        if is_link:
            return [self._message(text, replaced, reply + file_at(text))]
        if len(text) * 12 <= self._body_bytes or wire_size(text) <= self._body_bytes:
            return [self._message(text, replaced, reply)]
        first, *others = split(text, self._body_bytes)
        return [self._message(first, replaced, reply), *(self._message(part) for part in others)]

    def _take_reply(self) -> str:
        reply, self._reply = self._reply, ""
        return reply

    def _message(self, text: str, replaced: str | None = None, beside: str = "") -> str:
        stanza_id = said_id(self.key, self._made, text)
        self._made += 1
        extra = beside
        if self._incoming.uses_chat_states:
            extra, self._typing = f"{beside}<active xmlns='{CHAT_STATES_NAMESPACE}'/>", False
        if replaced is not None:
            extra += replacing(replaced) + hint("store")
        return self._stanza(stanza_id, text, extra)

    def _stanza(self, stanza_id: str, text: str, extra: str) -> str:
        """A message with a text that is clean."""
        return (
            f"{self._opening} id='{stanza_id}'><body>{escape_clean(text)}</body>"
            f"{self._thread}{extra}{ANSWER_MARK}<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/></message>"
        )
