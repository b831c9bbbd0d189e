"""The reason why a connection failed or ended: its description for people, the remedy, and whether it may pass."""

from __future__ import annotations

import os
import ssl
from typing import Any

CONNECTION_CLOSED = "the server closed the connection"
NO_ADDRESS = "its name has no address"
_WRONG_ACCOUNT = "wrong password, or no such account"
_HOSTNAME_MISMATCH = 62  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH


def describe_problem(problem: Any) -> str:
    """Describe for a person why a connection failed or ended."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        remedy = "set server.tls.ca_file (--ca-file) to the authority that signed it"
        if problem.verify_code == _HOSTNAME_MISMATCH:
            remedy = "it must name the domain of the JID"
        return f"its certificate is not trusted ({problem.verify_message}); {remedy}"
    if isinstance(problem, OSError) and problem.errno is not None and problem.errno > 0:
        return os.strerror(problem.errno)  # asyncio's own text repeats the address
    return str(problem)


def describe_refused_login(registration_problem: str) -> str:
    """Describe a refused login. `registration_problem` is the reason why the account could not be registered, if any."""
    if not registration_problem:
        return f"{_WRONG_ACCOUNT}; correct the password, or make the account"
    return f"{_WRONG_ACCOUNT}, and {registration_problem}; correct the password, or make the account on the server"


def suggest_remedy(problem: Any) -> str:
    """Return what to check if the server cannot be reached and no other reason is known; empty for other problems."""
    if problem == CONNECTION_CLOSED or isinstance(problem, ConnectionRefusedError | ConnectionResetError):
        return "; is the server running, and are host and port right?"
    if problem == NO_ADDRESS:
        return "; correct server.host (--host), or see to the DNS"
    return ""


def is_transient(problem: Any) -> bool:
    """Return True if a later attempt to connect may succeed without any correction."""
    return problem != NO_ADDRESS and not isinstance(problem, ssl.SSLCertVerificationError)
