"""Which addresses of the internet protocol belong to the public internet."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

# Beside what `ipaddress` calls not global: its lists differ between versions of Python, and these have to be out in each.
_CLOSED_4 = [
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # behind a provider's translation
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
_OPEN_6 = IPv6Network("2000::/3")  # all that is assigned to anybody; loopback, private, link-local, multicast lie outside
_CLOSED_6 = [
    ip_network(text)
    for text in (
        "2001::/23",  # for protocols; Teredo carries any IPv4 address in it
        "2001:db8::/32",
        "2002::/16",  # 6to4 carries any IPv4 address
        "3fff::/20",
    )
]
# Here the last 32 bits are the address that is meant: IPv4-mapped, and NAT64 as networks without IPv4 use it (RFC 6052).
_CARRIERS = [IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")]


def is_public(address: Address) -> bool:
    """Whether it is a unicast address that anybody may reach."""
    if isinstance(address, IPv6Address):
        for carrier in _CARRIERS:
            if address in carrier:
                return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _OPEN_6 or any(address in network for network in _CLOSED_6):
            return False
    elif any(address in network for network in _CLOSED_4):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_in(address: Address, networks: Iterable[str]) -> bool:
    """Whether it lies in one of these (`"10.1.0.0/16"`); an IPv4-mapped one is not in a network of IPv4."""
    return any(address in ip_network(text) for text in networks)


def literal(host: str) -> Address | None:
    """The address that a host name is, in its one canonical form; None for a name. ValueError for any other form.

    `127.1`, `0177.0.0.1` and `2130706433` are addresses to the C library and names to others; they are refused for that.
    """
    if ":" in host or host.replace(".", "").isdigit():
        return ip_address(host)
    return None
