"""The requests (IQ) that are refused before slixmpp sees them: those of strangers, and what it would leave unanswered."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree.ElementTree import Element

from ...codec import STANZA_ERRORS_NAMESPACE, escape_attribute
from ...domain.jid import bare_jid

# slixmpp's plugins take these and never answer; for the roster of somebody else they make an error that cannot be sent.
_UNANSWERED = {
    "set": {"{http://jabber.org/protocol/disco#info}query", "{http://jabber.org/protocol/disco#items}query"},
    "get": {"{urn:xmpp:http:upload:0}request"},
}
_ROSTER_QUERY = "{jabber:iq:roster}query"


def refusal(iq: Element, own_jid: str, is_visible_to: Callable[[str], bool]) -> str | None:
    """The error for a request that nobody else here would answer, as RFC 6120, 8.2.3 demands; None for all others.

    `own_jid` is the agent's bare JID: its roster comes from its own account only (RFC 6121, 2.1.6). Those for whom it is not
    there get what their server says of somebody who is away: any other answer would show it to them (RFC 6120, 13.10.2).
    """
    kind, sender = iq.get("type", ""), iq.get("from", "")
    tags = {child.tag for child in iq}
    is_forged = _ROSTER_QUERY in tags and kind == "set" and sender not in ("", own_jid) and bare_jid(sender) != own_jid
    is_strange = kind in ("get", "set") and not is_visible_to(sender)
    if not (is_forged or is_strange or tags & _UNANSWERED.get(kind, set())):
        return None
    return (
        f"<iq type='error' to='{escape_attribute(sender)}' id='{escape_attribute(iq.get('id', ''))}'>"
        f"<error type='cancel'><service-unavailable xmlns='{STANZA_ERRORS_NAMESPACE}'/></error></iq>"
    )
