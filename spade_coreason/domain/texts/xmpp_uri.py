"""URIs of XMPP addresses (RFC 5122), with an action for the client that opens them (XEP-0147)."""

from __future__ import annotations

from urllib.parse import quote

from ..jid import bare_jid


def format_contact_uri(jid: str, name: str | None = None) -> str:
    """Return the URI that adds a contact, for example `xmpp:weather@example.org?roster;name=Weather`.

    `roster` is the action that clients on phones answer with their dialog for a new contact. `message` opens a chat without
    one, and then the two do not see each other's presence.
    """
    local, _, domain = bare_jid(jid).partition("@")
    # `;` separates the keys of the query, and is allowed in a local part: only unreserved characters stay as they are.
    address = f"{quote(local, safe='')}@{quote(domain, safe='[]:')}"
    return f"xmpp:{address}?roster" + (f";name={quote(name, safe='')}" if name else "")
