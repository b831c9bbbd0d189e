"""Incoming message stanzas, decoded from the bare element (RFC 6121).

slixmpp's own message event covers only stanzas with a body.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element

from ...domain.channel_kinds import PERSON, SPADE
from ...domain.duplicates import NO_EVIDENCE, Evidence
from ...domain.jid import bare_jid
from ...domain.messages import (
    MAX_ID_CHARACTERS,
    NO_HEADERS,
    PARENT_THREAD,
    RESERVED_METADATA,
    Bounce,
    EncryptedMessage,
    InboundMessage,
    InboundRequest,
    MalformedRequest,
    MessageHeaders,
    Reaction,
    RequestBatch,
    Retraction,
    map_requests,
)
from .attachments import LINK_ELEMENTS, LinkedFiles, read_linked_files
from .cloud_events import FOREIGN_CONTAINER, read_container, refuse_long_id
from .elements import sent_text, sent_thread
from .evidence import ANY_RECEIVER, EVIDENCE_TAGS, Receiver, read_delay, read_evidence, read_id
from .language import read_language
from .namespaces import (
    APPLY_TO,
    BODY,
    CHAT_STATES,
    DATA_FORM,
    DELAY,
    ENCRYPTED,
    ENCRYPTION,
    ERROR,
    FALLBACK,
    FALLBACK_BODY,
    FILE_NAMESPACES,
    FORM_FIELD,
    FORM_TITLE,
    FORM_VALUE,
    JSON,
    MARKABLE,
    MUC_USER,
    ORIGIN_ID,
    REACTION,
    REACTIONS,
    RECEIPT_REQUEST,
    REPLACE,
    REPLY,
    REPLY_MARKER,
    REPLY_NAMESPACE,
    RETRACTIONS,
    SPADE_FORM,
    SPADE_THREAD,
    STANZA_ERRORS_NAMESPACE,
    THREAD,
)

_ENCRYPTED_TAGS = frozenset({ENCRYPTION, *ENCRYPTED})

# Few messages have one of them.
_SPECIAL_TAGS = frozenset({*RETRACTIONS, APPLY_TO, REACTIONS, REPLACE, *_ENCRYPTED_TAGS})

_HEADER_TAGS = frozenset({*CHAT_STATES, MARKABLE, ORIGIN_ID, RECEIPT_REQUEST, REPLACE, REPLY})

_ENCRYPTIONS = {tag[1:].partition("}")[0]: name for tag, name in ENCRYPTED.items()} | {"urn:xmpp:otr:0": "OTR"}

_MAX_EMOJIS = 20

_MAX_EMOJI_CHARACTERS = 32

_MAX_RANGES = 64


def parent_thread(thread: Element) -> str | None:
    """Return the thread that a message's `<thread/>` is a branch of (XEP-0201).

    None if it names none, or one of more than 1,024 characters.
    """
    parent = thread.get("parent")
    return parent if parent and len(parent) <= MAX_ID_CHARACTERS else None


def remove_fallback(body: str, message: Element, files: LinkedFiles | None) -> str:
    """Remove from the body what is meant for clients without support of replies or files (XEP-0428).

    That is the quote of the message that it replies to, and the links to its attached `files`.
    """
    removed = {REPLY_NAMESPACE} if message.find(REPLY) is not None else set()
    if files is not None and files.attachments:
        removed |= FILE_NAMESPACES
    ranges: list[tuple[int, int]] = []
    for fallback in message.iterfind(FALLBACK):
        if (namespace := fallback.get("for")) not in removed:
            continue
        parts = fallback.findall(FALLBACK_BODY)
        is_whole = len(fallback) == 0 or any(part.get("start", part.get("end")) is None for part in parts)
        if is_whole and namespace != REPLY_NAMESPACE:
            return ""
        for part in parts:
            first, last = part.get("start", ""), part.get("end", "")
            if first.isdecimal() and last.isdecimal() and len(first + last) < 20 and int(first) <= int(last):
                ranges.append((int(first), int(last)))
    return _remove_ranges(body, sorted(ranges[:_MAX_RANGES]))


def _remove_ranges(body: str, ranges: Iterable[tuple[int, int]]) -> str:
    kept, position = [], 0
    for begin, end in ranges:
        kept.append(body[position:begin])
        position = max(position, end)
    kept.append(body[position:])
    return "".join(kept)


def read_message_reference(parts: Mapping[str, Element], sender: str) -> Retraction | Reaction | None:
    """Read how `sender` refers to another message: with a retraction or a reaction. None for an ordinary message.

    `parts` are the children of the message, by tag. A message that refers to another one also has a text,
    for clients that do not support this. A correction without text is a retraction; one with a text is an ordinary message.
    """
    for tag in RETRACTIONS:
        retract = parts.get(tag)
        if retract is not None and retract.get("id"):
            return Retraction(sender, retract.get("id", ""))
    fastened = parts.get(APPLY_TO)
    if fastened is not None and any(fastened.find(f".//{tag}") is not None for tag in RETRACTIONS):
        return Retraction(sender, fastened.get("id", ""))
    reactions = parts.get(REACTIONS)
    if reactions is not None:
        texts = [entry.text or "" for entry in reactions.iterfind(REACTION)]
        emojis = tuple(text for text in texts if 0 < len(text) <= _MAX_EMOJI_CHARACTERS)
        return Reaction(sender, reactions.get("id", ""), emojis[:_MAX_EMOJIS])
    body = parts.get(BODY)
    if body is not None and REPLACE in parts and not "".join(body.itertext()).strip():
        return Retraction(sender, read_id(parts[REPLACE]))
    return None


def read_encryption(parts: Mapping[str, Element]) -> str:
    """Return the name of the encryption of an encrypted message (XEP-0380); empty for an unknown one.

    `parts` are the children of the message, by tag. The text of such a message is only a hint for clients without it.
    """
    for tag, name in ENCRYPTED.items():
        if tag in parts:
            return name
    return _ENCRYPTIONS.get(parts[ENCRYPTION].get("namespace", ""), "")


def decode(message: Element, receiver: Receiver = ANY_RECEIVER, *, in_room: bool = False) -> InboundMessage:
    """Decode one `<message/>`. None if it asks nothing of an agent: chat states, receipts, room messages, replies.

    `receiver`: the account to which it came. `in_room`: it is a private message of an occupant of a room that the agent is in.
    A request whose id or thread has more than 1,024 characters is malformed.
    """
    message_type = message.get("type", "normal")
    sender = message.get("from", "")
    if message_type == "error":
        return read_bounce(message)
    if message_type in ("headline", "groupchat") or not sender:
        return None
    if message_type != "chat":
        message_type = "normal"  # RFC 6121, 5.2.2. The type is echoed, so unknown ones must not pass.
    parts: dict[str, Element] = {}
    for child in message:
        if (tag := child.tag) not in parts:
            parts[tag] = child
    stanza_id = message.get("id", "")
    thread_element = parts.get(THREAD)
    thread = (thread_element.text or None) if thread_element is not None else None
    if len(stanza_id) > MAX_ID_CHARACTERS or (thread is not None and len(thread) > MAX_ID_CHARACTERS):
        without_ids = Element(message.tag, {name: text for name, text in message.attrib.items() if name != "id"})
        without_ids.extend(child for child in message if child.tag != THREAD)
        rest = decode(without_ids, receiver, in_room=in_room)
        if isinstance(rest, InboundRequest | RequestBatch | MalformedRequest):
            return refuse_long_id(sender, is_text=isinstance(rest, InboundRequest) and not rest.kind.is_program)
        return None
    if MUC_USER in parts and not in_room:
        return None  # the sender's bare JID is the room, not a person
    if not _SPECIAL_TAGS.isdisjoint(parts):
        if (reference := read_message_reference(parts, sender)) is not None:
            return reference
        if not _ENCRYPTED_TAGS.isdisjoint(parts):
            return EncryptedMessage(sender, read_encryption(parts), read_language(message, parts.get(BODY)))
    body = parts.get(BODY)
    text = "" if body is None else "".join(body.itertext()) if len(body) else body.text or ""
    container = parts.get(JSON)
    if container is not None:
        from_program = read_container(
            container.text or "",
            sender,
            stanza_id,
            thread,
            REPLY_MARKER in parts,
            bool(text.strip()),
            _sent_at(parts[DELAY]) if DELAY in parts else None,
        )
        if from_program is not FOREIGN_CONTAINER:
            return _add_evidence(from_program, message, receiver) if DELAY in parts or _lacks_id(from_program) else from_program
    if REPLY_MARKER in parts:
        return None
    form = parts.get(DATA_FORM)
    fields = _spade_fields(form) if form is not None else None
    if fields is not None:
        request = _decode_spade(fields, text, sender, stanza_id, thread, message_type)
        return _add_evidence(request, message, receiver)
    evidence = NO_EVIDENCE if EVIDENCE_TAGS.isdisjoint(parts) else read_evidence(message, receiver)
    return _decode_person(message, parts, text, sender, stanza_id, thread, message_type, evidence)


def read_text(text: str, sender: str, stanza_id: str, thread: str | None) -> InboundRequest | MalformedRequest | None:
    """Read a text of a person (a full JID) as `decode` reads the message that has it, and no more. None without a text."""
    thread, text = sent_thread(thread), sent_text(text)
    if not text.strip():
        return None
    if thread is not None and len(thread) > MAX_ID_CHARACTERS:
        return refuse_long_id(sender, is_text=True)
    content, owner = f"{thread}\n{text}", bare_jid(sender)
    return InboundRequest(PERSON, sender, stanza_id, thread, {"query": text}, content, owner=owner)


def _sent_at(delay: Element) -> float | None:
    time = read_delay(delay)
    return None if time is None else time / 1_000_000


def _lacks_id(message: InboundMessage) -> bool:
    """Return True for a program's request without an id of its own, which is known by its message."""
    requests = message.requests if isinstance(message, RequestBatch) else (message,)
    return any(isinstance(request, InboundRequest) and request.request_id is None for request in requests)


