"""The addresses of clients and the names of the server: who sends a request, and to whom it is addressed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
# The whole text counts: `urlsplit` takes "[::1].evil.example" for "::1".
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/?#\s]+)(?::(\d{0,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_IPV6_PREFIX = 64  # one client has as many addresses below it as it likes


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an IP address, an IPv4 address also where it is written as one of IPv6. None for another text."""
    try:
        address = ip_address(text.strip().strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def group_address(text: str, ipv4_prefix: int = 32, ipv6_prefix: int = _IPV6_PREFIX) -> str:
    """Return the name under which a client is counted: its IPv4 address, or the network of its IPv6 address.

    Smaller prefixes count a whole block as one.
    """
    if (address := parse_address(text)) is None:
        return text
    prefix = ipv6_prefix if isinstance(address, IPv6Address) else ipv4_prefix
    return str(address) if prefix == 32 else str(ip_network((address, prefix), strict=False))


class Proxies:
    """The reverse proxies that are believed when they name a client."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ip_network(text) for text in networks]

    def __contains__(self, text: object) -> bool:
        address = parse_address(str(text))
        return address is not None and any(address in network for network in self._networks)

    def find_client(self, forwarded_for: str) -> str | None:
        """Return the last address in an `X-Forwarded-For` that does not belong to a proxy; None without a valid one.

        Each proxy adds the address of its own client at the end, so everything before that may be forged.
        """
        for text in reversed(forwarded_for.split(",")):
            if text.strip() in self:
                continue
            address = parse_address(text)
            return None if address is None else str(address)
        return None


def split_host(host: str, scheme: str = "http") -> tuple[str, int]:
    """Return the name and the port of a `Host` header. The name is "" if it is none."""
    if (found := _HOST.fullmatch(host.lower())) is None:
        return "", 0
    return found[1].rstrip("."), int(found[2] or _DEFAULT_PORTS.get(scheme, 0))


def origin_of(url: str) -> str:
    """Return the origin of a URL as a browser writes it: without the port that the scheme has anyway."""
    parts = urlsplit(url)
    name, port = split_host(parts.netloc, parts.scheme)
    return f"{parts.scheme}://{name}" + ("" if port == _DEFAULT_PORTS.get(parts.scheme) else f":{port}")
