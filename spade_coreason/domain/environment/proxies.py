"""The proxy that the environment names for a URL: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from ...exceptions import ConfigError
from .installation import install_hint

if TYPE_CHECKING:
    import httpx2

_SOCKS_PACKAGE = "socksio"  # with it httpx2 speaks to a SOCKS proxy
_PORTS = {"http": 80, "https": 443}
_SOCKS_SCHEMES = ("socks5", "socks5h")
_SOCKS_PORT = 1080
_SCHEMES = ("http", "https", *_SOCKS_SCHEMES)
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class EnvironmentProxy:
    """A proxy, and the environment variable that names it. `url` may contain a password."""

    url: str = field(repr=False)
    variable: str


def build_transport(url: str, **options: Any) -> httpx2.AsyncHTTPTransport:
    """Build the transport to the server of a URL, with further `options` of the class. ConfigError as for `find_proxy`.

    A client without a transport would follow its own rules: it ignores networks and ports in NO_PROXY.
    """
    import httpx2

    proxy = find_proxy(url)
    return httpx2.AsyncHTTPTransport(proxy=proxy.url if proxy is not None else None, **options)


def find_proxy(
    url: str, environment: Mapping[str, str] = os.environ, *, socks_package: str = _SOCKS_PACKAGE
) -> EnvironmentProxy | None:
    """Return the proxy for an http or https URL. None if the environment names none, or NO_PROXY exempts the host.

    A name in lower case comes before the same in capitals. ConfigError names the variable, and never its value, if that is no
    proxy we can use, or if it is a SOCKS proxy and `socks_package` is not installed.
    """
    target = urlsplit(url)
    for name in (f"{target.scheme}_proxy", "all_proxy"):
        variable = name if name in environment else name.upper()
        if value := environment.get(variable, "").strip():
            break
    else:
        return None
    no_proxy = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    if any(_is_exempted(target, entry) for entry in re.split(r"[\s,]+", no_proxy)):
        return None
    return _check_proxy(value if "://" in value else f"http://{value}", variable, socks_package)


def _check_proxy(url: str, variable: str, socks_package: str) -> EnvironmentProxy:
    scheme = url.partition("://")[0].lower()
    if scheme not in _SCHEMES:
        shown = f"{scheme}://" if re.fullmatch(r"[a-z0-9+.-]{1,20}", scheme) else "such"
        supported = ", ".join(f"{name}://" for name in _SCHEMES)
        raise ConfigError(variable, f"{shown} proxies are not supported; write one of {supported}")
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        is_valid = False
    if not is_valid or re.search(r"[\x00-\x20]", url):
        raise ConfigError(variable, f"is not the address of a proxy; write it like {scheme}://127.0.0.1:8080")
    if scheme in _SOCKS_SCHEMES and find_spec(socks_package) is None:
        raise ConfigError(variable, f"a SOCKS proxy needs the package {socks_package}: {install_hint('socks')}")
    port = f":{_SOCKS_PORT}" if scheme in _SOCKS_SCHEMES and parts.port is None else ""
    return EnvironmentProxy(f"{scheme}://{parts.netloc}{port}", variable)


def _is_exempted(target: SplitResult, entry: str) -> bool:
    """Return True if an entry of NO_PROXY names the host of a URL.

    An entry is `*`, a name with all names below it, an address, or a network. A port at its end restricts it to that port.
    """
    if entry == "*":
        return True
    pattern = entry.lower()
    if parts := _HOST_AND_PORT.fullmatch(pattern):
        if int(parts[2]) != (target.port or _PORTS.get(target.scheme)):
            return False
        pattern = parts[1]
    host, pattern = (target.hostname or "").rstrip("."), pattern.strip("[]")
    if (address := _parse_address(host)) is not None:
        try:
            return address in ip_network(pattern, strict=False)  # an address is a network of one
        except ValueError:
            return False
    name = pattern.removeprefix("*").strip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
