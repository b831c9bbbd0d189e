"""Presence, messages and invitations of chat rooms (XEP-0045), and the requests among them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple
from xml.etree.ElementTree import Element, SubElement

from ...domain.channel_kinds import ROOM
from ...domain.duplicates import NO_EVIDENCE, Evidence
from ...domain.messages import (
    MAX_ID_CHARACTERS,
    PARENT_THREAD,
    InboundRequest,
    MessageHeaders,
    Reaction,
    Retraction,
    RoomOrigin,
)
from .addressing import Mention, read_mentions
from .attachments import LINK_ELEMENTS, LinkedFiles, read_linked_files
from .decode import parent_thread, read_bounce, read_message_reference, remove_fallback
from .evidence import Receiver, read_evidence, read_id
from .namespaces import (
    APPLY_TO,
    BODY,
    CONFERENCE,
    DELAY,
    FALLBACK,
    FORM_NAMESPACE,
    MUC_DESTROY,
    MUC_INVITE,
    MUC_ITEM,
    MUC_NAMESPACE,
    MUC_OWNER_NAMESPACE,
    MUC_PASSWORD,
    MUC_STATUS,
    MUC_USER,
    OCCUPANT_ID,
    PING_NAMESPACE,
    REACTIONS,
    REPLACE,
    REPLY,
    REPLY_MARKER,
    RETRACTIONS,
    THREAD,
)
from .xml import escape, escape_attribute

_REFERENCES = frozenset({REACTIONS, APPLY_TO, *RETRACTIONS})

STATUS_CONFIGURED = 104
STATUS_SELF = 110
STATUS_CREATED = 201
STATUS_BANNED = 301
STATUS_RENAMED = 303
STATUS_KICKED = 307
STATUS_AFFILIATION_LOST = 321
STATUS_MEMBERS_ONLY = 322
STATUS_SHUTDOWN = 332
STATUS_TECHNICAL_FAILURE = 333


class RoomPresence(NamedTuple):
    """The presence of one occupant of a room, or the error that answers a join."""

    nick: str
    kind: Literal["available", "unavailable", "error"]
    statuses: frozenset[int] = frozenset()
    jid: str | None = None
    """The occupant's real JID, in a room that shows it."""
    occupant_id: str | None = None
    """The id of XEP-0421 as received. Only a room that announces support keeps occupants from making it up."""
    new_nick: str | None = None
    is_destroyed: bool = False
    condition: str = ""
    """The condition of an error."""
    role: str = ""
    """`moderator`, `participant` or `visitor`; "" if the room does not say. In a moderated room a visitor has no voice."""


def read_presence(presence: Element) -> RoomPresence | None:
    """Read a presence of a room. None if it concerns no occupant (subscriptions)."""
    nick = presence.get("from", "").partition("/")[2]
    kind = presence.get("type", "available")
    if kind == "error":
        bounce = read_bounce(presence)
        return RoomPresence(nick, "error", condition=bounce.condition if bounce is not None else "undefined-condition")
    if (kind != "available" and kind != "unavailable") or not nick:
        return None
    statuses: set[int] = set()
    jid = new_nick = None
    role, is_destroyed = "", False
    user = presence.find(MUC_USER)
    if user is not None:
        statuses = _read_statuses(user)
        item = user.find(MUC_ITEM)
        if item is not None:
            jid, new_nick, role = item.get("jid") or None, item.get("nick"), item.get("role", "")
        is_destroyed = user.find(MUC_DESTROY) is not None
    id_element = presence.find(OCCUPANT_ID)
    occupant_id = id_element.get("id") or None if id_element is not None else None
    shown: Literal["available", "unavailable"] = "available" if kind == "available" else "unavailable"
    return RoomPresence(nick, shown, frozenset(statuses), jid, occupant_id, new_nick, is_destroyed, role=role)


