"""What a server, or an attacker in its place, may offer, and what follows: the table of the page on security.

A cell is "online", or the reason that the error gives.
"""

from __future__ import annotations

import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tests.support.servers.scripted import BIND, HEADER, REGISTER, SASL, STARTTLS, TLS, Peer, mechanisms

Serve = Callable[[Peer, ssl.SSLContext], Coroutine[Any, Any, None]]

ONLINE = "online"
NO_TLS = "it offers no TLS"
UNTRUSTED = "its certificate is not trusted"
COLUMNS = ("by default", "`tls.verify: false`", "`tls.required: false`, to a loopback address")
MESSAGE = "<message from='operator@localhost' to='a@localhost' type='chat'><body>/pause</body></message>"


@dataclass(frozen=True)
class Offer:
    """A row of the table: what is offered, the certificate behind it, and a cell for each of `COLUMNS`."""

    name: str
    serve: Serve
    cells: tuple[str, str, str]
    certificate: str = "good"


def same(cell: str) -> tuple[str, str, str]:
    """Return the same cell for every column."""
    return cell, cell, cell


def in_clear(features: str) -> Serve:
    """Offer features without TLS, and let anybody in."""

    async def serve(peer: Peer, context: ssl.SSLContext) -> None:
        await peer.offer(features)
        await peer.serve()

    return serve


def over_tls(features: str, then: str = "") -> Serve:
    """Offer features over TLS, and let anybody in. `then` follows them at once."""

    async def serve(peer: Peer, context: ssl.SSLContext) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(context)
        await peer.offer(features, then)
        await peer.serve()

    return serve


def early(text: str) -> Serve:
    """Send something before TLS, in place of the features."""

    async def serve(peer: Peer, context: ssl.SSLContext) -> None:
        await peer.expect("<stream:stream[^>]*>")
        peer.send(HEADER + text)
        await peer.drain()

    return serve


def redirect_to(host: str) -> str:
    """Return the stream error that sends a client to another host."""
    condition = f"<see-other-host xmlns='urn:ietf:params:xml:ns:xmpp-streams'>{host}</see-other-host>"
    return f"<stream:error>{condition}</stream:error></stream:stream>"


async def _bind_in_clear(peer: Peer, context: ssl.SSLContext) -> None:
    await peer.offer(BIND)
    await peer.drain()


async def _bind_over_tls(peer: Peer, context: ssl.SSLContext) -> None:
    await peer.offer(STARTTLS)
    await peer.start_tls(context)
    await _bind_in_clear(peer, context)


async def _refuse_tls(peer: Peer, context: ssl.SSLContext) -> None:
    await peer.offer(STARTTLS)
    await peer.expect("<starttls[^>]*>")
    peer.send(f"<failure xmlns='{TLS}'/></stream:stream>")
    await peer.drain()


async def _hang_up(peer: Peer, context: ssl.SSLContext) -> None:
    await peer.offer(STARTTLS)
    await peer.expect("<starttls[^>]*>")
    peer.send(f"<proceed xmlns='{TLS}'/>")


async def _old_tls(peer: Peer, context: ssl.SSLContext) -> None:
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.minimum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    await peer.offer(STARTTLS)
    await peer.start_tls(context)
    await peer.drain()


async def _inject(peer: Peer, context: ssl.SSLContext) -> None:
    await peer.offer(STARTTLS)
    await peer.start_tls(context, then=MESSAGE)
    await peer.offer(mechanisms("PLAIN"))
    await peer.serve()


async def _features_twice(peer: Peer, context: ssl.SSLContext) -> None:
    await peer.offer(STARTTLS)
    peer.send(f"<stream:features>{mechanisms('PLAIN', 'ANONYMOUS')}</stream:features>")
    await peer.drain()


async def _answer_tls(peer: Peer, context: ssl.SSLContext) -> None:
    """Send `<success/>` where TLS is expected to begin."""
    await peer.offer(STARTTLS)
    await peer.expect("<starttls[^>]*>")
    peer.send(f"<success xmlns='{SASL}'/>")
    await peer.drain()


def _challenge(text: bytes) -> Serve:
    async def serve(peer: Peer, context: ssl.SSLContext) -> None:
        await peer.offer(STARTTLS)
        await peer.start_tls(context)
        await peer.offer(mechanisms("SCRAM-SHA-256"))
        await peer.expect("<auth[^>]*>")
        peer.send(f"<challenge xmlns='{SASL}'>{b64encode(text).decode()}</challenge>")
        await peer.drain()

    return serve


async def _confirm_with_a_challenge(peer: Peer, context: ssl.SSLContext) -> None:
    await peer.offer(STARTTLS)
    await peer.start_tls(context)
    await peer.offer(mechanisms("SCRAM-SHA-256"))
    nonce = b64decode((await peer.expect("<auth[^>]*>([^<]*)<"))[1]).decode().rpartition("r=")[2]
    challenge = f"r={nonce}x,s=c2FsdHNhbHQ=,i=4096".encode()
    peer.send(f"<success xmlns='{SASL}'>{b64encode(challenge).decode()}</success>")
    await peer.serve()


