"""The URLs and addresses that a stranger's link may lead to: web servers of the public internet, unless allowed."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, TypeAlias

from ..exceptions import FetchError

if TYPE_CHECKING:
    from yarl import URL


Address: TypeAlias = IPv4Address | IPv6Address

# In addition to the networks that `ipaddress` calls not global: its lists differ between versions of Python, and these must
# be refused in each.
_PRIVATE_IPV4 = [
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local; a cloud's metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
]

_PUBLIC_IPV6 = IPv6Network("2000::/3")  # all assigned addresses; loopback, private, link-local and multicast lie outside

_PRIVATE_IPV6 = [
    ip_network(text)
    for text in (
        "2001::/23",  # for protocols; Teredo carries any IPv4 address in it
        "2001:db8::/32",
        "2002::/16",  # 6to4 carries any IPv4 address
        "3fff::/20",
    )
]

# The last 32 bits are the real address: IPv4-mapped, and NAT64 as networks without IPv4 use it (RFC 6052).
_IPV4_IN_IPV6 = [IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")]


def is_public(address: Address) -> bool:
    """Return True for a unicast address of the public internet."""
    if isinstance(address, IPv6Address):
        for carrier in _IPV4_IN_IPV6:
            if address in carrier:
                return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _PUBLIC_IPV6 or any(address in network for network in _PRIVATE_IPV6):
            return False
    elif any(address in network for network in _PRIVATE_IPV4):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_in_networks(address: Address, networks: Iterable[str]) -> bool:
    """Return True if an address is in one of the networks (`"10.1.0.0/16"`). IPv4-mapped addresses are in no IPv4 network."""
    return any(address in ip_network(text) for text in networks)


def parse_literal(host: str) -> Address | None:
    """Parse a host as an address in its canonical form. Return None for a name; `ValueError` for any other form.

    `127.1`, `0177.0.0.1` and `2130706433` are addresses to the C library and names to others, so they are refused.
    """
    if ":" in host or host.replace(".", "").isdigit():
        return ip_address(host)
    return None


ResolveHost: TypeAlias = Callable[[str, int], Awaitable[Collection[str]]]
"""A function that returns the addresses of a host and port as texts. `OSError` if there is none."""

_MAX_URL_CHARACTERS = 2048

_HOST = re.compile(r"[a-zA-Z0-9._-]{1,253}|[0-9a-fA-F:.]+")


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses of a host from the resolver of the system."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in infos]


@dataclass(frozen=True, slots=True)
class UrlPolicy:
    """The limits for one fetch.

    `allow_private` is True for all addresses, or the allowed private networks. `resolve` returns the addresses of a host.
    URLs that begin with one of `own_urls`, the places of files of this platform, may have any address.
    """

    allow_private: bool | Sequence[str]
    resolve: ResolveHost
    own_urls: Sequence[str] = ()

    def check(self, url: str) -> URL:
        """Parse a URL as the connection will, so that check and connection agree. `FetchError` if it is not allowed."""
        from yarl import URL

        if len(url) > _MAX_URL_CHARACTERS or re.search(r"[\x00-\x20\x7f]", url):
            raise FetchError(url, f"a link has at most {_MAX_URL_CHARACTERS:,} characters, and no spaces")
        try:
            parsed = URL(url)
            host, port = parsed.raw_host, parsed.port
        except ValueError as error:
            raise FetchError(url, "it is no URL") from error
        if parsed.scheme not in ("http", "https"):
            raise FetchError(url, "only http and https links are")
        if "@" in parsed.raw_authority:
            raise FetchError(url, "it names a user")
        if not host or not _HOST.fullmatch(host):
            raise FetchError(url, "it names no host")
        if port not in (80, 443) and not (port and port >= 1024):
            raise FetchError(url, f"no web server is on port {port}")
        return parsed

    async def resolve_addresses(self, url: URL) -> list[str]:
        """Return all addresses of the host. `FetchError` if one of them is not allowed."""
        host, port = url.raw_host or "", url.port or 0
        try:
            address = parse_literal(host)
        except ValueError as error:
            raise FetchError(str(url), "its host is an address in no usual form") from error
        if address is not None:
            addresses: list[Address] = [address]
        else:
            try:
                addresses = [ip_address(text) for text in await self.resolve(host, port)]
            except (OSError, ValueError) as error:  # UnicodeError, which a label of 64 characters is, is a ValueError
                raise FetchError(str(url), f"there is no host {host}") from error
        if not addresses:
            raise FetchError(str(url), f"there is no host {host}")
        for address in addresses:
            if not self._is_allowed(address) and not str(url).startswith(tuple(self.own_urls)):
                remedy = "allow_private can name networks of your own"
                raise FetchError(str(url), f"{host} is not in the public internet", remedy)
        return [str(address) for address in dict.fromkeys(addresses)]

    def _is_allowed(self, address: Address) -> bool:
        if isinstance(self.allow_private, bool):
            return self.allow_private or is_public(address)
        return is_public(address) or is_in_networks(address, self.allow_private)
