"""The CPU of bodies over TLS, by the size of asyncio's buffer: `python -m benchmarks.tls_buffer`.

`tune_tls_buffers` makes the buffer of each TLS connection of the process smaller. Here a client downloads and uploads bodies
with asyncio's own size and with that one, in turns. The figures are of the client's thread; the server is another thread.
"""

from __future__ import annotations

import asyncio
import ssl
import statistics
import tempfile
import threading
import time
from asyncio.sslproto import SSLProtocol
from collections import defaultdict
from pathlib import Path

from spade_coreason.xmpp import tune_tls_buffers
from spade_coreason.xmpp.servers.certificate import CertificateFiles, ensure_certificate
from tests.support.servers.scripted import server_context

BODIES = {"64 KiB": 2**16, "1 MiB": 2**20}
_ROUND_BYTES = 2**24
_ROUNDS = 15


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        kind, size = line.split()
        if kind == b"up":
            await reader.readexactly(int(size))
        writer.write(b"\0" * (int(size) if kind == b"down" else 1))
        await writer.drain()
    writer.close()


def _serve(certificate: CertificateFiles) -> int:
    """Start the server in a daemon thread, and return its port."""
    is_ready, ports = threading.Event(), list[int]()

    async def serve() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=server_context(certificate))
        ports.append(server.sockets[0].getsockname()[1])
        is_ready.set()
        await server.serve_forever()

    threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()
    is_ready.wait()
    return ports[0]


async def _measure_us(port: int, context: ssl.SSLContext, kind: str, size: int) -> float:
    """Return the CPU of a body in the client's thread."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    count, body = _ROUND_BYTES // size, b"\0" * size if kind == "up" else b""
    began_s = time.thread_time()
    for _ in range(count):
        writer.write(f"{kind} {size}\n".encode() + body)
        await writer.drain()
        await reader.readexactly(size if kind == "down" else 1)
    used_s = time.thread_time() - began_s
    writer.close()
    await writer.wait_closed()
    return used_s / count * 1e6


def main() -> None:
    """Measure in turns, and print the medians in microseconds."""
    usual_bytes = SSLProtocol.max_size
    measured: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        certificate = ensure_certificate(Path(directory), ("localhost",))
        context, port = ssl.create_default_context(cafile=certificate.ca_file), _serve(certificate)
        for _ in range(_ROUNDS):
            for is_tuned in (False, True):
                SSLProtocol.max_size = usual_bytes
                if is_tuned:
                    tune_tls_buffers()
                for name, size in BODIES.items():
                    for kind in ("down", "up"):
                        cost_us = asyncio.run(_measure_us(port, context, kind, size))
                        measured[kind, name, SSLProtocol.max_size].append(cost_us)
    for (kind, name, buffer), costs_us in sorted(measured.items()):
        print(f"{name} {kind}, a buffer of {buffer // 1024} KiB: {statistics.median(costs_us):.0f} µs of CPU")


if __name__ == "__main__":
    main()
