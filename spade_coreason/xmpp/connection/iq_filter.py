"""A filter for requests (IQ) that are refused before slixmpp sees them: from strangers, or left unanswered by slixmpp."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree.ElementTree import Element

from slixmpp import JID, InvalidJID

from ..codec import COMMANDS_NAMESPACE, STANZA_ERRORS_NAMESPACE, escape_attribute

IQ = "{jabber:client}iq"

# slixmpp's plugins accept these and never answer. For a roster from another address they build an error that cannot be sent.
_UNANSWERED = {
    "set": {"{http://jabber.org/protocol/disco#info}query", "{http://jabber.org/protocol/disco#items}query"},
    "get": {"{urn:xmpp:http:upload:0}request"},
}
_COMMAND = f"{{{COMMANDS_NAMESPACE}}}command"
_ROSTER_QUERY = "{jabber:iq:roster}query"
_ERROR = "{jabber:client}error"
_ROSTER_ITEM = "{jabber:iq:roster}item"


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
    is_anonymous_command = not sender and kind in ("get", "set") and _COMMAND in tags  # the own server runs none
    if is_forged or is_from_stranger or is_anonymous_command or tags & _UNANSWERED.get(kind, set()):
        return build_iq_error(iq)
    if kind in ("get", "set") and len(iq) != 1:  # each of slixmpp's handlers would answer (RFC 6120, 8.2.3)
        return build_iq_error(iq, "modify", "bad-request")
    return None


def repair_iq(iq: Element) -> None:
    """Remove what slixmpp and SPADE misread.

    - Contacts of a roster without a valid JID: SPADE's handler fails at the first of them.
    - The `<error/>` of a request: slixmpp would make an error of the request, and not answer it.
    """
    if iq.get("type") in ("get", "set"):
        for error in iq.findall(_ERROR):
            iq.remove(error)
    for query in iq.iterfind(_ROSTER_QUERY):
        for item in query.findall(_ROSTER_ITEM):
            if not _is_jid(item.get("jid", "")):
                query.remove(item)


def _is_jid(text: str) -> bool:
    try:
        return bool(JID(text).domain)
    except InvalidJID:
        return False


def build_iq_error(iq: Element, kind: str = "cancel", condition: str = "service-unavailable") -> str:
    """Build an error: by default that of a server for a user who is offline (RFC 6120, 8.3.3.19), without the payload."""
    sender = iq.get("from", "")
    to = f" to='{escape_attribute(sender)}'" if sender else ""  # without a sender it comes from the own server
    return (
        f"<iq type='error'{to} id='{escape_attribute(iq.get('id', ''))}'>"
        f"<error type='{kind}'><{condition} xmlns='{STANZA_ERRORS_NAMESPACE}'/></error></iq>"
    )
