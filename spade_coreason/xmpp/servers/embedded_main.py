"""The embedded server's own process: pyjabber, listening on one loopback port and nowhere else.

    python -P embedded_main.py DIRECTORY DOMAIN PORT

DIRECTORY holds DOMAIN_cert.pem and DOMAIN_key.pem. Accounts are registered in-band. All data is in memory only.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import ModuleType
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

if __name__ == "__main__":
    gc.disable()  # imports leave no garbage
    # pyjabber's HTTP server is not used, the certificate exists, and a database in memory has no migrations. They take half of
    # the start, and leave a directory.
    _unused, _functions = ModuleType("unused"), ("HttpServer", "UploadHttpServer", "get_aiohttp_webapp", "api_adminpage_app")
    vars(_unused).update(dict.fromkeys((*_functions, "check_hostname_cert_exists", "command", "Config"), lambda *_: _unused))
    for _name in ("http_server", "webpage.adminPage", "plugins.xep_0363.upload_server", "network.CertGenerator"):
        sys.modules[f"pyjabber.{_name}"] = _unused
    for _name in ("alembic", "alembic.config"):
        sys.modules[_name] = _unused

import attrs
from loguru import logger
from pyjabber import AppConfig
from pyjabber.features.SASL.SASL import SASL
from pyjabber.network.ConnectionManager import ConnectionManager
from pyjabber.server import Server
from pyjabber.server_parameters import Parameters
from pyjabber.stream.handlers.StanzaHandler import StanzaHandler

Feed = Callable[[Any, Element], Awaitable[Any]]
Hash = Callable[[Any, str, bytes, int], Awaitable[str]]

MESSAGE = "{jabber:client}message"
PRESENCE = "{jabber:client}presence"
UPLOAD = "urn:xmpp:http:upload:0"
IDLE_TIMEOUT_S = 10 * 365 * 24 * 3600
"""pyjabber's default of 60 s would end the connection of every quiet client. With 0 it fails at the end of each connection."""
MAX_OFFLINE_BYTES = 64 * 1024 * 1024
"""The size of all messages that wait for accounts without a session. More are returned to their senders."""
HASH_ITERATIONS = 4096
"""Rounds of the hash of a password, which is in memory only. pyjabber's 100,000 delay each login."""