def _read_statuses(user: Element) -> set[int]:
    codes = (entry.get("code", "") for entry in user.iterfind(MUC_STATUS))
    return {int(code) for code in codes if code.isdecimal() and len(code) == 3}


def is_configuration_change(message: Element) -> bool:
    """Return True for the message with which a room says that its configuration has changed."""
    user = message.find(MUC_USER)
    return user is not None and "/" not in message.get("from", "") and STATUS_CONFIGURED in _read_statuses(user)


def encode_join(room: str, nick: str, password: str | None) -> str:
    """Encode the request to join a room, without its history."""
    secret = f"<password>{escape(password)}</password>" if password is not None else ""
    join = f"<x xmlns='{MUC_NAMESPACE}'><history maxstanzas='0'/>{secret}</x>"
    return f"<presence to='{escape_attribute(f'{room}/{nick}')}'>{join}</presence>"


def encode_leave(room: str, nick: str) -> str:
    """Encode the presence that leaves a room."""
    return f"<presence to='{escape_attribute(f'{room}/{nick}')}' type='unavailable'/>"


def self_ping_query() -> Element:
    """Build the ping that an occupant sends to itself through the room, to check that it still is one (XEP-0410)."""
    return Element(f"{{{PING_NAMESPACE}}}ping")


def unlock_query() -> Element:
    """Build the query that accepts the server's default configuration of a new room.

    Until then the room is locked for everybody else.
    """
    query = Element(f"{{{MUC_OWNER_NAMESPACE}}}query")
    SubElement(query, f"{{{FORM_NAMESPACE}}}x", {"type": "submit"})
    return query


class RoomMessage(NamedTuple):
    """A text, or links to files, that an occupant sent to everybody in a room."""

    nick: str
    text: str
    """The text without the quote of the message that it replies to, and without marked links to its files.

    Those are for clients without replies and files. Only a message with files may have no text.
    """
    stanza_id: str
    room_id: str
    """The id that the room assigned (XEP-0359); "" if it assigns none."""
    thread: str | None
    is_by_agent: bool
    """True if it is a reply of an agent of ours."""
    delay_source: str | None
    """The JID that marked it as delayed (XEP-0203); "" if the mark has no JID, None for a new message."""
    reply_to_id: str
    """The id of the message that it replies to (XEP-0461)."""
    reply_to_author: str
    replaced_id: str = ""
    """The id of the message that it corrects (XEP-0308)."""
    parent_thread: str | None = None
    evidence: Evidence = NO_EVIDENCE
    files: LinkedFiles | None = None
    mentions: tuple[Mention, ...] = ()


class RoomReference(NamedTuple):
    """A retraction (XEP-0424) or reaction (XEP-0444) of an occupant. Its sender is their address in the room."""

    reference: Retraction | Reaction
    nick: str
    """Empty if the room itself sends it, for a moderator (XEP-0425)."""
    delay_source: str | None
    """The JID that marked it as delayed, like `RoomMessage.delay_source`."""


class Invitation(NamedTuple):
    """An invitation of the agent to a room, sent by a person (XEP-0249) or through the room (XEP-0045)."""

    room: str
    sender: str
    """The sender of the invitation: the person, or the room."""
    password: str | None


def read_room_message(message: Element) -> RoomMessage | None:
    """Read a message of type groupchat. None unless it is a text or a link by an occupant.

    This excludes subjects, notices of the room, and messages about another one. Those have a text too, for clients
    that do not support them.
    """
    tags = {child.tag for child in message}
    if not tags.isdisjoint(_REFERENCES):
        return None
    nick = message.get("from", "").partition("/")[2]
    body = message.findtext(BODY) or ""
    stanza_id, thread_element = message.get("id", ""), message.find(THREAD)
    thread = (thread_element.text or None) if thread_element is not None else None
    evidence = read_evidence(message, Receiver(_room_of(message)))
    files = read_linked_files(message) if not tags.isdisjoint(LINK_ELEMENTS) else None
    if not nick or max(len(stanza_id), len(thread or "")) > MAX_ID_CHARACTERS:
        return None
    if files is None and not body.strip():
        return None
    reply = message.find(REPLY)
    text = remove_fallback(body, message, files) if FALLBACK in tags else body
    return RoomMessage(
        nick,
        text,
        stanza_id,
        evidence.server_id,
        thread,
        message.find(REPLY_MARKER) is not None,
        _delay_source(message),
        reply.get("id", "") if reply is not None else "",
        reply.get("to", "") if reply is not None else "",
        read_id(message.find(REPLACE)),
        parent_thread(thread_element) if thread_element is not None and thread is not None else None,
        evidence,
        files,
        read_mentions(message, body, text),
    )


