"""Where an XMPP server is, and how it is trusted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ServerEndpoint:
    """Without a host it is found by the domain (SRV records, RFC 6120). One object, and one TLS context, for all agents."""

    host: str | None = None
    port: int | None = None
    verify: bool = True
    ca_file: Path | None = None
    timeout_s: float = 10.0
    attempts: int = 1
    context: ssl.SSLContext = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        # A context of its own costs every client 850 KiB.
        object.__setattr__(self, "context", context)

    def address(self, domain: str) -> str:
        """For messages to people."""
        return f"{self.host or domain}:{self.port or 5222}"


# What a network that silently vanished may take until the connection counts as cut, milliseconds.
_USER_TIMEOUT_MS = 30_000


def configure_socket(transport: asyncio.BaseTransport | None) -> None:
    """Everything leaves at once, and an end that is gone is noticed."""
    sock = _tcp_socket(transport)
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def enable_quick_ack(transport: asyncio.BaseTransport | None) -> None:
    """What came in just now, to which nothing of ours goes back.

    The kernel would wait 40 ms with its acknowledgement; and until that came a server without TCP_NODELAY (Prosody) would
    keep the next message.
    """
    sock = _tcp_socket(transport)
    if sock is not None and hasattr(socket, "TCP_QUICKACK"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _tcp_socket(transport: asyncio.BaseTransport | None) -> socket.socket | None:
    sock = transport.get_extra_info("socket") if transport is not None else None
    return sock if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) else None
