"""What is said in a chat room (XEP-0045): who says it, to whom, and what of it is a request."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple
from xml.etree.ElementTree import Element, SubElement

from ..domain.messages import MAX_ID_CHARACTERS, PARENT_THREAD, InboundRequest, Reaction, Retraction
from ..domain.value import replace
from .decode import parent_thread, read_message_reference, remove_quote
from .namespaces import (
    ANSWER_MARKER,
    APPLY_TO,
    BODY,
    CONFERENCE,
    DELAY,
    ERROR,
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
    RETRACTIONS,
    STANZA_ERRORS_NAMESPACE,
    STANZA_ID,
    THREAD,
)
from .xml import escape, escape_attribute

(
    STATUS_SELF,
    STATUS_CREATED,
    STATUS_BANNED,
    STATUS_RENAMED,
    STATUS_KICKED,
    STATUS_AFFILIATION_LOST,
    STATUS_MEMBERS_ONLY,
    STATUS_SHUTDOWN,
    STATUS_TECHNICAL_FAILURE,
) = (
    110,
    201,
    301,
    303,
    307,
    321,
    322,
    332,
    333,
)


class RoomPresence(NamedTuple):
    """What a room says about one of its occupants, or about a wish to join."""

    nick: str
    kind: Literal["available", "unavailable", "error"]
    statuses: frozenset[int] = frozenset()
    jid: str | None = None
    """Who it is, in a room that shows it."""
    occupant_id: str | None = None
    """Whatever stands there as XEP-0421: only a room that says that it has them keeps others from making them up."""
    new_nick: str | None = None
    is_destroyed: bool = False
    condition: str = ""
    """Of an error."""


def read_presence(presence: Element) -> RoomPresence | None:
    """Reads a presence of a room; None for what concerns no occupant (subscriptions)."""
    nick = presence.get("from", "").partition("/")[2]
    kind = presence.get("type", "available")
    if kind == "error":
        error = presence.find(ERROR)
        tags = [child.tag for child in error] if error is not None else []
        names = [tag.rpartition("}")[2] for tag in tags if tag.startswith(f"{{{STANZA_ERRORS_NAMESPACE}}}")]
        return RoomPresence(nick, "error", condition=next((name for name in names if name != "text"), "undefined-condition"))
    if (kind != "available" and kind != "unavailable") or not nick:
        return None
    statuses: set[int] = set()
    jid = new_nick = None
    is_destroyed = False
    user = presence.find(MUC_USER)
    if user is not None:
        codes = (entry.get("code", "") for entry in user.iterfind(MUC_STATUS))
        statuses = {int(code) for code in codes if code.isdecimal() and len(code) == 3}
        item = user.find(MUC_ITEM)
        if item is not None:
            jid, new_nick = item.get("jid") or None, item.get("nick")
        is_destroyed = user.find(MUC_DESTROY) is not None
    ident = presence.find(OCCUPANT_ID)
    occupant_id = ident.get("id") or None if ident is not None else None
    shown: Literal["available", "unavailable"] = "available" if kind == "available" else "unavailable"
    return RoomPresence(nick, shown, frozenset(statuses), jid, occupant_id, new_nick, is_destroyed)


def encode_join(room: str, nick: str, password: str | None) -> str:
    """The wish to come in, without the history."""
    secret = f"<password>{escape(password)}</password>" if password is not None else ""
    wish = f"<x xmlns='{MUC_NAMESPACE}'><history maxstanzas='0'/>{secret}</x>"
    return f"<presence to='{escape_attribute(f'{room}/{nick}')}'>{wish}</presence>"


def encode_leave(room: str, nick: str) -> str:
    """The goodbye."""
    return f"<presence to='{escape_attribute(f'{room}/{nick}')}' type='unavailable'/>"


def self_ping() -> Element:
    """What an occupant asks itself by way of the room, to hear whether it still is one (XEP-0410)."""
    return Element(f"{{{PING_NAMESPACE}}}ping")


def unlock_query() -> Element:
    """What takes a room that was just made as the server makes them: until then it is locked for everybody else."""
    query = Element(f"{{{MUC_OWNER_NAMESPACE}}}query")
    SubElement(query, f"{{{FORM_NAMESPACE}}}x", {"type": "submit"})
    return query


class RoomMessage(NamedTuple):
    """A text that somebody said to everybody in a room."""

    nick: str
    text: str
    """Without the quote of what it replies to, which is there for clients that know no replies."""
    stanza_id: str
    room_id: str
    """The id that the room gave it (XEP-0359), where it gives any."""
    thread: str | None
    is_by_agent: bool
    """Whether it is an answer of a host of ours."""
    delay_source: str | None
    """Who says that it is an old one (XEP-0203): a JID, "" for nobody in particular; None where it is new."""
    reply_to_id: str
    """The id of the message that it replies to (XEP-0461)."""
    reply_to_author: str
    replaces: str = ""
    """The id of the message that it corrects (XEP-0308)."""
    parent_thread: str | None = None


class RoomReference(NamedTuple):
    """What somebody in a room says about a message there (XEP-0424, XEP-0444); the sender is their address there."""

    reference: Retraction | Reaction
    nick: str
    """Empty where it is the room that says so, for a moderator (XEP-0425)."""
    delay_source: str | None
    """As of an utterance."""


class Invitation(NamedTuple):
    """Somebody wishes to have the agent in a room: by themselves (XEP-0249), or by way of the room (XEP-0045)."""

    room: str
    sender: str
    """Who says so: the person, or the room."""
    password: str | None


def read_room_message(message: Element) -> RoomMessage | None:
    """Reads a message of type groupchat; None where nobody says anything in it: a subject, a notice of the room, or
    something about another message, with a text beside it for clients that do not know that.
    """
    if any(message.find(tag) is not None for tag in (REACTIONS, APPLY_TO, *RETRACTIONS)):
        return None
    nick = message.get("from", "").partition("/")[2]
    body = message.findtext(BODY) or ""
    stanza_id, thread_element = message.get("id", ""), message.find(THREAD)
    thread = (thread_element.text or None) if thread_element is not None else None
    room_id = next((entry.get("id", "") for entry in message.iterfind(STANZA_ID) if entry.get("by") == _room_of(message)), "")
    if not nick or not body.strip() or max(len(stanza_id), len(room_id), len(thread or "")) > MAX_ID_CHARACTERS:
        return None
    reply, corrected = message.find(REPLY), message.find(REPLACE)
    return RoomMessage(
        nick,
        remove_quote(body, message) if reply is not None else body,
        stanza_id,
        room_id,
        thread,
        message.find(ANSWER_MARKER) is not None,
        _delay_source(message),
        reply.get("id", "") if reply is not None else "",
        reply.get("to", "") if reply is not None else "",
        corrected.get("id", "") if corrected is not None else "",
        parent_thread(thread_element) if thread_element is not None and thread is not None else None,
    )


def read_room_reference(message: Element) -> RoomReference | None:
    """Reads what a message of type groupchat says about another; None where it is one of its own."""
    sender = message.get("from", "")
    parts: dict[str, Element] = {}
    for child in message:
        parts.setdefault(child.tag, child)
    said = read_message_reference(parts, sender)
    return RoomReference(said, sender.partition("/")[2], _delay_source(message)) if said is not None else None


def _delay_source(message: Element) -> str | None:
    delay = message.find(DELAY)
    return delay.get("from", "") if delay is not None else None


def _room_of(message: Element) -> str:
    return message.get("from", "").partition("/")[0]


def extract_question(nick: str, text: str, others: Iterable[str] = ()) -> str | None:
    """What `text` asks of `nick` ("nick: …", "nick, …", "@nick …", in capitals or not); None where it addresses nobody or
    somebody else.

    Of two who are called almost the same, `others` in the room, the one is meant whose name stands there.
    """
    found = _match_address(nick, text, re.IGNORECASE)
    if found is None:
        return None
    is_exact = _match_address(nick, text) is not None
    for other in others:
        if other != nick and _match_address(other, text) is not None and (not is_exact or len(other) > len(nick)):
            return None
    return text[found.end() :].strip()


def _match_address(nick: str, text: str, flags: int = 0) -> re.Match[str] | None:
    name = re.escape(nick)
    return re.match(rf"\s*(?:@?{name}\s*[:,]|@{name}(?=\s|$))", text, flags)


def room_request(
    room: str, message: RoomMessage, question: str, jid: str | None, *, reply_to_id: str = "", replaces: str | None = None
) -> InboundRequest:
    """The request that an utterance is. The conversation is the room's; `jid` is who said it, where that is known.

    `reply_to_id` is our own id of what it replies to, `replaces` the name of the question of the same occupant that it corrects.
    """
    about: dict[str, Any] = {}
    if replied := reply_to_id or message.reply_to_id:
        about["reply_to"] = replied
    if message.parent_thread is not None:
        about[PARENT_THREAD] = message.parent_thread
    return InboundRequest(
        "room",
        f"{room}/{message.nick}",
        message.stanza_id,
        message.thread,
        {"query": question},
        f"{message.nick}\n{message.room_id}\n{message.thread}\n{message.text}",
        "groupchat",
        _room_metadata(room, message.nick, jid, about),
        replaces=replaces,
        origin_id=message.room_id or None,
        owner=room,
        address=room,
        nickname=message.nick,
    )


def private_request(incoming: InboundRequest, owner: str, address: str, jid: str | None) -> InboundRequest:
    """The request that a private message of an occupant is. `address` is where the answer goes."""
    room, _, nick = incoming.sender.partition("/")
    return replace(
        incoming,
        content=f"{address}\n{incoming.content}",
        metadata=_room_metadata(room, nick, jid, incoming.metadata),
        owner=owner,
        address=address,
        nickname=nick,
    )


def _room_metadata(room: str, nick: str, jid: str | None, metadata: Any) -> dict[str, Any]:
    return {**metadata, "room": room, "nickname": nick, **({"occupant": jid} if jid is not None else {})}


def read_invitation(message: Element) -> Invitation | None:
    """Reads an invitation into a room; None where the message is none."""
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
