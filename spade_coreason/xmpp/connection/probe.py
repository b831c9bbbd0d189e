"""A login that only looks: whether an account works, and what its server can do."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from slixmpp.exceptions import XMPPError

from ...domain.jid import bare_jid
from .connection import Connection
from .endpoint import ServerEndpoint

_RESPONSE_TIMEOUT_S = 5


async def probe(jid: str, password: str, endpoint: ServerEndpoint) -> tuple[bool, set[str]]:
    """Logs in; whether the server has stream management (XEP-0198), and what it announces (XEP-0030, empty if it says nothing):
    its own features, those that it has for the account (there the archive is, XEP-0313), and those of its services (rooms).

    Without presence and under a resource of its own: no mail comes, no agent is displaced. Raises ConnectError or LoginError.
    """
    connection = Connection(f"{bare_jid(jid)}/check-{secrets.token_hex(4)}", password, endpoint, on_message=lambda stanza: None)
    try:
        await connection.open()
        server, disco = connection.client.boundjid.host, connection.client.plugin["xep_0030"]
        announcing = [server, bare_jid(jid), *await _find_services(disco, server)]
        found = await asyncio.gather(*(_fetch_features(disco, one) for one in announcing))
        return bool(connection.client.stream_management.enabled_out), set[str]().union(*found)
    finally:
        await connection.close()


async def _find_services(disco: Any, server: str) -> list[str]:
    try:
        found = await disco.get_items(jid=server, timeout=_RESPONSE_TIMEOUT_S)
    except XMPPError:
        return []
    return [str(jid) for jid, node, _ in found["disco_items"]["items"] if not node]


async def _fetch_features(disco: Any, jid: str) -> set[str]:
    try:
        return set((await disco.get_info(jid=jid, timeout=_RESPONSE_TIMEOUT_S))["disco_info"]["features"])
    except XMPPError:
        return set()
