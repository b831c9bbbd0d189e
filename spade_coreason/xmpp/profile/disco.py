"""Service discovery: the agent's identity, features and short card (XEP-0030, 0092, 0115, 0128)."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from slixmpp.plugins.xep_0030 import DiscoInfo

from ..._version import __version__
from ...domain.jid import bare_jid, jid_domain
from ..codec import CHAT_STATES_NAMESPACE, FORM_NAMESPACE, JSON_NAMESPACE, ORIGIN_ID_NAMESPACE, RECEIPTS_NAMESPACE
from .adhoc import AdHocCommands
from .card import ProfileCard

CAPS = "http://jabber.org/protocol/caps"
CAPS_NODE = "urn:spade-coreason:caps:0"
DISCO_INFO = "http://jabber.org/protocol/disco#info"

# Features of our own code, which no plugin of slixmpp announces.
_OWN_FEATURES = {CAPS, CHAT_STATES_NAMESPACE, JSON_NAMESPACE, ORIGIN_ID_NAMESPACE, RECEIPTS_NAMESPACE, "vcard-temp"}
# Features that slixmpp's plugins announce for their users, but that belong to servers.
_EXCLUDED_FEATURES = {"urn:xmpp:http:upload:0"}


class Discovery:
    """The replies to disco#info. Requesters that `is_allowed` admits also get the short card."""

    def __init__(self, client: Any, agent_card: ProfileCard, is_allowed: Callable[[str], bool], adhoc: AdHocCommands) -> None:
        self._adhoc = adhoc
        self._client = client
        self.agent_card = agent_card
        """The card that is shown."""
        self._is_allowed = is_allowed
        client.register_plugin("xep_0092", {"name": "spade_coreason", "version": __version__, "os": ""})
        client.plugin["xep_0030"].set_node_handler("get_info", handler=self._answer_info)

    def build_caps(self) -> Element:
        """Build the element of a presence that stands for identity, features and card (XEP-0115)."""
        # slixmpp's plugin is not used, because it would query every contact for its features.
        verification = compute_verification(self.agent_card.name, self._announced_features(), self.agent_card.form_fields)
        return Element(f"{{{CAPS}}}c", {"hash": "sha-1", "node": CAPS_NODE, "ver": verification})

    def _announced_features(self) -> set[str]:
        static = self._client.plugin["xep_0030"].static.get_node(None)["info"]["features"]
        return (set(static) | _OWN_FEATURES | self._adhoc.features) - _EXCLUDED_FEATURES

    def _answer_info(self, jid: Any, node: str | None, requester: Any, data: Any) -> Any:
        if node and (command_info := self._adhoc.build_info(node, str(requester or ""))) is not None:
            return DiscoInfo(xml=command_info)
        if node and not node.startswith(f"{CAPS_NODE}#"):
            return self._client.plugin["xep_0030"].static.get_info(jid, node, requester, data)
        form = self.agent_card.form_fields if self._may_see_card(str(requester or "")) else None
        return DiscoInfo(xml=build_disco_info(self.agent_card.name, self._announced_features(), form))

    def _may_see_card(self, requester: str) -> bool:
        own = self._client.boundjid.bare
        # Our own server queries the features behind the caps of our presence.
        return not requester or bare_jid(requester) == own or requester == jid_domain(own) or self._is_allowed(requester)


def build_disco_info(name: str, features: Iterable[str], form: Mapping[str, list[str]] | None) -> Element:
    """Build the reply to disco#info, with the short card if `form` is given."""
    query = Element(f"{{{DISCO_INFO}}}query")
    SubElement(query, f"{{{DISCO_INFO}}}identity", {"category": "client", "type": "bot", "name": name})
    for feature in sorted(features):
        SubElement(query, f"{{{DISCO_INFO}}}feature", {"var": feature})
    if form is not None:
        query.append(build_data_form("result", form))
    return query


def build_data_form(kind: str, fields: Mapping[str, Iterable[str]]) -> Element:
    """Build a form with values (XEP-0004, 3.4; XEP-0068). The field FORM_TYPE is hidden."""
    form = Element(f"{{{FORM_NAMESPACE}}}x", {"type": kind})
    for name, values in fields.items():
        hidden = {"type": "hidden"} if name == "FORM_TYPE" else {}
        field = SubElement(form, f"{{{FORM_NAMESPACE}}}field", {"var": name, **hidden})
        for value in values:
            SubElement(field, f"{{{FORM_NAMESPACE}}}value").text = value
    return form


def compute_verification(name: str, features: Iterable[str], form: Mapping[str, list[str]]) -> str:
    """Compute the verification string of one client/bot identity with one form (XEP-0115, 5.1)."""
    parts = [f"client/bot//{name}", *sorted(features), *form["FORM_TYPE"]]
    for field in sorted(set(form) - {"FORM_TYPE"}):
        parts += [field, *sorted(form[field])]
    text = "".join(f"{part}<" for part in parts)
    return b64encode(hashlib.sha1(text.encode(), usedforsecurity=False).digest()).decode()
