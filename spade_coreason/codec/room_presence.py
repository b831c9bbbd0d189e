"""The presences with which a chat room says who is in it (XEP-0045), and the words in which an agent comes and goes."""

from __future__ import annotations

from typing import Literal, NamedTuple
from xml.etree.ElementTree import Element, SubElement

from .namespaces import (
    ERROR,
    FORM_NAMESPACE,
    MUC_DESTROY,
    MUC_ITEM,
    MUC_NAMESPACE,
    MUC_OWNER_NAMESPACE,
    MUC_STATUS,
    MUC_USER,
    OCCUPANT_ID,
    PING_NAMESPACE,
    STANZA_ERRORS,
)
from .xml import attribute, escape

SELF, CREATED, BANNED, RENAMED, KICKED, NO_AFFILIATION, NO_MEMBER, SHUTDOWN, TECHNICAL = (
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


class Seen(NamedTuple):
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


def read_presence(presence: Element) -> Seen | None:
    """Reads a presence of a room; None for what concerns no occupant (subscriptions)."""
    nick = presence.get("from", "").partition("/")[2]
    kind = presence.get("type", "available")
    if kind == "error":
        error = presence.find(ERROR)
        tags = [child.tag for child in error] if error is not None else []
        names = [tag.rpartition("}")[2] for tag in tags if tag.startswith(f"{{{STANZA_ERRORS}}}")]
        return Seen(nick, "error", condition=next((name for name in names if name != "text"), "undefined-condition"))
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
    return Seen(nick, shown, frozenset(statuses), jid, occupant_id, new_nick, is_destroyed)


def joining(room: str, nick: str, password: str | None) -> str:
    """The wish to come in, without the history."""
    secret = f"<password>{escape(password)}</password>" if password is not None else ""
    wish = f"<x xmlns='{MUC_NAMESPACE}'><history maxstanzas='0'/>{secret}</x>"
    return f"<presence to='{attribute(f'{room}/{nick}')}'>{wish}</presence>"


def leaving(room: str, nick: str) -> str:
    """The goodbye."""
    return f"<presence to='{attribute(f'{room}/{nick}')}' type='unavailable'/>"


def self_ping() -> Element:
    """What an occupant asks itself by way of the room, to hear whether it still is one (XEP-0410)."""
    return Element(f"{{{PING_NAMESPACE}}}ping")


def unlocking() -> Element:
    """What takes a room that was just made as the server makes them: until then it is locked for everybody else."""
    query = Element(f"{{{MUC_OWNER_NAMESPACE}}}query")
    SubElement(query, f"{{{FORM_NAMESPACE}}}x", {"type": "submit"})
    return query
