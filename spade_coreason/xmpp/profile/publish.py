"""What an agent leaves with its server for its contacts: vCards, nickname, picture, card (XEP-0054, 0292, 0172, 0084, 0163)."""

from __future__ import annotations

import logging
from base64 import b64encode
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement

from slixmpp.exceptions import IqError, XMPPError

from ...codec import JSON_NAMESPACE
from .card import CARD_NAMESPACE, AgentCard
from .disco import build_data_form

log = logging.getLogger(__name__)

VCARD = "vcard-temp"
VCARD4 = "urn:ietf:params:xml:ns:vcard-4.0"
# slixmpp's plugin takes the namespace for the name of the node; XEP-0292 and the clients have this one.
VCARD4_NODE = "urn:xmpp:vcard4"
NICK = "http://jabber.org/protocol/nick"
AVATAR_DATA = "urn:xmpp:avatar:data"
AVATAR_METADATA = "urn:xmpp:avatar:metadata"
PUBSUB = "http://jabber.org/protocol/pubsub"

_TIMEOUT_S = 10.0
_ENVELOPE_BYTES = 1000
"""The stanza around a card."""
_CURRENT_ITEM = "current"
# The card is for those who may see the presence, which are those whom the access policy admits.
_CONTACTS_ONLY_OPTIONS = {
    "FORM_TYPE": [f"{PUBSUB}#publish-options"],
    "pubsub#access_model": ["presence"],
    "pubsub#persist_items": ["1"],
}


class _TooLongError(Exception):
    """More than a stanza takes: the server would end the stream, and after the next login the next one."""


@dataclass(frozen=True, slots=True)
class _Account:
    """Our own account at the server."""

    client: Any
    stanza_bytes: int

    async def request(self, kind: str, payload: Element) -> Element | None:
        """None where something that was to be got is not there."""
        iq = self.client.make_iq_get() if kind == "get" else self.client.make_iq_set()
        iq.xml.append(payload)
        if len(str(iq).encode()) > self.stanza_bytes:
            raise _TooLongError
        try:
            result: Element = (await iq.send(timeout=_TIMEOUT_S)).xml
        except IqError as error:
            if kind == "get" and error.condition in ("item-not-found", "not-found"):
                return None
            raise
        return result


async def publish(client: Any, agent_card: AgentCard, stanza_bytes: int) -> bool:
    """Publishes what is not there yet; whether the server has the vCard. What is not published is said in one line.

    No stanza has more than `stanza_bytes`.
    """
    account = _Account(client, stanza_bytes)
    picture = agent_card.avatar
    data = Element(f"{{{AVATAR_DATA}}}data")
    data.text = b64encode(picture.data).decode()
    metadata = Element(f"{{{AVATAR_METADATA}}}metadata")
    facts = {"bytes": str(len(picture.data)), "id": picture.hash, "type": picture.media_type}
    SubElement(metadata, f"{{{AVATAR_METADATA}}}info", facts)
    nick = Element(f"{{{NICK}}}nick")
    nick.text = agent_card.name
    card = Element(f"{{{JSON_NAMESPACE}}}json")
    card.text = agent_card.encode_json(stanza_bytes - _ENVELOPE_BYTES)
    refused: list[str] = []
    has_vcard = await _try_publish(_publish_vcard(account, _build_vcard(agent_card)), "vCard", refused)
    await _try_publish(_publish_item(account, VCARD4_NODE, _CURRENT_ITEM, _build_vcard4(client, agent_card)), "vCard4", refused)
    await _try_publish(_publish_item(account, NICK, _CURRENT_ITEM, nick), "nickname", refused)
    # Whoever hears of the metadata fetches the data.
    if await _try_publish(_publish_item(account, AVATAR_DATA, picture.hash, data), "picture", refused):
        await _try_publish(_publish_item(account, AVATAR_METADATA, picture.hash, metadata), "picture", refused)
    await _try_publish(_publish_item(account, CARD_NAMESPACE, _CURRENT_ITEM, card, _CONTACTS_ONLY_OPTIONS), "card", refused)
    if refused:
        log.info("%s: not published: %s", client.boundjid.bare, ", ".join(refused))
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


def _build_vcard(agent_card: AgentCard) -> Element:
    vcard = Element(f"{{{VCARD}}}vCard")
    for name, value in (("FN", agent_card.name), ("NICKNAME", agent_card.name), ("DESC", agent_card.description)):
        if value:
            SubElement(vcard, f"{{{VCARD}}}{name}").text = value
    photo = SubElement(vcard, f"{{{VCARD}}}PHOTO")
    SubElement(photo, f"{{{VCARD}}}TYPE").text = agent_card.avatar.media_type
    SubElement(photo, f"{{{VCARD}}}BINVAL").text = b64encode(agent_card.avatar.data).decode()
    return vcard


def _build_vcard4(client: Any, agent_card: AgentCard) -> Element:
    vcard = Element(f"{{{VCARD4}}}vcard")
    facts = (
        ("kind", "text", "application"),
        ("fn", "text", agent_card.name),
        ("nickname", "text", agent_card.name),
        ("note", "text", agent_card.description),
        ("impp", "uri", f"xmpp:{quote(client.boundjid.bare, safe='@')}"),
    )
    for name, kind, value in facts:
        if value:
            SubElement(SubElement(vcard, f"{{{VCARD4}}}{name}"), f"{{{VCARD4}}}{kind}").text = value
    return vcard


async def _publish_vcard(account: _Account, vcard: Element) -> None:
    found = await account.request("get", Element(f"{{{VCARD}}}vCard"))
    there = found.find(vcard.tag) if found is not None else None
    for note in there.iter(f"{{{VCARD}}}NOTE") if there is not None else ():
        note.tag = f"{{{VCARD}}}DESC"  # Prosody keeps a vCard4, and gives this back for that
    if _content_of(vcard) <= _content_of(there):
        return
    await account.request("set", vcard)


async def _publish_item(
    account: _Account, node: str, item_id: str, payload: Element, options: dict[str, list[str]] | None = None
) -> None:
    """Every publishing tells every contact: the same thing is not published again after each start."""
    asked = Element(f"{{{PUBSUB}}}pubsub")
    items = SubElement(asked, f"{{{PUBSUB}}}items", {"node": node})
    SubElement(items, f"{{{PUBSUB}}}item", {"id": item_id})
    found = await account.request("get", asked)
    there = found.find(f".//{payload.tag}") if found is not None else None
    if there is not None and _content_of(payload) == _content_of(there):
        return
    pubsub = Element(f"{{{PUBSUB}}}pubsub")
    publishing = SubElement(pubsub, f"{{{PUBSUB}}}publish", {"node": node})
    SubElement(publishing, f"{{{PUBSUB}}}item", {"id": item_id}).append(payload)
    if options is not None:
        SubElement(pubsub, f"{{{PUBSUB}}}publish-options").append(build_data_form("submit", options))
    await account.request("set", pubsub)


def _content_of(element: Element | None) -> set[tuple[str, str, tuple[tuple[str, str], ...]]]:
    """What an element says, each part with its name and attributes; however it is wrapped."""
    if element is None:
        return set()
    parts = ((part.tag, "".join((part.text or "").split()), tuple(sorted(part.items()))) for part in element.iter())
    return {part for part in parts if part[1] or part[2]}
