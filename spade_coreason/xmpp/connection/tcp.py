"""Options of the TCP socket below an XMPP stream."""

from __future__ import annotations

import asyncio
import socket

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
