"""The way of a stream to a login: TLS, the mechanism, and the proof of the server. `security` has its decisions."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, cast
from xml.etree.ElementTree import Element

from . import security
from .errors import CONNECTION_CLOSED, Problem, explain
from .iq_filter import IQ
from .security import NextStep, Phase, Security

if TYPE_CHECKING:
    from .dialer import Dialed

_REGISTER = "{http://jabber.org/features/iq-register}register"
_OTHER_MECHANISM = frozenset(
    {"aborted", "encryption-required", "incorrect-encoding", "invalid-mechanism", "malformed-request", "mechanism-too-weak"}
)
"""The conditions of a refused login after which another mechanism may succeed (RFC 6120, 6.5).

After all others it cannot, and each further try would count as an attack (fail2ban).
"""


class NegotiatedStream(Protocol):
    """The stream of a client, as its negotiation needs it."""

    transport: Any
    socket: Any
    ssl_context: ssl.SSLContext
    plugin: Any
    authenticated: bool

    def send_raw(self, data: str) -> None:
        """Send text."""

    def handle_with_slixmpp(self, stanza: Element) -> None:
        """Let slixmpp handle an element."""

    def read_software(self, features: Element) -> None:
        """Recognise the server by its features."""

    async def start_tls_as(self, domain: str) -> None:
        """Do the TLS handshake with the server of a domain, and begin a new stream. Raise OSError if that fails."""

    def add_event_handler(self, name: str, handler: Callable[[Any], None]) -> None:
        """Call a handler at each of slixmpp's events of a name."""


