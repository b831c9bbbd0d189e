"""The reason why a connection failed or ended: its description for people, the remedy, and whether it may pass."""

from __future__ import annotations

import os
import shlex
import socket
import ssl
from dataclasses import dataclass

from ...domain.environment.https_trust import split_tls_reason
from ...domain.jid import bare_jid, jid_domain, local_part

_MAX_CHARACTERS = 200
_CHECK_ADDRESS = "check that the server is running, and check host and port"
# OpenSSL's X509_V_ERR_… codes.
_CERTIFICATE_REMEDIES = {
    9: "correct the clock of this machine, or wait until it is valid",  # CERT_NOT_YET_VALID
    10: "renew it on the server",  # CERT_HAS_EXPIRED
    18: "set server.tls.ca_file (--ca-file) to this certificate",  # DEPTH_ZERO_SELF_SIGNED_CERT
    62: "it must name the domain of the JID",  # HOSTNAME_MISMATCH
    64: "it must name the domain of the JID",  # IP_ADDRESS_MISMATCH
}
_AUTHORITY_REMEDY = "set server.tls.ca_file (--ca-file) to the certificate of the authority that signed it"
_LOGIN_PROBLEMS = {  # RFC 6120, 6.5
    "account-disabled": ("the account is disabled", "enable it on the server"),
    "credentials-expired": ("the password has expired", "set a new one on the server"),
    "temporary-auth-failure": ("the server cannot check passwords at the moment", ""),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason of a failure, and what to do about it. `is_transient` is False if no later attempt succeeds without that."""

    text: str
    remedy: str = ""
    is_transient: bool = True

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}" if self.remedy else self.text


class NegotiationError(Exception):
    """A stream did not become a session, for the reason `problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def quote(text: str) -> str:
    """Return a text of the other side in one line, at most 200 characters. It may be an attacker's."""
    line = "".join(character if character.isprintable() else " " for character in text[: _MAX_CHARACTERS + 1])
    return line if len(line) <= _MAX_CHARACTERS else f"{line[: _MAX_CHARACTERS - 1]}…"


CONNECTION_CLOSED = Problem("the server closed the connection", _CHECK_ADDRESS)
CLOSED_HERE = Problem("the connection was closed by this program", is_transient=False)
NO_ADDRESS = Problem("the host name has no address", "correct server.host (--host), or check the DNS", is_transient=False)
NO_SERVICE = Problem(
    "its DNS says that it has no server for clients (SRV)", "correct the JID, or set server.host (--host)", is_transient=False
)


def explain(problem: object) -> Problem:
    """Explain why a connection failed or ended: an error of asyncio, the reason as text, or None for an orderly end."""
    match problem:
        case Problem():
            return problem
        case NegotiationError():
            return problem.problem
        case None:
            return CONNECTION_CLOSED
        case ssl.SSLCertVerificationError():
            remedy = _CERTIFICATE_REMEDIES.get(problem.verify_code, _AUTHORITY_REMEDY)
            text = f"its certificate is not trusted ({problem.verify_message.removesuffix('.')})"
            return Problem(text, remedy, is_transient=False)
        case ssl.SSLError():
            return _explain_tls(problem)
        case socket.gaierror():
            return Problem("the DNS does not answer", "check the DNS")
        case ConnectionRefusedError() | ConnectionResetError():
            text = os.strerror(problem.errno) if problem.errno else CONNECTION_CLOSED.text
            return Problem(text, _CHECK_ADDRESS)
        case OSError(errno=int(number)) if number > 0:
            return Problem(os.strerror(number))  # asyncio's own text repeats the address
        case ConnectionError() if not str(problem):
            return Problem(CONNECTION_CLOSED.text)  # asyncio raises errors without a text, such as ConnectionAbortedError()
    return Problem(quote(str(problem)) or type(problem).__name__)


def _explain_tls(error: ssl.SSLError) -> Problem:
    words, is_alert = split_tls_reason(error)
    if is_alert:
        return Problem(f"the server refuses TLS (alert: {words})", "check the server's certificate and TLS settings")
    return Problem(f"TLS fails ({words})", "check the port, and that the server has TLS 1.2 or newer")


def no_answer(limit_s: float) -> Problem:
    """Return the problem of an address that did not answer in time."""
    return Problem(f"no answer within {limit_s:g} s", "check host and port")


def explain_refused_login(condition: str, jid: str, registration_problem: str) -> Problem:
    """Explain a refused login by its SASL condition (RFC 6120, 6.5), and how to make the account `jid`.

    `registration_problem` is the reason why the account could not be registered, if any.
    """
    if condition in _LOGIN_PROBLEMS:
        text, remedy = _LOGIN_PROBLEMS[condition]
        return Problem(text, remedy, is_transient=condition == "temporary-auth-failure")
    if condition not in ("not-authorized", ""):
        return Problem(f"the server refuses it ({quote(condition)})", "check the account on the server", is_transient=False)
    text = "wrong password, or no such account"
    if registration_problem:
        text += f", and {registration_problem}"
    account, user, domain = map(shlex.quote, (bare_jid(jid), local_part(jid), jid_domain(jid)))
    remedy = f"create the account (prosodyctl adduser {account}; ejabberdctl register {user} {domain} PASSWORD)"
    return Problem(text, f"correct the password, or {remedy}", is_transient=False)
