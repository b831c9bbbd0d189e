"""A test login: it checks an account and reads the features of its server."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from slixmpp.exceptions import XMPPError

from ...domain.jid import bare_jid
from .connection import Connection
from .endpoint import ServerEndpoint
from .login import Login
from .security import Security
from .session_handler import SessionHandler

_RESPONSE_TIMEOUT_S = 5


async def probe(jid: str, password: str, endpoint: ServerEndpoint) -> tuple[Security, bool, set[str]]:
    """Log in, and return the protection of the session, True if it has stream management (XEP-0198), and the features.

    The features (XEP-0030) are those of the server, of the account (the archive is there, XEP-0313) and of the server's
    services (rooms). The set is empty if the server does not answer. The login sends no presence and has a resource of its
    own, so that it receives no messages and displaces no agent. Raise ConnectError or LoginError.
    """
    connection = Connection(Login(f"{bare_jid(jid)}/check-{secrets.token_hex(4)}", password), endpoint, SessionHandler())
    try:
        await connection.open()
        server, disco = connection.client.boundjid.host, connection.client.plugin["xep_0030"]
        entities = [server, bare_jid(jid), *await _find_services(disco, server)]
        features = await asyncio.gather(*(_fetch_features(disco, entity) for entity in entities))
        assert connection.security is not None
        return connection.security, bool(connection.client.stream_management.enabled_out), set[str]().union(*features)
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
