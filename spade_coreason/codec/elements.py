"""What the messages of an agent are made of: their elements, as text, their ids, and the room that they leave for a text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from ..domain.jid import bare_jid
from ..domain.messages import PARENT_THREAD, InboundRequest
from .namespaces import (
    ANSWER_MARKER_NAMESPACE,
    CORRECTION_NAMESPACE,
    HINTS_NAMESPACE,
    OOB_NAMESPACE,
    QUICK_RESPONSE_NAMESPACE,
    REPLY_NAMESPACE,
)
from .xml import escape, escape_attribute

ANSWER_MARKER_XML = f"<answer xmlns='{ANSWER_MARKER_NAMESPACE}'/>"
"""In every answer of ours, so that no agent of ours answers it."""
MAX_CHARACTER_BYTES = 6
"""In bytes on the wire: a quote in an attribute."""
MIN_TEXT_BYTES = 1024
# What a stanza has besides its text, thread and addressee, at most.
_ENVELOPE_BYTES = 2048


def reply_address(incoming: InboundRequest) -> str:
    """Where text goes: to a person wherever they are now, they may have changed the device."""
    return incoming.address or bare_jid(incoming.sender)


@lru_cache(maxsize=1024)  # the same for every message of a conversation
def thread_element(thread: str | None, parent: str | None = None) -> str:
    """The native thread, echoed, and of which it is a branch (RFC 6121, 5.2.5)."""
    branch = f" parent='{escape_attribute(parent)}'" if parent else ""
    return f"<thread{branch}>{escape(thread)}</thread>" if thread else ""


def thread_element_of(incoming: InboundRequest) -> str:
    """The native thread of what a person has said."""
    return thread_element(incoming.thread, incoming.metadata.get(PARENT_THREAD))


def reply_element(incoming: InboundRequest) -> str:
    """The reference to a question (XEP-0461); in a room only the room's own id names it."""
    ident = incoming.origin_id or (incoming.stanza_id if incoming.channel != "room" else "")
    return (
        f"<reply xmlns='{REPLY_NAMESPACE}' to='{escape_attribute(incoming.sender)}' id='{escape_attribute(ident)}'/>"
        if ident
        else ""
    )


def replace_element(stanza_id: str | None) -> str:
    """The mark of a correction (XEP-0308) of the message with that id; empty where it corrects none."""
    return f"<replace xmlns='{CORRECTION_NAMESPACE}' id='{stanza_id}'/>" if stanza_id is not None else ""


def file_element(link: str) -> str:
    """The mark (XEP-0066) of a text that is a link, by which clients show the file behind it."""
    return f"<x xmlns='{OOB_NAMESPACE}'><url>{escape(link)}</url></x>"


def response_elements(choices: Iterable[tuple[str, str]]) -> str:
    """What may be answered (XEP-0439)."""
    return "".join(
        f"<response xmlns='{QUICK_RESPONSE_NAMESPACE}' value='{escape_attribute(value)}' label='{escape_attribute(label)}'/>"
        for value, label in choices
    )


def hint_element(name: str) -> str:
    """What servers are asked to do with a message (XEP-0334)."""
    return f"<{name} xmlns='{HINTS_NAMESPACE}'/>"


def content_id(prefix: str, number: int, text: str) -> str:
    """The same for the same thing said again, by a turn that runs again; another if the agent says something else this time."""
    return f"{prefix}-{number}-{crc32(text.encode('utf-8', 'surrogatepass')):08x}"


@lru_cache(maxsize=1024)  # as `thread_element`
def text_bytes(stanza_bytes: int, to: str, thread: str | None = None) -> int:
    """The bytes that a stanza to `to` on `thread` has for its text."""
    taken = _ENVELOPE_BYTES + MAX_CHARACTER_BYTES * (len(to) + len(thread or ""))
    return max(stanza_bytes - taken, MIN_TEXT_BYTES)


class Frame(NamedTuple):
    """What all messages to somebody on a thread have in common, and the bytes that they have for a text."""

    opening: str
    """The beginning, before the id."""
    thread: str
    text_bytes: int


@lru_cache(maxsize=1024)  # as `thread_element`
def make_frame(to: str, message_type: str, thread: str | None, parent: str | None, stanza_bytes: int) -> Frame:
    """The one of messages that take `stanza_bytes` at most; `parent` is the thread of which theirs is a branch."""
    element = thread_element(thread, parent)
    opening = f"<message to='{escape_attribute(to)}' type='{escape_attribute(message_type)}'"
    return Frame(opening, element, text_bytes(stanza_bytes - len(element.encode()), to))