class Negotiation:
    """The negotiation of a client's streams, one after another. slixmpp does the login itself, and the registration.

    Parameters:
        client: slixmpp's client.
        domain: the name that the server's certificate must have, from the first attempt to the last (RFC 6120, 13.7.2).
        requires_tls: end the attempt at a server that offers no TLS.
        registers: the account is registered before the login.
    """

    def __init__(self, client: NegotiatedStream, domain: str, *, requires_tls: bool, registers: bool) -> None:
        self.domain = domain
        self.phase = Phase.CLEAR
        self.mechanism = ""
        """The SASL mechanism of the login."""
        self.registration_problem = "the server does not accept registrations" if registers else ""
        """The known reason why the account could not be registered; empty without a registration, or if it succeeded."""
        self.on_failed: Callable[[Problem], None] = lambda problem: None
        """Called if the stream cannot become a session."""
        self.on_login_failed: Callable[[str], None] = lambda condition: None
        """Called if the server refuses the account, with the condition (RFC 6120, 6.5); empty if no mechanism works."""
        self.dialed: Dialed | None = None
        """The connection of the current stream, or of the last one."""
        self.handlers: dict[str, Callable[[Element], None]] = {
            security.FEATURES: self._on_features,
            security.PROCEED: self._during(Phase.TLS_REQUESTED, self._on_proceed),
            security.TLS_FAILURE: self._during(Phase.TLS_REQUESTED, self._on_tls_failure),
            security.CHALLENGE: self._during(Phase.SECURE, self._on_challenge),
            security.SUCCESS: self._during(Phase.SECURE, self._on_success),
            security.LOGIN_FAILURE: self._during(Phase.SECURE, self._on_login_failure),
        }
        """The handlers of its elements, by tag."""
        self._client = client
        self._requires_tls = requires_tls
        self._handshake: asyncio.Task[None] | None = None
        client.add_event_handler("failed_all_auth", lambda _: self.on_login_failed(""))

    def _during(self, phase: Phase, handler: Callable[[Element], None]) -> Callable[[Element], None]:
        """Return the handler of an element that means nothing in a later phase."""
        return lambda element: handler(element) if self.phase is phase else None

    def begin(self, dialed: Dialed) -> None:
        """Begin with a new connection."""
        self.dialed = dialed
        self.phase = Phase.HANDSHAKE if dialed.target.is_direct_tls else Phase.CLEAR
        self.registration_problem = self.registration_problem and "the server does not accept registrations"
        login = self._client.plugin["feature_mechanisms"]
        login.attempted_mechs, login.mech = set(), None

    def end(self) -> None:
        """End with the connection."""
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def admits(self, stanza: Element) -> bool:
        """Return True if the server may send a stanza in this phase. Otherwise the attempt ends."""
        expected = security.EXPECTED[self.phase]
        is_answer = stanza.tag != IQ or stanza.get("type") in ("result", "error")
        if expected is None or (stanza.tag in expected and is_answer):
            return True
        if self.phase is not Phase.ENDED:
            when = "the login" if self.phase is Phase.SECURE else "TLS"
            name = stanza.tag.rpartition("}")[2][:64]
            self.on_failed(Problem(f"it sends <{name}> before {when}", "check that nothing but the server answers there"))
        return False

    @property
    def is_verified(self) -> bool:
        """True if the stream is over TLS, with a certificate of the JID's domain that is trusted."""
        return self._ssl_object is not None and self._client.ssl_context.verify_mode == ssl.CERT_REQUIRED

    @property
    def security(self) -> Security:
        """The protection of the current stream."""
        place, ssl_object = str(self.dialed or ""), self._ssl_object
        if ssl_object is None:
            return Security(place, mechanism=self.mechanism)
        certificate = cast("dict[str, Any]", ssl_object.getpeercert() or {})  # empty without verification
        names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
        end = certificate.get("notAfter")
        return Security(
            place,
            ssl_object.version() or "",
            self.is_verified,
            self.domain if self.domain in names or not names else names[0],
            datetime.fromtimestamp(ssl.cert_time_to_seconds(end), UTC) if end else None,
            self.mechanism,
        )

    @property
    def _ssl_object(self) -> ssl.SSLObject | None:
        return self._client.socket if isinstance(self._client.socket, ssl.SSLObject) else None

    @property
    def _is_loopback(self) -> bool:
        return self.dialed is not None and self.dialed.address.is_loopback

    def _on_features(self, features: Element) -> None:
        self._client.read_software(features)
        tags = {child.tag for child in features}
        match security.choose_step(self.phase, tags, requires_tls=self._requires_tls, is_loopback=self._is_loopback):
            case Problem() as problem:
                self.on_failed(problem)
            case NextStep.START_TLS:
                self.phase = Phase.TLS_REQUESTED
                self._client.send_raw(f"<starttls xmlns='{security.TLS}'/>")
            case NextStep.LOG_IN:
                self._log_in(features)
            case NextStep.CONTINUE:
                self._client.handle_with_slixmpp(features)

    def _log_in(self, features: Element) -> None:
        self.phase = Phase.SECURE
        offered = {name.text or "" for name in features.iter(f"{{{security.SASL}}}mechanism")}
        tls_version = self._ssl_object.version() if self._ssl_object is not None else None
        mechanisms = security.choose_mechanisms(
            offered,
            is_verified=self.is_verified,
            is_loopback=self._is_loopback,
            can_bind=tls_version == "TLSv1.2",  # for TLS 1.3 Python has no channel binding
        )
        if isinstance(mechanisms, Problem):
            self.on_failed(mechanisms)
            return
        if not (self.is_verified or self._is_loopback):
            for offer in features.findall(_REGISTER):  # it would show the password, as PLAIN would
                features.remove(offer)
                self.registration_problem = (
                    self.registration_problem and "it cannot be registered at a server that is not verified"
                )
        login = self._client.plugin["feature_mechanisms"]
        login.use_mechs = set(mechanisms)
        login.unencrypted_scram = login.unencrypted_plain = tls_version is None
        self._client.handle_with_slixmpp(features)

    def _on_proceed(self, _: Element) -> None:
        self.phase = Phase.HANDSHAKE
        self._client.transport.pause_reading()
        self._handshake = asyncio.create_task(self._do_handshake())

    async def _do_handshake(self) -> None:
        try:
            await self._client.start_tls_as(self.domain)
        except ssl.SSLError as error:
            self.on_failed(explain(error))
        except (OSError, ValueError):  # ValueError: a name that no certificate can have
            self.on_failed(
                Problem(
                    f"{CONNECTION_CLOSED.text} during the TLS handshake",
                    f"check that the server has a certificate for {self.domain}",
                )
            )

    def _on_tls_failure(self, _: Element) -> None:
        self.on_failed(Problem("the server offers TLS and then refuses it", "check its certificate and its log"))

    @property
    def _scram_step(self) -> int | None:
        """The number of messages of SCRAM that were sent; None with another mechanism, or before a login."""
        return getattr(self._client.plugin["feature_mechanisms"].mech, "step", None)

    def _on_challenge(self, challenge: Element) -> None:
        try:
            text = b64decode(challenge.text or "", validate=True)
        except ValueError:  # not BASE64, or not even ASCII
            text = b""
        problem = security.find_challenge_problem(text, is_first=self._scram_step == 1)
        if problem is not None:
            self.on_failed(problem)
        else:
            self._client.handle_with_slixmpp(challenge)

    def _on_success(self, success: Element) -> None:
        mechanism = self._client.plugin["feature_mechanisms"].mech
        # slixmpp raises various errors if the server does not know the password (RFC 5802, 5). But it takes a challenge within
        # `<success/>` for the end of the login.
        if self._scram_step in (None, 2):
            with suppress(Exception):
                self._client.handle_with_slixmpp(success)
        if self._client.authenticated:
            self.phase = Phase.LOGGED_IN
            self.mechanism = mechanism.name
        else:
            self.on_failed(security.UNPROVEN_LOGIN)

    def _on_login_failure(self, failure: Element) -> None:
        condition = failure[0].tag.rpartition("}")[2] if len(failure) else ""
        if self._client.plugin["feature_mechanisms"].mech is None:
            self.on_failed(Problem("it refuses a login that has not begun", "check the server"))
        elif condition in _OTHER_MECHANISM:
            self._client.handle_with_slixmpp(failure)
        else:
            self.on_login_failed(condition)
