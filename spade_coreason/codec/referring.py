"""What a message says about another one: a reply, a branch of a thread, a retraction, a reaction."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element

from .incoming import LONGEST_ID, Reaction, Retraction
from .namespaces import APPLY_TO, FALLBACK, FALLBACK_BODY, REACTION, REACTIONS, REPLY_NAMESPACE, RETRACTIONS

_REFERRING = frozenset({*RETRACTIONS, APPLY_TO, REACTIONS})
_EMOJIS = 20
_EMOJI_CHARACTERS = 32
_RANGES = 20


def parent_thread(thread: Element) -> str | None:
    """The thread of which that of a message is a branch (XEP-0201), from its `<thread/>`."""
    parent = thread.get("parent")
    return parent if parent and len(parent) <= LONGEST_ID else None


def without_quote(body: str, message: Element) -> str:
    """The body of a reply without the quote of what it replies to, which is for clients that know no replies (XEP-0428)."""
    ranges = []
    for fallback in message.iterfind(FALLBACK):
        if fallback.get("for") != REPLY_NAMESPACE:
            continue
        for part in fallback.iterfind(FALLBACK_BODY):
            first, last = part.get("start", ""), part.get("end", "")
            if first.isdecimal() and last.isdecimal() and len(first + last) < 20 and int(first) <= int(last):
                ranges.append((int(first), int(last)))
    cut_from = len(body)
    for begin, end in sorted(ranges[:_RANGES], reverse=True):
        body = body[:begin] + body[min(end, cut_from) :]
        cut_from = begin
    return body


def referring(parts: Mapping[str, Element], sender: str) -> Retraction | Reaction | None:
    """What `sender` says about another message with the children `parts` of one, by tag. None where it is a message of its own.

    Such a message has a text for clients that do not know that.
    """
    if _REFERRING.isdisjoint(parts):
        return None
    for tag in RETRACTIONS:
        retract = parts.get(tag)
        if retract is not None and retract.get("id"):
            return Retraction(sender, retract.get("id", ""))
    fastened = parts.get(APPLY_TO)
    if fastened is not None and any(fastened.find(f".//{tag}") is not None for tag in RETRACTIONS):
        return Retraction(sender, fastened.get("id", ""))
    reactions = parts.get(REACTIONS)
    if reactions is not None:
        said = [entry.text or "" for entry in reactions.iterfind(REACTION)]
        emojis = tuple(text for text in said if 0 < len(text) <= _EMOJI_CHARACTERS)
        return Reaction(sender, reactions.get("id", ""), emojis[:_EMOJIS])
    return None
