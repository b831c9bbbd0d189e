"""A message stanza that came in, read: works on the bare element (RFC 6121).

slixmpp's own message event knows only stanzas with a body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from ..domain.messages import LONGEST_ID, PARENT_THREAD, RESERVED, Bounce, Decoded, Incoming, Reaction, Retraction
from ..domain.preferences import is_language_tag
from .attachments import LINKING, attachments
from .cloud_events import NOT_OURS, read_container
from .namespaces import (
    APPLY_TO,
    BODY,
    CHAT_STATES,
    DATA_FORM,
    DELAY,
    ERROR,
    FALLBACK,
    FALLBACK_BODY,
    FORM_FIELD,
    FORM_TITLE,
    FORM_VALUE,
    JSON,
    LANGUAGE,
    MARKABLE,
    MARKER,
    MUC_USER,
    ORIGIN_ID,
    REACTION,
    REACTIONS,
    RECEIPT_REQUEST,
    REPLACE,
    REPLY,
    REPLY_NAMESPACE,
    RETRACTIONS,
    SPADE_FORM,
    SPADE_THREAD,
    STANZA_ERRORS,
    THREAD,
)

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


def decode(message: Element, *, in_room: bool = False) -> Decoded:
    """Reads one `<message/>`; None where it asks nothing of an agent (chat states, receipts, room messages, answers).

    `in_room`: it is a private one of an occupant of a room that the agent is in.
    A message with an id or a thread of more than 1,024 characters is None too.
    """
    kind = message.get("type", "normal")
    sender = message.get("from", "")
    if kind == "error":
        return _bounce(message, sender)
    if kind in ("headline", "groupchat") or not sender:
        return None
    if kind != "chat":
        kind = "normal"  # RFC 6121, 5.2.2; and it is echoed, so it may not be just anything
    parts: dict[str, Element] = {}
    for child in message:
        if (tag := child.tag) not in parts:
            parts[tag] = child
    stanza_id = message.get("id", "")
    thread_element = parts.get(THREAD)
    thread = (thread_element.text or None) if thread_element is not None else None
    if len(stanza_id) > LONGEST_ID or (thread is not None and len(thread) > LONGEST_ID):
        return None
    if MUC_USER in parts and not in_room:
        return None  # its bare JID is the room's, and no person's
    if (reference := referring(parts, sender)) is not None:
        return reference
    body = parts.get(BODY)
    text = "".join(body.itertext()) if body is not None else ""
    container = parts.get(JSON)
    if container is not None:
        from_program = read_container(container.text or "", sender, stanza_id, thread, MARKER in parts, bool(text.strip()))
        if from_program is not NOT_OURS:
            return from_program
    if MARKER in parts:
        return None
    form = parts.get(DATA_FORM)
    fields = _spade_fields(form) if form is not None else None
    if fields is not None:
        return _from_spade(fields, text, sender, stanza_id, thread, kind)
    return _from_person(message, parts, text, sender, stanza_id, thread, kind)


def _from_spade(
    fields: dict[str, str], text: str, sender: str, stanza_id: str, thread: str | None, kind: str
) -> Incoming | None:
    thread = thread or fields.pop(SPADE_THREAD, None) or None
    if thread is not None and len(thread) > LONGEST_ID:
        return None
    return Incoming(
        language="spade",
        sender=sender,
        stanza_id=stanza_id,
        thread=thread,
        payload={"query": text},
        content=f"{thread}\n{text}\n{json.dumps(fields)}",
        message_type=kind,
        metadata={"spade": fields, **{k: v for k, v in fields.items() if k not in RESERVED}},
    )


def _from_person(
    message: Element, parts: Mapping[str, Element], text: str, sender: str, stanza_id: str, thread: str | None, kind: str
) -> Incoming | None:
    """What is left when no program says anything; None without a word."""
    uses_replies = REPLY in parts
    asked = without_quote(text, message) if uses_replies else text
    if not asked.strip():
        return None
    payload: dict[str, Any] = {"query": asked}
    if not LINKING.isdisjoint(parts) and (linked := attachments(message)):
        payload["attachments"] = linked
    corrected, origin = parts.get(REPLACE), parts.get(ORIGIN_ID)
    replaces = corrected.get("id") if corrected is not None else None
    origin_id = origin.get("id", "") if origin is not None else ""
    return Incoming(
        "person",
        sender,
        stanza_id,
        thread,
        payload,
        f"{thread}\n{text}",
        kind,
        _metadata(message, parts, thread),
        wants_receipt=RECEIPT_REQUEST in parts,
        uses_chat_states=not CHAT_STATES.isdisjoint(parts),
        wants_marker=MARKABLE in parts,
        replaces=replaces,
        origin_id=origin_id if origin_id != stanza_id and 0 < len(origin_id) <= LONGEST_ID else None,
        uses_replies=uses_replies,
    )


def _metadata(message: Element, parts: Mapping[str, Element], thread: str | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    reply, body, delay = parts.get(REPLY), parts.get(BODY), parts.get(DELAY)
    if reply is not None and reply.get("id"):
        metadata["reply_to"] = reply.get("id")
    if thread is not None and (parent := parent_thread(parts[THREAD])) is not None:
        metadata[PARENT_THREAD] = parent
    language = (body.get(LANGUAGE) if body is not None else None) or message.get(LANGUAGE)
    if language is not None and is_language_tag(language):
        metadata["language_tag"] = language
    if delay is not None and delay.get("stamp"):
        metadata["delayed_since"] = delay.get("stamp")
    return metadata


def _bounce(message: Element, sender: str) -> Bounce | None:
    error = message.find(ERROR)
    if error is None:
        return None
    condition, text = "undefined-condition", ""
    for child in error:
        namespace, _, name = child.tag[1:].rpartition("}")
        if namespace == STANZA_ERRORS:
            if name == "text":
                text = child.text or ""
            else:
                condition = name
    return Bounce(sender, message.get("id", ""), condition, text)


def _spade_fields(form: Element) -> dict[str, str] | None:
    """The metadata of a SPADE message, None where the form is another one."""
    if form.findtext(FORM_TITLE) != SPADE_FORM:
        return None
    fields: dict[str, str] = {}
    for entry in form.iter(FORM_FIELD):
        name, value = entry.get("var"), entry.findtext(FORM_VALUE)
        if name and value is not None:
            fields[name] = value
    return fields
