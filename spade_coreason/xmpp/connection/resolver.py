"""The DNS behind a domain: its SRV records (RFC 6120 3.2, XEP-0368), put into the order of RFC 2782, and its addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import idna

from ...domain.jid import parse_domain

DEFAULT_PORT = 5222
MAX_TARGETS = 16
"""The most SRV targets of a domain that are tried."""
_SERVICES = {"_xmpps-client._tcp": True, "_xmpp-client._tcp": False}
_NO_SERVICE = "."  # RFC 2782: the service is decidedly not available at this domain


@dataclass(frozen=True, slots=True)
class Target:
    """A host where a server may answer. `is_direct_tls` is True if the connection begins with TLS (XEP-0368)."""

    host: str
    port: int = DEFAULT_PORT
    is_direct_tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_target(text: str) -> Target | None:
    """Parse `host`, `host:port` or `[IPv6]:port` (RFC 6120, 4.9.3.19). Return None for anything else."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\s]+)(?::([0-9]{1,5}))?", text.strip())
    if match is None:
        return None
    host, port = match[1], int(match[2] or DEFAULT_PORT)
    try:
        host = parse_domain(host).strip("[]")
    except ValueError:
        return None
    return Target(host, port) if 0 < port < 65_536 else None


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """An SRV record. Lower priorities are tried first; within one priority, a higher weight is more often first."""

    priority: int
    weight: int
    target: Target


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address and port, as a socket takes them: `sockaddr` has two items for IPv4 and four for IPv6."""

    family: socket.AddressFamily
    sockaddr: tuple[str, int] | tuple[str, int, int, int]

    def __str__(self) -> str:
        return str(Target(self.sockaddr[0], self.sockaddr[1]))

    @property
    def is_loopback(self) -> bool:
        """True if data to this address never leaves the machine."""
        return ipaddress.ip_address(self.sockaddr[0].partition("%")[0]).is_loopback


class Resolver(Protocol):
    """The questions to the DNS."""

    async def find_services(self, domain: str) -> list[ServiceRecord]:
        """Return the SRV records of `domain` (ASCII) for clients, both kinds; none if it has none or the DNS does not say."""
        ...

    async def find_addresses(self, target: Target) -> list[Address]:
        """Return the addresses of a host, in the order of preference. Raise `socket.gaierror` if it has none."""
        ...


class SystemResolver:
    """The resolver of the system: c-ares for SRV records, `getaddrinfo` for addresses."""

    async def find_services(self, domain: str) -> list[ServiceRecord]:
        """Return the SRV records of `domain`. Those of one kind count also if the query for the other fails."""
        import aiodns  # here, because a server with a host needs none
        from pycares import SRVRecordData

        async with aiodns.DNSResolver(timeout=1.0, tries=2) as resolver:
            queries = [resolver.query_dns(f"{name}.{domain}", "SRV") for name in _SERVICES]
            answers = await asyncio.gather(*queries, return_exceptions=True)
        return [
            ServiceRecord(data.priority, data.weight, Target(_host(data.target), data.port, is_direct))
            for is_direct, answer in zip(_SERVICES.values(), answers, strict=True)
            if not isinstance(answer, BaseException)  # no such record, or no answer: RFC 6120 3.2.1 uses the domain itself
            for data in (record.data for record in answer.answer)
            if isinstance(data, SRVRecordData)
        ]

    async def find_addresses(self, target: Target) -> list[Address]:
        """Return the addresses of a host by `getaddrinfo`, which orders them by RFC 6724."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(to_ascii(target.host), target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        return [Address(family, sockaddr) for family, _, _, _, sockaddr in found]  # type: ignore[arg-type]  # of both families


def _host(name: str) -> str:
    return name if name in (_NO_SERVICE, "") else name.removesuffix(".")


def to_ascii(domain: str) -> str:
    """Return the A-label form of a domain (RFC 5890), which the DNS and certificates use. Other names stay as they are."""
    with suppress(idna.IDNAError):
        return idna.encode(domain, uts46=True).decode()
    return domain


async def find_targets(domain: str, host: str | None, port: int | None, resolver: Resolver) -> list[Target]:
    """Return the targets of a server, best first. A configured `host` or `port` takes the place of SRV records.

    The list is empty if the domain declares that it has no server for clients.
    """
    if host or port or not _may_have_services(domain):
        return [Target((host or domain).strip("[]"), port or DEFAULT_PORT)]
    records = await resolver.find_services(to_ascii(domain))
    if not records:
        return [Target(domain)]
    return order_services(record for record in records if record.target.host not in (_NO_SERVICE, ""))


def _may_have_services(domain: str) -> bool:
    """Return False for an IP address, and for names that mean this machine (RFC 6761 6.3)."""
    with suppress(ValueError):
        ipaddress.ip_address(domain.strip("[]"))
        return False
    return domain != "localhost" and not domain.endswith(".localhost")


def order_services(records: Iterable[ServiceRecord], pick: Callable[[int, int], int] = random.randint) -> list[Target]:
    """Order SRV records of both kinds together by priority, then by weighted chance (RFC 2782, XEP-0368 section 3).

    Only the first `MAX_TARGETS` are returned: a domain may have more than a thousand.

    `pick(low, high)` returns a number between both, inclusive.
    """
    # Those without a weight come first, so that they keep a small chance.
    waiting = sorted(records, key=lambda record: (record.priority, record.weight))
    ordered: list[Target] = []
    while waiting and len(ordered) < MAX_TARGETS:
        group = [record for record in waiting if record.priority == waiting[0].priority]
        chosen = pick(0, sum(record.weight for record in group))
        for record in group:
            chosen -= record.weight
            if chosen <= 0:
                break
        waiting.remove(record)
        ordered.append(record.target)
    return ordered
