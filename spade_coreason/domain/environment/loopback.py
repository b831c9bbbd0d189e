"""The names and addresses of this machine itself."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return True for a host or domain that means this machine (RFC 6761, section 6.3)."""
    host = host.lower().strip("[]")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
