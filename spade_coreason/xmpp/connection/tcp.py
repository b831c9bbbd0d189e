"""Options of the TCP socket below an XMPP stream, and the size of asyncio's TLS buffers."""

from __future__ import annotations

import asyncio
import socket
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from functools import partial

_TLS_BUFFER_BYTES = 32 * 1024
# After this time without a response from the network the connection counts as cut.
_USER_TIMEOUT_MS = 30_000


def tune_tls_buffers() -> None:
    """Make the buffer that asyncio allocates for each TLS connection smaller. It is half of the memory of an idle agent.

    The attribute is not documented, and concerns each TLS connection of the process that begins later. So only the project's
    own programs call this. A TLS record has at most 16 KiB; a long body is read in more pieces.
    """
    SSLProtocol.max_size = _TLS_BUFFER_BYTES


def configure_socket(transport: asyncio.BaseTransport | None) -> None:
    """Send data without delay (TCP_NODELAY), and detect a peer that is no longer reachable."""
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


def find_quick_ack(transport: asyncio.BaseTransport | None) -> Callable[[], object] | None:
    """Return a function that acknowledges received data at once; None where the system has none.

    Call it after each read. Otherwise the kernel delays its acknowledgement by 40 ms, and a server without TCP_NODELAY
    (Prosody by default) does not send the next message until then.
    """
    sock = _tcp_socket(transport)
    if sock is None or not hasattr(socket, "TCP_QUICKACK"):
        return None
    return partial(sock.setsockopt, socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _tcp_socket(transport: asyncio.BaseTransport | None) -> socket.socket | None:
    sock = transport.get_extra_info("socket") if transport is not None else None
    return sock if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) else None