async def serve(directory: str, domain: str, port: int) -> None:
    """Run pyjabber until a signal ends the process."""
    server = Server(
        Parameters(
            host=domain,
            client_port=port,
            server_port=0,
            connection_timeout=IDLE_TIMEOUT_S,
            database_in_memory=True,
            message_persistence=False,  # it loses what is sent to an account that has announced its end; see `OfflineStore`
            cert_path=directory,
        )
    )
    server._public_ip = None  # otherwise it also listens on the machine's address in the local network
    server._http_server = None  # otherwise it also listens on port 9090, with an administration page
    AppConfig.app_config = attrs.evolve(
        AppConfig.app_config,
        # C code hashes the passwords and releases the interpreter's lock: threads are enough, and no process is forked.
        process_pool_exe=ThreadPoolExecutor(2),
        # Uploads need the HTTP port. They are removed only here: a server built without them ends every session at its start.
        plugins=[plugin for plugin in AppConfig.app_config.plugins if plugin != UPLOAD],
        items={jid: item for jid, item in AppConfig.app_config.items.items() if item["var"] != UPLOAD},
    )
    _avoid_starttls_race(AppConfig.app_config.ssl_context)
    SASL._hash_scram_async = _hash_quickly(SASL._hash_scram_async)
    StanzaHandler.feed = _finish(_handle_undeliverable(StanzaHandler.feed, domain))
    running = asyncio.create_task(server.start())
    ready = asyncio.create_task(server.ready.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    if server._server_listener is not None:
        server._server_listener.close()  # it connects to no other server
    for number in (signal.SIGTERM, signal.SIGINT):  # pyjabber's handlers wait for clients, but it has nothing to store
        signal.signal(number, signal.SIG_DFL)
    await running


def _avoid_starttls_race(context: ssl.SSLContext) -> None:
    """Allow full TLS 1.2 handshakes only. Otherwise about one connection in fifty hangs, and every one of a fast client.

    pyjabber prepares for the new stream a moment after the handshake. In TLS 1.3, and when a session is resumed, the client
    sends the last message of the handshake. It may send the stream's header at the same time. In a full TLS 1.2 handshake
    the server sends the last message.
    """
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET


def _hash_quickly(hash_password: Hash) -> Hash:
    """Wrap the hash of passwords so that it takes a millisecond. The number of rounds is stored with each hash."""

    async def hash_(sasl: SASL, password: str, salt: bytes, iterations: int) -> str:
        return await hash_password(sasl, password, salt, min(iterations, HASH_ITERATIONS))

    return hash_


class OfflineStore:
    """Messages to accounts without a session, in memory. A session that announces its presence receives them in order.

    So a question to an agent whose process is being replaced is answered by the next process.
    """

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._by_account: dict[str, deque[bytes]] = {}
        self._bytes = 0

    def is_for_absent(self, stanza: Element) -> bool:
        """Return True for a message that waits (RFC 6121, 8.5.2.2): to a bare JID of this server without a session."""
        account = stanza.get("to", "")
        if stanza.tag != MESSAGE or stanza.get("type", "normal") not in ("chat", "normal"):
            return False
        if "/" in account or account.count("@") != 1 or not account.endswith(f"@{self._domain}"):
            return False
        if account in self._by_account:
            return True  # its session is just coming online, and receives the earlier messages first
        clients = ConnectionManager()._peerList.values()
        return not any(client.online and client.jid.bare() == account for client in clients)

    def add(self, stanza: Element, sender: str) -> bool:
        """Store a message with the time of its arrival (XEP-0203). Return False if there is no room for it."""
        stanza.attrib.setdefault("from", sender)
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        SubElement(stanza, "{urn:xmpp:delay}delay", {"from": self._domain, "stamp": stamp})
        data = tostring(stanza)
        if self._bytes + len(data) > MAX_OFFLINE_BYTES:
            return False
        self._bytes += len(data)
        self._by_account.setdefault(stanza.attrib["to"], deque()).append(data)
        return True

    def take(self, account: str) -> list[bytes]:
        """Remove and return the messages of an account."""
        messages = list(self._by_account.pop(account, ()))
        self._bytes -= sum(map(len, messages))
        return messages


def _handle_undeliverable(feed: Feed, domain: str) -> Feed:
    """Wrap `feed` so that messages to absent accounts wait, and that errors are replies where pyjabber would end.

    The server ends at a message to another domain, which it cannot reach. It mistakes a resource with a slash for another
    domain. A session ends at a stanza to a chat room, to a server's own address, and in many other cases.
    """
    offline = OfflineStore(domain)

    async def feed_or_bounce(handler: StanzaHandler, stanza: Element) -> None:
        address, _, resource = stanza.get("to", "").partition("/")
        condition = "service-unavailable"
        if address.rpartition("@")[2] not in ("", domain):
            condition = "remote-server-not-found"
        elif offline.is_for_absent(stanza):
            if offline.add(stanza, str(handler._jid)):
                return
        elif "/" not in resource:
            try:
                await feed(handler, stanza)
                return
            except Exception as error:  # noqa: BLE001 - no error may end the session
                logger.warning(f"{stanza.tag} to {address} from {handler._jid}: {error!r}")
            finally:
                if stanza.tag == PRESENCE and {"to", "type"}.isdisjoint(stanza.attrib):
                    for message in offline.take(handler._jid.bare()):
                        handler._transport.write(message)
        if stanza.get("type") not in ("error", "result"):
            handler._transport.write(_build_bounce(stanza, str(handler._jid), condition))

    return feed_or_bounce


def _finish(feed: Feed) -> Feed:
    """Wrap `feed` so that it runs to its end, also when its session ends.

    pyjabber cancels it then. If that interrupts a query, SQLAlchemy drops the connection, and with it the database in memory:
    all accounts.
    """
    tasks: set[asyncio.Future[Any]] = set()

    async def feed_to_end(handler: Any, stanza: Element) -> Any:
        task = asyncio.ensure_future(feed(handler, stanza))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return await asyncio.shield(task)

    return feed_to_end


def _build_bounce(stanza: Element, sender: str, condition: str) -> bytes:
    """Build the error reply to a stanza (RFC 6120, 8.3)."""
    attributes = {"type": "error", "to": sender}
    attributes |= {name: stanza.attrib[key] for name, key in (("from", "to"), ("id", "id")) if key in stanza.attrib}
    bounce = Element(stanza.tag, attributes)
    error = SubElement(bounce, "{jabber:client}error", {"type": "cancel"})
    SubElement(error, f"{{urn:ietf:params:xml:ns:xmpp-stanzas}}{condition}")
    return tostring(bounce)


def main(arguments: list[str]) -> None:
    """Run the server. `arguments` are the directory, the domain and the port."""
    directory, domain, port = arguments
    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{level} {message}")
    gc.freeze()
    gc.enable()
    asyncio.run(serve(directory, domain, int(port)))


if __name__ == "__main__":
    main(sys.argv[1:])