def _add_evidence(decoded: InboundMessage, message: Element, receiver: Receiver) -> InboundMessage:
    evidence = read_evidence(message, receiver)
    return map_requests(decoded, lambda request: replace(request, evidence=evidence))


def _decode_spade(
    fields: dict[str, str], text: str, sender: str, stanza_id: str, thread: str | None, message_type: str
) -> InboundRequest | MalformedRequest:
    thread = thread or fields.pop(SPADE_THREAD, None) or None
    if thread is not None and len(thread) > MAX_ID_CHARACTERS:
        return refuse_long_id(sender, is_text=True)
    return InboundRequest(
        kind=SPADE,
        sender=sender,
        stanza_id=stanza_id,
        thread=thread,
        payload={"query": text},
        content=f"{thread}\n{text}\n{json.dumps(fields)}",
        metadata={"spade": fields, **{k: v for k, v in fields.items() if k not in RESERVED_METADATA}},
        headers=MessageHeaders(message_type),
        owner=bare_jid(sender),
    )


def _decode_person(
    message: Element,
    parts: Mapping[str, Element],
    text: str,
    sender: str,
    stanza_id: str,
    thread: str | None,
    message_type: str,
    evidence: Evidence,
) -> InboundRequest | None:
    """Decode a message that is neither a program's nor a SPADE agent's. None without a text and without a link."""
    files = read_linked_files(message) if not LINK_ELEMENTS.isdisjoint(parts) else None
    question = remove_fallback(text, message, files) if FALLBACK in parts else text
    if files is not None:
        payload, text = files.payload(question), f"{text}\n{files.text}"
    elif question.strip():
        payload = {"query": question}
    else:
        return None
    has_headers = message_type != "chat" or not _HEADER_TAGS.isdisjoint(parts)
    return InboundRequest(
        PERSON,
        sender,
        stanza_id,
        thread,
        payload,
        f"{thread}\n{text}",
        _metadata(message, parts, thread),
        _read_headers(parts, message_type, stanza_id) if has_headers else NO_HEADERS,
        evidence,  # by position, because each keyword of a class costs as much as a call
        owner=bare_jid(sender),
    )