def read_room_reference(message: Element) -> RoomReference | None:
    """Read the retraction or reaction in a message of type groupchat. None without one."""
    sender = message.get("from", "")
    parts: dict[str, Element] = {}
    for child in message:
        parts.setdefault(child.tag, child)
    reference = read_message_reference(parts, sender)
    return RoomReference(reference, sender.partition("/")[2], _delay_source(message)) if reference is not None else None


def _delay_source(message: Element) -> str | None:
    delay = message.find(DELAY)
    return delay.get("from", "") if delay is not None else None


def _room_of(message: Element) -> str:
    return message.get("from", "").partition("/")[0]


def room_request(
    room: str,
    message: RoomMessage,
    question: str,
    jid: str | None,
    *,
    reply_to_id: str = "",
    replaces: tuple[str, ...] = (),
    author: str = "",
) -> InboundRequest:
    """Build the request of a message to the agent. Its conversation belongs to the room.

    `jid` is the real JID of the occupant, if it is known. `reply_to_id` is our own id of the message that it replies to.
    `replaces` and `author` are those of the request.
    """
    metadata: dict[str, Any] = {}
    content = f"{message.nick}\n{message.thread}\n{message.text}"
    if message.files is not None:
        content += f"\n{message.files.text}"
    if replied_id := reply_to_id or message.reply_to_id:
        metadata["reply_to"] = replied_id
    if message.parent_thread is not None:
        metadata[PARENT_THREAD] = message.parent_thread
    return InboundRequest(
        ROOM,
        f"{room}/{message.nick}",
        message.stanza_id,
        message.thread,
        {"query": question} if message.files is None else message.files.payload(question),
        content,
        _room_metadata(room, message.nick, jid, metadata),
        MessageHeaders("groupchat", replaces, message.room_id or None),
        message.evidence,
        room=RoomOrigin(room, message.nick, author),
        owner=room,
    )


def private_request(incoming: InboundRequest, owner: str, address: str, jid: str | None) -> InboundRequest:
    """Complete the request of an occupant's private message. `address` is the address for the reply."""
    room, _, nick = incoming.sender.partition("/")
    return replace(
        incoming,
        content=f"{address}\n{incoming.content}",
        metadata=_room_metadata(room, nick, jid, incoming.metadata),
        owner=owner,
        room=RoomOrigin(address, nick),
    )


def _room_metadata(room: str, nick: str, jid: str | None, metadata: Any) -> dict[str, Any]:
    return {**metadata, "room": room, "nickname": nick, **({"occupant": jid} if jid is not None else {})}


def read_invitation(message: Element) -> Invitation | None:
    """Read an invitation to a room. None if the message is none."""
    user, direct = message.find(MUC_USER), message.find(CONFERENCE)
    if user is None and direct is None:
        return None
    sender = message.get("from", "")
    if message.get("type") in ("error", "groupchat") or not sender:
        return None
    if user is not None and user.find(MUC_INVITE) is not None:
        return Invitation(sender.partition("/")[0].lower(), sender, user.findtext(MUC_PASSWORD))
    if direct is not None and direct.get("jid"):
        return Invitation(direct.get("jid", "").partition("/")[0].lower(), sender, direct.get("password"))
    return None
