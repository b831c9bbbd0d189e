"""A test login: it checks an account and reads the features of its server."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing
from typing import Any

from slixmpp.exceptions import XMPPError

from ...domain.jid import bare_jid
from ...exceptions import ConnectError
from .connection import Connection
from .dialer import Dialer
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


async def open_stream(domain: str, endpoint: ServerEndpoint) -> None:
    """Open a stream with the server of a domain, and leave at its first answer. Raise ConnectError or OSError without one.

    It waits for the server without end: limit the time.
    """
    dialer = Dialer(endpoint, domain)
    async with aclosing(dialer.dial()) as connections:
        async for dialed in connections:
            is_direct = dialed.target.is_direct_tls
            reader, writer = await asyncio.open_connection(
                sock=dialed.sock,
                ssl=endpoint.update_context() if is_direct else None,
                server_hostname=domain if is_direct else None,
            )
            try:
                streams = "xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams'"
                writer.write(f"<?xml version='1.0'?><stream:stream to='{domain}' version='1.0' {streams}>".encode())
                if await reader.read(1):
                    return
            finally:
                writer.transport.abort()
    raise ConnectError(domain, *dialer.describe())


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
