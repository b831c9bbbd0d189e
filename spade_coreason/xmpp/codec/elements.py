"""Building blocks of an agent's messages: elements as text, ids, and the bytes left for a text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from ...domain.messages import PARENT_THREAD, InboundRequest
from .namespaces import (
    CORRECTION_NAMESPACE,
    HINTS_NAMESPACE,
    OOB_NAMESPACE,
    QUICK_RESPONSE_NAMESPACE,
    REPLY_MARKER_NAMESPACE,
    REPLY_NAMESPACE,
)
from .xml import clean, escape, escape_attribute

ANSWER_MARKER_XML = f"<answer xmlns='{REPLY_MARKER_NAMESPACE}'/>"
"""The mark of every reply of ours, so that no agent of ours replies to it."""
MAX_CHARACTER_BYTES = 6
"""The longest form of a character on the wire: a quote in an attribute."""
MIN_TEXT_BYTES = 1024
# The most bytes that a stanza takes besides its text, thread and address.
_ENVELOPE_BYTES = 2048


@lru_cache(maxsize=1024)  # the same for every message of a conversation
def thread_element(thread: str | None, parent: str | None = None) -> str:
    """Return the `<thread/>` that echoes a thread and its parent (RFC 6121, 5.2.5); empty without a thread."""
    branch = f" parent='{escape_attribute(parent)}'" if parent else ""
    return f"<thread{branch}>{escape(thread)}</thread>" if thread else ""


@lru_cache(maxsize=1024)  # cached like `thread_element`
def sent_thread(thread: str | None) -> str | None:
    """Return a thread as the recipient of a `thread_element` reads it: without what XML forbids; None for an empty one."""
    return sent_text(thread) or None if thread else None


def sent_text(text: str) -> str:
    """Return a text as its recipient reads it: without what XML forbids, and with the line ends of XML."""
    return clean(text).replace("\r\n", "\n").replace("\r", "\n")


def thread_element_of(incoming: InboundRequest) -> str:
    """Return the `<thread/>` of a request, for replies to it."""
    return thread_element(incoming.thread, incoming.metadata.get(PARENT_THREAD))


def reply_element(incoming: InboundRequest) -> str:
    """Return the reference to a question (XEP-0461); empty if the question has no id.

    In a room only the id that the room assigned refers to it.
    """
    question_id = incoming.headers.origin_id or (incoming.stanza_id if not incoming.kind.is_room else "")
    return (
        f"<reply xmlns='{REPLY_NAMESPACE}' to='{escape_attribute(incoming.sender)}' id='{escape_attribute(question_id)}'/>"
        if question_id
        else ""
    )


def replace_element(stanza_id: str | None) -> str:
    """Return the mark of a correction (XEP-0308) of the message with that id; empty for None."""
    return f"<replace xmlns='{CORRECTION_NAMESPACE}' id='{stanza_id}'/>" if stanza_id is not None else ""


def file_element(link: str) -> str:
    """Return the mark (XEP-0066) of a text that is a link. Clients then show the file behind it."""
    return f"<x xmlns='{OOB_NAMESPACE}'><url>{escape(link)}</url></x>"


def response_elements(choices: Iterable[tuple[str, str]]) -> str:
    """Return the offered answers (XEP-0439), given as pairs of value and label."""
    return "".join(
        f"<response xmlns='{QUICK_RESPONSE_NAMESPACE}' value='{escape_attribute(value)}' label='{escape_attribute(label)}'/>"
        for value, label in choices
    )


def hint_element(name: str) -> str:
    """Return a processing hint for servers (XEP-0334), such as `no-store`."""
    return f"<{name} xmlns='{HINTS_NAMESPACE}'/>"


@lru_cache(maxsize=1024)  # cached like `thread_element`
def text_bytes(stanza_bytes: int, to: str, thread: str | None = None) -> int:
    """Return the bytes that a stanza to `to` on `thread` has for its text."""
    used_bytes = _ENVELOPE_BYTES + MAX_CHARACTER_BYTES * (len(to) + len(thread or ""))
    return max(stanza_bytes - used_bytes, MIN_TEXT_BYTES)


class Frame(NamedTuple):
    """The common part of all messages to one address on a thread, and the bytes that they have for a text."""

    opening: str
    """The beginning of the stanza, up to its id."""
    thread: str
    text_bytes: int


@lru_cache(maxsize=1024)  # cached like `thread_element`
def make_frame(to: str, message_type: str, thread: str | None, parent: str | None, stanza_bytes: int) -> Frame:
    """Build the frame of messages of at most `stanza_bytes`. `parent` is the thread that `thread` is a branch of."""
    element = thread_element(thread, parent)
    opening = f"<message to='{escape_attribute(to)}' type='{escape_attribute(message_type)}'"
    return Frame(opening, element, text_bytes(stanza_bytes - len(element.encode()), to))
