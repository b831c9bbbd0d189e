"""The decisions before a stream is safe, as pure functions: TLS first, then a login that fits, then everything else.

RFC 6120 5.3.1 and 13.8 for TLS, 13.9.4 and RFC 5802 for mechanisms. docs/explanation/security-model.md has the whole table.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from .errors import Problem, quote

STREAM = "http://etherx.jabber.org/streams"
TLS = "urn:ietf:params:xml:ns:xmpp-tls"
SASL = "urn:ietf:params:xml:ns:xmpp-sasl"

FEATURES = f"{{{STREAM}}}features"
STREAM_ERROR = f"{{{STREAM}}}error"
STARTTLS = f"{{{TLS}}}starttls"
PROCEED = f"{{{TLS}}}proceed"
TLS_FAILURE = f"{{{TLS}}}failure"
CHALLENGE = f"{{{SASL}}}challenge"
SUCCESS = f"{{{SASL}}}success"
LOGIN_FAILURE = f"{{{SASL}}}failure"
_IQ = "{jabber:client}iq"

SCRAM = ("SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1")
BOUND_SCRAM = tuple(f"{name}-PLUS" for name in SCRAM)
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 200_000
"""The iterations of SCRAM, which the event loop waits for. RFC 5802 has the least; the most take half a second at most."""


class Phase(Enum):
    """The phase of a stream. Each has the elements that a server may send in it (`EXPECTED`)."""

    CLEAR = auto()
    """Nothing was negotiated. All that comes may be an attacker's."""
    TLS_REQUESTED = auto()
    HANDSHAKE = auto()
    SECURE = auto()
    """TLS is up and verified as configured, or plain text to this machine is permitted. The login may begin."""
    LOGGED_IN = auto()
    ENDED = auto()
    """The attempt has failed; the connection is about to be cut."""


EXPECTED: dict[Phase, frozenset[str] | None] = {
    Phase.CLEAR: frozenset({FEATURES, STREAM_ERROR}),
    Phase.TLS_REQUESTED: frozenset({PROCEED, TLS_FAILURE, STREAM_ERROR}),
    Phase.HANDSHAKE: frozenset(),
    Phase.SECURE: frozenset({FEATURES, CHALLENGE, SUCCESS, LOGIN_FAILURE, STREAM_ERROR, _IQ}),
    Phase.LOGGED_IN: None,
    Phase.ENDED: frozenset(),
}
"""The elements that may come in each phase. None means all. An IQ before the login may only answer our registration."""


class NextStep(Enum):
    """The next step after the features of a stream."""

    START_TLS = auto()
    LOG_IN = auto()
    CONTINUE = auto()


NO_TLS = Problem(
    "it offers no TLS, so no login was tried",
    "enable TLS on the server (server.tls.required: false permits plain text to a server on this machine)",
    is_transient=False,
)
NO_TLS_ELSEWHERE = Problem(
    "it offers no TLS, and plain text is permitted to this machine's loopback addresses only",
    "enable TLS on the server",
    is_transient=False,
)
MALFORMED_LOGIN = Problem("its login sends a malformed challenge", "check the server")
UNPROVEN_LOGIN = Problem(
    "it accepts the login without a proof that it knows the password (SCRAM)",
    "check that nothing but the server answers there",
    is_transient=False,
)
NO_LOGIN = Problem("it offers no login", "check the server's configuration of SASL", is_transient=False)


def choose_step(phase: Phase, features: Collection[str], *, requires_tls: bool, is_loopback: bool) -> NextStep | Problem:
    """Return the step that features (their tags) allow in a phase, or the problem that ends the attempt."""
    if phase is Phase.LOGGED_IN:
        return NextStep.CONTINUE
    if phase is Phase.CLEAR:
        if STARTTLS in features:
            return NextStep.START_TLS
        if requires_tls:
            return NO_TLS
        if not is_loopback:
            return NO_TLS_ELSEWHERE
    return NextStep.LOG_IN if f"{{{SASL}}}mechanisms" in features else NO_LOGIN


def choose_mechanisms(
    offered: Collection[str], *, is_verified: bool, is_loopback: bool, can_bind: bool
) -> frozenset[str] | Problem:
    """Return the SASL mechanisms that may be used of those offered, or the problem if there are none.

    An account has a password, so ANONYMOUS is none of them. Channel binding (RFC 5802) needs data of TLS, which Python has
    for TLS 1.2 only. PLAIN shows the password, so the server must be verified, or be on this machine.
    """
    allowed = {*SCRAM, *(BOUND_SCRAM if can_bind else ()), *(("PLAIN",) if is_verified or is_loopback else ())}
    if usable := allowed.intersection(offered):
        return frozenset(usable)
    if "PLAIN" in offered:
        return Problem(
            "it offers PLAIN only, which would show the password to a server that is not verified",
            "set server.tls.ca_file (--ca-file), or let the server offer SCRAM",
            is_transient=False,
        )
    names = quote(", ".join(sorted(offered)[:8])) or "nothing"
    return Problem(f"it offers no usable login ({names})", "let the server offer SCRAM or PLAIN", is_transient=False)


def find_challenge_problem(challenge: bytes, *, is_first: bool) -> Problem | None:
    """Return the problem of a SCRAM challenge (RFC 5802, section 7), or None. The second one is a proof or an error."""
    parts = [part.partition(b"=") for part in challenge.split(b",")]
    attributes = {name: value for name, equals, value in parts if equals and len(name) == 1}
    if len(attributes) != len(parts):
        return MALFORMED_LOGIN
    if not is_first:
        return None if attributes.keys() & {b"v", b"e"} else MALFORMED_LOGIN
    iterations = attributes.get(b"i", b"")
    if not attributes.keys() >= {b"r", b"s", b"i"} or not iterations.isdigit() or not _is_base64(attributes[b"s"]):
        return MALFORMED_LOGIN
    if len(iterations) > 9 or not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
        text = f"its login has an unusual number of SCRAM iterations, {iterations[:20].decode()}"
        return Problem(text, f"let the server use {MIN_ITERATIONS:,} to {MAX_ITERATIONS:,}", is_transient=False)
    return None


def _is_base64(data: bytes) -> bool:
    try:
        b64decode(data, validate=True)
    except Base64Error:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Security:
    """The protection of a session. Without TLS the `tls_version` is empty. The certificate is known if it was verified."""

    address: str
    tls_version: str = ""
    is_verified: bool = False
    certificate_name: str = ""
    certificate_end: datetime | None = None
    mechanism: str = ""

    @property
    def problem(self) -> str | None:
        """The setting that leaves the session unprotected; None over verified TLS."""
        if not self.tls_version:
            return f"{self.address} is used without TLS (server.tls.required is off)"
        return None if self.is_verified else f"the certificate of {self.address} is not verified (server.tls.verify is off)"

    def __str__(self) -> str:
        tls = self.tls_version.replace("TLSv", "TLS ") or "no TLS"
        end = f" until {self.certificate_end:%Y-%m-%d}" if self.certificate_end else ""
        certificate = f"certificate of {self.certificate_name}{end}" if self.is_verified else "certificate not verified"
        return ", ".join([self.address, tls, *([certificate] if self.tls_version else []), self.mechanism])