def _read_headers(parts: Mapping[str, Element], message_type: str, stanza_id: str) -> MessageHeaders:
    replaced_id, origin_id = read_id(parts.get(REPLACE)), read_id(parts.get(ORIGIN_ID))
    return MessageHeaders(
        message_type,
        (replaced_id,) if replaced_id else (),
        origin_id if origin_id and origin_id != stanza_id else None,
        not CHAT_STATES.isdisjoint(parts),
        REPLY in parts,
        RECEIPT_REQUEST in parts,
        MARKABLE in parts,
    )


def _metadata(message: Element, parts: Mapping[str, Element], thread: str | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    reply, delay = parts.get(REPLY), parts.get(DELAY)
    if reply is not None and reply.get("id"):
        metadata["reply_to"] = reply.get("id")
    if thread is not None and (parent := parent_thread(parts[THREAD])) is not None:
        metadata[PARENT_THREAD] = parent
    if (language := read_language(message, parts.get(BODY))) is not None:
        metadata["language_tag"] = language
    if delay is not None and delay.get("stamp"):
        metadata["delayed_since"] = delay.get("stamp")
    return metadata


def read_bounce(stanza: Element) -> Bounce | None:
    """Read the error of a stanza of type error. None without one."""
    error = stanza.find(ERROR)
    if error is None:
        return None
    condition, text = "undefined-condition", ""
    for child in error:
        namespace, _, name = child.tag[1:].rpartition("}")
        if namespace == STANZA_ERRORS_NAMESPACE:
            if name == "text":
                text = child.text or ""
            else:
                condition = name
    return Bounce(stanza.get("from", ""), stanza.get("id", ""), condition, text, error.get("type") == "wait")


def _spade_fields(form: Element) -> dict[str, str] | None:
    """Return the metadata of a SPADE message. None if the form is another one."""
    if form.findtext(FORM_TITLE) != SPADE_FORM:
        return None
    fields: dict[str, str] = {}
    for entry in form.iter(FORM_FIELD):
        name, value = entry.get("var"), entry.findtext(FORM_VALUE)
        if name and value is not None:
            fields[name] = value
    return fields
