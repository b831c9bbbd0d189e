"""Where a stranger's link may lead: to web servers of the public internet, and nowhere else without leave."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeAlias

from .addresses import Address, is_in, is_public, literal
from .exceptions import FetchError

if TYPE_CHECKING:
    from yarl import URL

Resolve: TypeAlias = Callable[[str, int], Awaitable[Collection[str]]]
"""The addresses of a host, as texts; OSError where there is none."""

_URL_CHARACTERS = 2048
_HOST = re.compile(r"[a-zA-Z0-9._-]{1,253}|[0-9a-fA-F:.]+")


async def resolved(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system knows them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


@dataclass(frozen=True, slots=True)
class Access:
    """What leave there is, and who resolves names."""

    allow_private: bool | Sequence[str]
    resolve: Resolve

    def check(self, url: str) -> URL:
        """The URL as the connection will read it, so that nobody reads it in two ways. FetchError if it may not be."""
        from yarl import URL

        if len(url) > _URL_CHARACTERS or re.search(r"[\x00-\x20\x7f]", url):
            raise FetchError(url, f"a link has at most {_URL_CHARACTERS:,} characters, and no spaces")
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

    async def addresses(self, url: URL) -> list[str]:
        """All addresses of the host, each of which may be connected to. One that may not spoils them all."""
        host, port = url.raw_host or "", url.port or 0
        try:
            address = literal(host)
        except ValueError as error:
            raise FetchError(str(url), "its host is an address in no usual form") from error
        if address is not None:
            found: list[Address] = [address]
        else:
            try:
                found = [ip_address(text) for text in await self.resolve(host, port)]
            except (OSError, ValueError) as error:  # UnicodeError, which a label of 64 characters is, is a ValueError
                raise FetchError(str(url), f"there is no host {host}") from error
        if not found:
            raise FetchError(str(url), f"there is no host {host}")
        for one in found:
            if not self._allows(one):
                raise FetchError(str(url), f"{host} is not in the public internet; allow_private can name networks of your own")
        return [str(one) for one in dict.fromkeys(found)]

    def _allows(self, address: Address) -> bool:
        if isinstance(self.allow_private, bool):
            return self.allow_private or is_public(address)
        return is_public(address) or is_in(address, self.allow_private)
