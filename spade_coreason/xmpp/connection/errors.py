"""The reason why a connection failed or ended: its description for people, the remedy, and whether it may pass."""

from __future__ import annotations

import os
import shlex
import ssl
from typing import Any

from ...domain.jid import bare_jid, jid_domain, local_part

CONNECTION_CLOSED = "the server closed the connection"
NO_ADDRESS = "the host name has no address"
_WRONG_ACCOUNT = "wrong password, or no such account"
# OpenSSL's X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT and X509_V_ERR_HOSTNAME_MISMATCH.
_SELF_SIGNED = 18
_HOSTNAME_MISMATCH = 62


def describe_problem(problem: Any) -> str:
    """Describe for a person why a connection failed or ended."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        remedy = "set server.tls.ca_file (--ca-file) to the certificate of the authority that signed it"
        if problem.verify_code == _HOSTNAME_MISMATCH:
            remedy = "it must name the domain of the JID"
        elif problem.verify_code == _SELF_SIGNED:
            remedy = "set server.tls.ca_file (--ca-file) to this certificate"
        return f"its certificate is not trusted ({problem.verify_message}); {remedy}"
    if isinstance(problem, OSError) and problem.errno is not None and problem.errno > 0:
        return os.strerror(problem.errno)  # asyncio's own text repeats the address
    # asyncio raises errors without a text, such as ConnectionResetError().
    return str(problem) or (CONNECTION_CLOSED if isinstance(problem, ConnectionError) else type(problem).__name__)


def describe_refused_login(jid: str, registration_problem: str) -> str:
    """Describe a refused login, and how to make the account `jid` on Prosody and ejabberd.

    `registration_problem` is the reason why the account could not be registered, if any.
    """
    problem = f"{_WRONG_ACCOUNT}, and {registration_problem}" if registration_problem else _WRONG_ACCOUNT
    account, user, domain = map(shlex.quote, (bare_jid(jid), local_part(jid), jid_domain(jid)))
    remedy = f"create the account (prosodyctl adduser {account}; ejabberdctl register {user} {domain} PASSWORD)"
    return f"{problem}; correct the password, or {remedy}"


def suggest_remedy(problem: Any) -> str:
    """Return what to check if the server cannot be reached and no other reason is known; empty for other problems."""
    if problem == CONNECTION_CLOSED or isinstance(problem, ConnectionRefusedError | ConnectionResetError):
        return "; check that the server is running, and check host and port"
    if problem == NO_ADDRESS:
        return "; correct server.host (--host), or check the DNS"
    return ""


def is_transient(problem: Any) -> bool:
    """Return True if a later attempt to connect may succeed without any correction."""
    return problem != NO_ADDRESS and not isinstance(problem, ssl.SSLCertVerificationError)
