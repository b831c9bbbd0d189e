"""A login that only looks: whether an account works, and what its server can do."""

from __future__ import annotations

import secrets

from slixmpp.exceptions import XMPPError

from ..names import bare
from .connection import Connection
from .endpoint import Endpoint


async def probe(jid: str, password: str, endpoint: Endpoint) -> tuple[bool, set[str]]:
    """Logs in; whether the server has stream management (XEP-0198), and its features (XEP-0030, empty if it says none).

    Without presence and under a resource of its own: no mail comes, no agent is displaced. Raises ConnectError or LoginError.
    """
    connection = Connection(f"{bare(jid)}/check-{secrets.token_hex(4)}", password, endpoint, on_message=lambda stanza: None)
    try:
        await connection.open()
        has_management = bool(connection.client.sm.enabled_out)
        try:
            info = await connection.client.plugin["xep_0030"].get_info(jid=connection.client.boundjid.host, timeout=5)
        except XMPPError:
            return has_management, set()
        return has_management, set(info["disco_info"]["features"])
    finally:
        await connection.close()
