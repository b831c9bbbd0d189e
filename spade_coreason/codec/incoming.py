"""A message stanza that came in, as values: a request, an answer to one of ours, a bounce, or nothing for us.

Works on the bare element (RFC 6121): slixmpp's own message event knows only stanzas with a body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID
from xml.etree.ElementTree import Element

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from ..contracts import ClientCapabilities
from ..names import bare
from ..preferences import is_language_tag
from .attachments import attachments
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
    REQUEST,
    RETRACTIONS,
    SPADE_FORM,
    SPADE_THREAD,
    STANZA_ERRORS,
    THREAD,
    TYPE_PREFIX,
)

# Ids and threads are echoed, and a quote takes six times its room there. Longer ones are nobody's.
LONGEST_ID = 1024

_EMOJIS = 20
_EMOJI_CHARACTERS = 32
_RANGES = 20

PARENT_THREAD = "parent_thread"

# What the platform says about a request; nobody else may.
RESERVED = frozenset(
    {
        "conversation_id",
        "redelivered",
        "sender",
        "attachments",
        "reply_to",
        "thread",
        PARENT_THREAD,
        "language",
        "spade",
        "delayed_since",
        "hops",
        "room",
        "nickname",
        "occupant",
        "preferred_language",
        "language_tag",
    }
)

# By this a program says, in the metadata of its request, that the query is a command as a person writes it.
COMMAND = "command"

_LINEAGE = ("request_id", "root_request_id", "parent_request_id")


class Incoming(NamedTuple):
    """A request and where it came from. `language` is what it is answered in: "person", "program", "spade" or "room"."""

    language: str
    sender: str
    stanza_id: str
    thread: str | None
    payload: dict[str, Any]
    content: str
    """What makes it another message than one with the same id."""
    message_type: str = "chat"
    metadata: Mapping[str, Any] = MappingProxyType({})
    request_id: UUID | None = None
    root_request_id: UUID | None = None
    parent_request_id: UUID | None = None
    capabilities: ClientCapabilities | None = None
    hops: int = 0
    """Through how many agents it came, as the last of them says."""
    wants_receipt: bool = False
    uses_chat_states: bool = False
    wants_marker: bool = False
    """Whether the sender wants to know when it is read (XEP-0333)."""
    replaces: str | None = None
    """The id of the sender's own message that this one corrects (XEP-0308)."""
    origin_id: str | None = None
    """The id by which others refer to it, where that is not the stanza's (XEP-0359): its sender's, or in a room the room's."""
    uses_replies: bool = False
    """Whether the sender's client knows replies (XEP-0461), for it is one."""
    archive_id: str = ""
    """What our own server calls it (XEP-0359), where it has no id."""
    owner: str = ""
    """Whose conversation it is, where that is not the bare JID of the sender: a room's, or one of its occupants'."""
    address: str = ""
    """Where a text answer goes, where that is not the bare JID of the sender."""
    nickname: str = ""
    """What the sender is called in a room."""

    @property
    def may_command(self) -> bool:
        """Whether its text may be a command. In a room anybody could stop what another has asked; a program says so."""
        return self.language == "person" or (self.language == "program" and self.metadata.get(COMMAND) is True)

    def to_json(self) -> bytes:
        """For the inbox; `from_json` reads it again. Without `content`, which only the key needs."""
        row: dict[str, Any] = {
            "language": self.language,
            "sender": self.sender,
            "stanza_id": self.stanza_id,
            "payload": self.payload,
        }
        if self.thread is not None:
            row["thread"] = self.thread
        if self.message_type != "chat":
            row["message_type"] = self.message_type
        if self.metadata:
            row["metadata"] = dict(self.metadata)
        for name in _LINEAGE:
            if (ident := getattr(self, name)) is not None:
                row[name] = ident
        if self.capabilities is not None:
            row["capabilities"] = self.capabilities.dump()
        if self.hops:
            row["hops"] = self.hops
        if self.uses_chat_states:
            row["uses_chat_states"] = True
        if self.uses_replies:
            row["uses_replies"] = True
        if self.origin_id is not None:
            row["origin_id"] = self.origin_id
        if self.owner:
            row |= {"owner": self.owner, "address": self.address, "nickname": self.nickname}
        return to_json(row)

    @classmethod
    def from_json(cls, text: str | bytes) -> Incoming:
        """What `to_json` wrote."""
        row = from_json(text)
        for name in _LINEAGE:
            if row.get(name) is not None:
                row[name] = UUID(row[name])
        if "capabilities" in row:
            row["capabilities"] = ClientCapabilities.model_validate(row["capabilities"])
        row.setdefault("thread", None)
        return cls(content="", **row)


class Reply(NamedTuple):
    """An event that answers a request of ours, from whoever sent it. `type` is without the prefix `ai.coreason.`."""

    sender: str
    request_id: str
    type: str
    event_id: str
    data: Mapping[str, Any]


class Bounce(NamedTuple):
    """The server, or the other side, sent a message of ours back."""

    sender: str
    stanza_id: str
    condition: str
    text: str


class Malformed(NamedTuple):
    """Something that claims to be a request and cannot be read."""

    sender: str
    stanza_id: str
    thread: str | None
    problem: str
    request_id: str | None = None


class Retraction(NamedTuple):
    """The sender takes a message of theirs back (XEP-0424)."""

    sender: str
    stanza_id: str


