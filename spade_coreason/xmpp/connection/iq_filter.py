"""A filter for requests (IQ) that are refused before slixmpp sees them: from strangers, or left unanswered by slixmpp."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree.ElementTree import Element

from ..codec import STANZA_ERRORS_NAMESPACE, escape_attribute

IQ = "{jabber:client}iq"

# slixmpp's plugins accept these and never answer. For a roster from another address they build an error that cannot be sent.
_UNANSWERED = {
    "set": {"{http://jabber.org/protocol/disco#info}query", "{http://jabber.org/protocol/disco#items}query"},
    "get": {"{urn:xmpp:http:upload:0}request"},
}
_ROSTER_QUERY = "{jabber:iq:roster}query"


def refusal(iq: Element, own_jid: str, is_visible_to: Callable[[str], bool]) -> str | None:
    """Return the error for a request that nothing else here would answer (required by RFC 6120, 8.2.3); None for all others.

    `own_jid` is the agent's bare JID: roster pushes come from it, and from no device of the account (RFC 6121, 2.1.6).
    Senders to whom the agent is not visible get the error that their server sends for a user who is offline. Any other reply
    would reveal the agent's presence to them (RFC 6120, 13.10.2).
    """
    kind, sender = iq.get("type", ""), iq.get("from", "")
    tags = {child.tag for child in iq}
    is_forged = _ROSTER_QUERY in tags and kind == "set" and sender not in ("", own_jid)
    is_from_stranger = kind in ("get", "set") and not is_visible_to(sender)
    if not (is_forged or is_from_stranger or tags & _UNANSWERED.get(kind, set())):
        return None
    return build_iq_error(iq)


def build_iq_error(iq: Element) -> str:
    """Build the error that a server sends for a user who is offline (RFC 6120, 8.3.3.19). It does not repeat the payload."""
    return (
        f"<iq type='error' to='{escape_attribute(iq.get('from', ''))}' id='{escape_attribute(iq.get('id', ''))}'>"
        f"<error type='cancel'><service-unavailable xmlns='{STANZA_ERRORS_NAMESPACE}'/></error></iq>"
    )
