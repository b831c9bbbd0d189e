"""The profile that an agent stores on its server: vCards, nickname, avatar, card (XEP-0054, 0292, 0172, 0084, 0163)."""

from __future__ import annotations

import logging
from base64 import b64encode
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement

from slixmpp.exceptions import IqError, XMPPError

from ..codec import JSON_NAMESPACE
from .card import CARD_NAMESPACE, ProfileCard
from .disco import build_data_form

log = logging.getLogger(__name__)

VCARD = "vcard-temp"
VCARD4 = "urn:ietf:params:xml:ns:vcard-4.0"
# slixmpp's plugin uses the namespace as the name of the node. XEP-0292 and the clients use this name.
VCARD4_NODE = "urn:xmpp:vcard4"
NICK = "http://jabber.org/protocol/nick"
AVATAR_DATA = "urn:xmpp:avatar:data"
AVATAR_METADATA = "urn:xmpp:avatar:metadata"
PUBSUB = "http://jabber.org/protocol/pubsub"

_TIMEOUT_S = 10.0
_ENVELOPE_BYTES = 1000
"""The size of the stanza around a card."""
_CURRENT_ITEM = "current"
# Only contacts who may see the presence may see the card: these are the ones whom the access policy admits.
_CONTACTS_ONLY_OPTIONS = {
    "FORM_TYPE": [f"{PUBSUB}#publish-options"],
    "pubsub#access_model": ["presence"],
    "pubsub#persist_items": ["1"],
}


class _TooLongError(Exception):
    """A stanza is too long. The server would end the stream, and end it again after each login."""


@dataclass(frozen=True, slots=True)
class _OwnAccount:
    """Requests to our own account on the server."""

    client: Any
    stanza_bytes: int

    async def request(self, kind: str, payload: Element) -> Element | None:
        """Send a request and return its result. None if the object of a "get" does not exist."""
        iq = self.client.make_iq_get() if kind == "get" else self.client.make_iq_set()
        iq.xml.append(payload)
        if _estimate_bytes(payload) > self.stanza_bytes and len(str(iq).encode()) > self.stanza_bytes:  # `str` takes long
            raise _TooLongError
        try:
            result: Element = (await iq.send(timeout=_TIMEOUT_S)).xml
        except IqError as error:
            if kind == "get" and error.condition in ("item-not-found", "not-found"):
                return None
            raise
        return result


def _estimate_bytes(payload: Element) -> int:
    """Return a size that a stanza with a payload certainly does not exceed: a character has six bytes at most, if escaped."""
    parts = payload.iter()
    return _ENVELOPE_BYTES + 6 * sum(len(part.tag) + len(part.text or "") + len(str(part.attrib)) + 20 for part in parts)


async def publish(client: Any, agent_card: ProfileCard, stanza_bytes: int) -> bool:
    """Publish everything that the server does not have yet. Return True if it has the vCard.

    One log line names the parts that were not published. No stanza is longer than `stanza_bytes`.
    """
    account = _OwnAccount(client, stanza_bytes)
    avatar = agent_card.avatar
    data = Element(f"{{{AVATAR_DATA}}}data")
    data.text = b64encode(avatar.data).decode()
    metadata = Element(f"{{{AVATAR_METADATA}}}metadata")
    info = {"bytes": str(len(avatar.data)), "id": avatar.hash, "type": avatar.media_type}
    SubElement(metadata, f"{{{AVATAR_METADATA}}}info", info)
    nick = Element(f"{{{NICK}}}nick")
    nick.text = agent_card.name
    card = Element(f"{{{JSON_NAMESPACE}}}json")
    card.text = agent_card.encode_json(stanza_bytes - _ENVELOPE_BYTES)
    refused: list[str] = []
    has_vcard = await _try_publish(_publish_vcard(account, _build_vcard(agent_card)), "vCard", refused)
    await _try_publish(_publish_item(account, VCARD4_NODE, _CURRENT_ITEM, _build_vcard4(client, agent_card)), "vCard4", refused)
    await _try_publish(_publish_item(account, NICK, _CURRENT_ITEM, nick), "nickname", refused)
    # The data comes first: clients fetch it as soon as they receive the metadata.
    if await _try_publish(_publish_item(account, AVATAR_DATA, avatar.hash, data), "picture", refused):
        await _try_publish(_publish_item(account, AVATAR_METADATA, avatar.hash, metadata), "picture", refused)
    await _try_publish(_publish_item(account, CARD_NAMESPACE, _CURRENT_ITEM, card, _CONTACTS_ONLY_OPTIONS), "card", refused)
    if refused:
        log.info("%s: the server did not accept these parts of the profile: %s", client.boundjid.bare, ", ".join(refused))
    return has_vcard


