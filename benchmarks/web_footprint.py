"""The memory of the HTTP server: of one that is idle, and of idle streams."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

from spade_coreason.config import WebSettings
from tests.support.doors import connect, request_of

from .report import Target

BOUND_S = 120.0
IDLE_MIB, ALL_MIB, STREAMS_MIB = 8.0, 40.0, 40.0
"""The targets: of an idle server, of one with all doors and the packages of A2A and MCP, and of 1,000 idle streams."""


@dataclass(frozen=True, slots=True)
class WebFootprint:
    """The memory (proportional set) in MiB that an idle server adds to a process, and that `streams` idle streams add.

    `all_mib` is that of a server with all doors, whose packages are loaded.
    """

    idle_mib: float
    all_mib: float
    streams: int
    streams_mib: float


async def measure(streams: int) -> WebFootprint:
    """Measure a server in a process of its own."""
    async with asyncio.timeout(BOUND_S), AsyncExitStack() as stack:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.web_process", stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        stack.push_async_callback(process.wait)
        stack.callback(process.stdin.close)
        started = json.loads(await process.stdout.readline())
        process.stdin.write(b"doors\n")
        with_doors = json.loads(await process.stdout.readline())
        settings = WebSettings(port=started["port"])
        for _ in range(streams):
            client = await stack.enter_async_context(connect(settings))
            await client.send(request_of("/stream"))
            await client.reader.readuntil(b"first")
        process.stdin.write(b"\n")
        loaded = json.loads(await process.stdout.readline())
    of_streams = (loaded["kib"] - with_doors["kib"]) / 1024
    return WebFootprint(started["kib"] / 1024, with_doors["kib"] / 1024, streams, of_streams)


def targets(measured: WebFootprint) -> list[Target]:
    """Build the targets."""
    streams_mib = STREAMS_MIB * measured.streams / 1000
    return [
        Target("memory of an idle HTTP server", measured.idle_mib, "at most", IDLE_MIB, " MiB"),
        Target("memory of an idle HTTP server with all doors", measured.all_mib, "at most", ALL_MIB, " MiB"),
        Target(f"memory of {measured.streams:,} idle streams", measured.streams_mib, "at most", streams_mib, " MiB"),
    ]


def lines(measured: WebFootprint) -> list[str]:
    """Build the lines of the figures."""
    return [
        f"  idle server: {measured.idle_mib:.1f} MiB",
        f"  with all doors, and the packages of A2A and MCP: {measured.all_mib:.1f} MiB",
        f"  {measured.streams:,} idle streams: {measured.streams_mib:.1f} MiB,"
        f" {measured.streams_mib * 1024 / measured.streams:.0f} KiB each",
    ]