class Reaction(NamedTuple):
    """What the sender feels about a message of ours (XEP-0444); nothing takes back what they felt before."""

    sender: str
    stanza_id: str
    emojis: tuple[str, ...]
    nickname: str = ""
    """What the sender is called in a room, where everybody may feel something about a message."""


Decoded: TypeAlias = Incoming | Reply | Bounce | Malformed | Retraction | Reaction | None


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
    uses_chat_states = False
    for child in message:
        tag = child.tag
        parts.setdefault(tag, child)
        if tag.startswith(CHAT_STATES):
            uses_chat_states = True
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
        from_program = _container(container.text or "", sender, stanza_id, thread, MARKER in parts, bool(text.strip()))
        if from_program is not _NOT_OURS:
            return from_program
    if MARKER in parts:
        return None
    form = parts.get(DATA_FORM)
    fields = _spade_fields(form) if form is not None else None
    if fields is not None:
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
    reply = parts.get(REPLY)
    asked = without_quote(text, message) if reply is not None else text
    if not asked.strip():
        return None
    payload: dict[str, Any] = {"query": asked}
    metadata: dict[str, Any] = {}
    if linked := attachments(message):
        payload["attachments"] = linked
    if reply is not None and reply.get("id"):
        metadata["reply_to"] = reply.get("id")
    if thread is not None and (parent := parent_thread(message)) is not None:
        metadata[PARENT_THREAD] = parent
    corrected = parts.get(REPLACE)
    origin = parts.get(ORIGIN_ID)
    language = (body.get(LANGUAGE) if body is not None else None) or message.get(LANGUAGE)
    if language is not None and is_language_tag(language):
        metadata["language_tag"] = language
    origin_id = origin.get("id", "") if origin is not None else ""
    if (delay := parts.get(DELAY)) is not None and delay.get("stamp"):
        metadata["delayed_since"] = delay.get("stamp")
    return Incoming(
        "person",
        sender,
        stanza_id,
        thread,
        payload,
        f"{thread}\n{text}",
        kind,
        metadata,
        wants_receipt=RECEIPT_REQUEST in parts,
        uses_chat_states=uses_chat_states,
        wants_marker=MARKABLE in parts,
        replaces=corrected.get("id") if corrected is not None else None,
        origin_id=origin_id if origin_id != stanza_id and 0 < len(origin_id) <= LONGEST_ID else None,
        uses_replies=reply is not None,
    )


def parent_thread(message: Element) -> str | None:
    """The thread of which that of a message is a branch (XEP-0201)."""
    thread = message.find(THREAD)
    parent = thread.get("parent") if thread is not None else None
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


_NOT_OURS = Malformed("", "", None, "a container of another application")


def _container(text: str, sender: str, stanza_id: str, thread: str | None, marked: bool, has_body: bool) -> Decoded:
    """What a JSON container (XEP-0335) says. Of other applications' containers only the body beside them counts."""
    try:
        event = from_json(text)
    except ValueError:
        event = None
    kind = event.get("type") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(kind, str) or not kind.startswith(TYPE_PREFIX):
        if has_body or marked or (isinstance(event, dict) and kind is not None):
            return _NOT_OURS
        return Malformed(sender, stanza_id, thread, "the JSON container holds no CloudEvent of a request")
    data = event.get("data")
    if kind != REQUEST:
        request_id, event_id = event.get("requestid"), event.get("id")
        if not isinstance(request_id, str) or not isinstance(data, dict):
            return None
        return Reply(sender, request_id, kind.removeprefix(TYPE_PREFIX), str(event_id), data)
    if marked:
        return None
    hops = event.get("hops")
    return _request(data, text, sender, stanza_id, thread, hops if isinstance(hops, int) and 0 < hops < 2**31 else 0)


def _request(data: Any, text: str, sender: str, stanza_id: str, thread: str | None, hops: int) -> Incoming | Malformed:
    """Of the envelope only payload, capabilities, lineage and unreserved metadata are taken, as data."""

    def malformed(problem: str) -> Malformed:
        named = data.get("request_id") if isinstance(data, dict) else None
        is_id = isinstance(named, str) and len(named) <= LONGEST_ID
        return Malformed(sender, stanza_id, thread, problem, named if is_id else None)

    if not isinstance(data, dict) or not isinstance(data.get("payload"), dict):
        return malformed("data.payload is no object")
    metadata = data.get("metadata") or {}
    if not isinstance(metadata, dict):
        return malformed("data.metadata is no object")
    try:
        ids = [UUID(data[name]) if data.get(name) is not None else None for name in _LINEAGE]
        capabilities = data.get("capabilities")
        if capabilities is not None:
            capabilities = ClientCapabilities.model_validate(capabilities)
    except (ValueError, TypeError, AttributeError) as error:
        problem = "data.capabilities is wrong" if isinstance(error, ValidationError) else "an id in data is no UUID"
        return malformed(problem)
    request_id, root, parent = ids
    if parent is not None and root is None:
        return malformed("Broken Trace: Root ID missing while Parent ID is present")
    return Incoming(
        "program",
        sender,
        stanza_id,
        thread,
        data["payload"],
        f"{thread}\n{text}",
        "normal",
        {k: v for k, v in metadata.items() if k not in RESERVED},
        request_id,
        root,
        parent,
        capabilities,
        hops,
    )


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


def owner_of(incoming: Incoming) -> str:
    """Whose conversation it is: by default the bare JID of the sender (a full one changes with every reconnect)."""
    return incoming.owner or bare(incoming.sender)