async def _try_publish(work: Any, what: str, problems: list[str]) -> bool:
    try:
        await work
    except XMPPError as error:
        problems.append(f"{what} ({error.condition})")
        return False
    except _TooLongError:
        problems.append(f"{what} (longer than limits.stanza_bytes)")
        return False
    return True


def _build_vcard(agent_card: ProfileCard) -> Element:
    vcard = Element(f"{{{VCARD}}}vCard")
    for name, value in (("FN", agent_card.name), ("NICKNAME", agent_card.name), ("DESC", agent_card.description)):
        if value:
            SubElement(vcard, f"{{{VCARD}}}{name}").text = value
    photo = SubElement(vcard, f"{{{VCARD}}}PHOTO")
    SubElement(photo, f"{{{VCARD}}}TYPE").text = agent_card.avatar.media_type
    SubElement(photo, f"{{{VCARD}}}BINVAL").text = b64encode(agent_card.avatar.data).decode()
    return vcard


def _build_vcard4(client: Any, agent_card: ProfileCard) -> Element:
    vcard = Element(f"{{{VCARD4}}}vcard")
    properties = (
        ("kind", "text", "application"),
        ("fn", "text", agent_card.name),
        ("nickname", "text", agent_card.name),
        ("note", "text", agent_card.description),
        ("impp", "uri", f"xmpp:{quote(client.boundjid.bare, safe='@')}"),
    )
    for name, kind, value in properties:
        if value:
            SubElement(SubElement(vcard, f"{{{VCARD4}}}{name}"), f"{{{VCARD4}}}{kind}").text = value
    return vcard


async def _publish_vcard(account: _OwnAccount, vcard: Element) -> None:
    result = await account.request("get", Element(f"{{{VCARD}}}vCard"))
    published = result.find(vcard.tag) if result is not None else None
    for note in published.iter(f"{{{VCARD}}}NOTE") if published is not None else ():
        note.tag = f"{{{VCARD}}}DESC"  # Prosody stores a vCard4, and returns DESC as NOTE
    if _content_of(vcard) <= _content_of(published):
        return
    await account.request("set", vcard)


async def _publish_item(
    account: _OwnAccount, node: str, item_id: str, payload: Element, options: dict[str, list[str]] | None = None
) -> None:
    """Publish an item if it has changed. Each publication notifies every contact, so the same item is not published again."""
    query = Element(f"{{{PUBSUB}}}pubsub")
    items = SubElement(query, f"{{{PUBSUB}}}items", {"node": node})
    SubElement(items, f"{{{PUBSUB}}}item", {"id": item_id})
    result = await account.request("get", query)
    published = result.find(f".//{payload.tag}") if result is not None else None
    if published is not None and _content_of(payload) == _content_of(published):
        return
    pubsub = Element(f"{{{PUBSUB}}}pubsub")
    publish_element = SubElement(pubsub, f"{{{PUBSUB}}}publish", {"node": node})
    SubElement(publish_element, f"{{{PUBSUB}}}item", {"id": item_id}).append(payload)
    if options is not None:
        SubElement(pubsub, f"{{{PUBSUB}}}publish-options").append(build_data_form("submit", options))
    await account.request("set", pubsub)


def _content_of(element: Element | None) -> set[tuple[str, str, tuple[tuple[str, str], ...]]]:
    """Return the tag, text and attributes of each part of an element that has any, regardless of nesting."""
    if element is None:
        return set()
    parts = ((part.tag, "".join((part.text or "").split()), tuple(sorted(part.items()))) for part in element.iter())
    return {part for part in parts if part[1] or part[2]}
