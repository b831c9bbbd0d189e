"""The embedded server's own process: pyjabber, listening on one loopback port and nowhere else.

    python -P embedded_main.py DIRECTORY DOMAIN PORT

DIRECTORY holds DOMAIN_cert.pem and DOMAIN_key.pem. Accounts are made in-band and live in memory, as everything else does.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

if __name__ == "__main__":
    # pyjabber makes a directory for uploads when it is imported, and leaves it behind.
    tempfile.tempdir = sys.argv[1]
    for left_behind in Path(sys.argv[1]).glob("pyjabber_xep0363_*"):
        left_behind.rmdir()

import attrs
from loguru import logger
from pyjabber import AppConfig
from pyjabber.server import Server
from pyjabber.server_parameters import Parameters
from pyjabber.stream.handlers.StanzaHandler import StanzaHandler

Feed = Callable[[StanzaHandler, Element], Awaitable[None]]

UPLOAD = "urn:xmpp:http:upload:0"
IDLE_TIMEOUT_S = 10 * 365 * 24 * 3600
"""pyjabber's own 60 s would end every quiet client's connection; 0 makes it fail at the end of each connection."""


async def serve(directory: str, domain: str, port: int) -> None:
    server = Server(
        Parameters(
            host=domain,
            client_port=port,
            server_port=0,
            connection_timeout=IDLE_TIMEOUT_S,
            database_in_memory=True,
            cert_path=directory,
        )
    )
    server._public_ip = None  # else it listens on the machine's address in the local network too
    server._http_server = None  # else on port 9090, with an administration page
    AppConfig.app_config = attrs.evolve(
        AppConfig.app_config,
        # Passwords are hashed by C code that releases the interpreter's lock: threads do, and no processes are forked.
        process_pool_exe=ThreadPoolExecutor(2),
        # Uploads went with the HTTP port. Left out only now: without them from the start every session dies at its beginning.
        plugins=[plugin for plugin in AppConfig.app_config.plugins if plugin != UPLOAD],
        items={jid: item for jid, item in AppConfig.app_config.items.items() if item["var"] != UPLOAD},
    )
    _avoid_starttls_race(AppConfig.app_config.ssl_context)
    StanzaHandler.feed = _bounce_undeliverable(StanzaHandler.feed, domain)
    running = asyncio.create_task(server.start())
    ready = asyncio.create_task(server.ready.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    if server._server_listener is not None:
        server._server_listener.close()  # it talks with no other server
    for number in (signal.SIGTERM, signal.SIGINT):  # pyjabber's handlers wait for clients; there is nothing to save
        signal.signal(number, signal.SIG_DFL)
    await running


def _avoid_starttls_race(context: ssl.SSLContext) -> None:
    """Without this about one connection in fifty hangs, and every one of a client that is quick.

    pyjabber prepares for the new stream a moment after the handshake. In TLS 1.3, and where a session is resumed, the client
    speaks last in it and may send the stream's header in the same breath; in a full TLS 1.2 handshake the server does.
    """
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET


def _bounce_undeliverable(feed: Feed, domain: str) -> Feed:
    """`feed`, by which an error comes back where pyjabber would end the session, or itself.

    It ends at a message to another domain, which it cannot reach, and takes a resource with a slash for one; a session ends
    at a chat room, a server's own address, and much else.
    """

    async def fed(handler: StanzaHandler, stanza: Element) -> None:
        address, _, resource = stanza.get("to", "").partition("/")
        condition = "service-unavailable"
        if address.rpartition("@")[2] not in ("", domain):
            condition = "remote-server-not-found"
        elif "/" not in resource:
            try:
                return await feed(handler, stanza)
            except Exception as error:  # noqa: BLE001 - whatever it is, the session stays
                logger.warning(f"{stanza.tag} to {address} from {handler._jid}: {error!r}")
        if stanza.get("type") not in ("error", "result"):
            handler._transport.write(_build_bounce(stanza, str(handler._jid), condition))

    return fed


def _build_bounce(stanza: Element, sender: str, condition: str) -> bytes:
    """The error that a stanza is answered with (RFC 6120, 8.3)."""
    attributes = {"type": "error", "to": sender}
    attributes |= {name: stanza.attrib[key] for name, key in (("from", "to"), ("id", "id")) if key in stanza.attrib}
    returned = Element(stanza.tag, attributes)
    error = SubElement(returned, "{jabber:client}error", {"type": "cancel"})
    SubElement(error, f"{{urn:ietf:params:xml:ns:xmpp-stanzas}}{condition}")
    return tostring(returned)


def main(arguments: list[str]) -> None:
    directory, domain, port = arguments
    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{level} {message}")
    asyncio.run(serve(directory, domain, int(port)))


if __name__ == "__main__":
    main(sys.argv[1:])