PLAIN, SCRAM = mechanisms("PLAIN"), mechanisms("SCRAM-SHA-1", "SCRAM-SHA-256")
_SALT = b"s=c2FsdHNhbHQ="

OFFERS = [
    Offer(
        "no TLS, and `ANONYMOUS`", in_clear(mechanisms("ANONYMOUS")), (NO_TLS, NO_TLS, "it offers no usable login (ANONYMOUS)")
    ),
    Offer("no TLS, and no login: a resource at once", _bind_in_clear, (NO_TLS, NO_TLS, "it offers no login")),
    Offer("no TLS, and `PLAIN`", in_clear(PLAIN), (NO_TLS, NO_TLS, ONLINE)),
    Offer("no TLS, and `SCRAM`", in_clear(SCRAM), (NO_TLS, NO_TLS, "without a proof that it knows the password")),
    Offer("no TLS, and a registration", in_clear(REGISTER + mechanisms("ANONYMOUS")), (NO_TLS, NO_TLS, "no usable login")),
    Offer("no TLS, and a message of an operator", early(MESSAGE), same("it sends <message> before TLS")),
    Offer("no TLS, and a presence", early("<presence from='b@localhost'/>"), same("it sends <presence> before TLS")),
    Offer("no TLS, and an IQ", early("<iq type='set' id='1'/>"), same("it sends <iq> before TLS")),
    Offer("no TLS, and a finished login", early(f"<success xmlns='{SASL}'/>"), same("it sends <success> before TLS")),
    Offer(
        "no TLS, and a session resumed", early("<resumed xmlns='urn:xmpp:sm:3' h='0'/>"), same("it sends <resumed> before TLS")
    ),
    Offer("TLS, and features a second time without it", _features_twice, same("it sends <features> before TLS")),
    Offer("TLS, and a finished login without it", _answer_tls, same("it sends <success> before TLS")),
    Offer("TLS, and a message of an operator without it", _inject, same("it sends <message> before TLS")),
    Offer("TLS, which it then refuses", _refuse_tls, same("the server offers TLS and then refuses it")),
    Offer("TLS, and the end of the connection", _hang_up, same("closed the connection during the TLS handshake")),
    Offer("TLS older than 1.2", _old_tls, same("closed the connection during the TLS handshake")),
    Offer(
        "a redirect without TLS",
        early(redirect_to("elsewhere.example")),
        same("redirects to elsewhere.example:5222 without verified TLS"),
    ),
    Offer(
        "TLS, with a certificate of another name", over_tls(PLAIN), ("Hostname mismatch", ONLINE, "Hostname mismatch"), "other"
    ),
    Offer(
        "TLS, with an expired certificate",
        over_tls(PLAIN),
        ("certificate has expired", ONLINE, "certificate has expired"),
        "expired",
    ),
    Offer("TLS, with a certificate of no known authority", over_tls(PLAIN), (UNTRUSTED, ONLINE, UNTRUSTED), "unknown"),
    Offer("TLS, and `ANONYMOUS`", over_tls(mechanisms("ANONYMOUS")), same("it offers no usable login (ANONYMOUS)")),
    Offer("TLS, and no login: a resource at once", _bind_over_tls, same("it offers no login")),
    Offer("TLS, and a message before the login", over_tls(PLAIN, MESSAGE), same("it sends <message> before the login")),
    Offer("TLS, and a login without a proof (`SCRAM`)", over_tls(SCRAM), same("without a proof that it knows the password")),
    Offer(
        "TLS, and a challenge in place of the proof (`SCRAM`)",
        _confirm_with_a_challenge,
        same("without a proof that it knows the password"),
    ),
    Offer(
        "TLS, and a login that never ends (`SCRAM`)",
        _challenge(b"r=n," + _SALT + b",i=999999999"),
        same("unusual number of SCRAM iterations"),
    ),
    Offer(
        "TLS, and a login that takes longer than half a second (`SCRAM`)",
        _challenge(b"r=n," + _SALT + b",i=1000000"),
        same("unusual number of SCRAM iterations"),
    ),
    Offer(
        "TLS, and a login that is soon guessed (`SCRAM`)",
        _challenge(b"r=n," + _SALT + b",i=1"),
        same("unusual number of SCRAM iterations"),
    ),
    Offer("TLS, and a malformed login", _challenge(b"hello"), same("its login sends a malformed challenge")),
    Offer("TLS, and `PLAIN`", over_tls(PLAIN), same(ONLINE)),
]


def build_table() -> str:
    """Return the table as Markdown."""
    rows = [f"| {offer.name} | {' | '.join(offer.cells)} |".replace("<", "&lt;").replace(">", "&gt;") for offer in OFFERS]
    return "\n".join([f"| offered | {' | '.join(COLUMNS)} |", "|---|---|---|---|", *rows])
