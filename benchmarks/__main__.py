"""`python -m benchmarks`: a hosted echo agent beside a bare slixmpp echo and a SPADE behaviour, in one run, as ratios."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from tests.servers import ejabberd, prosody
from tests.servers.clients import StockClient
from tests.servers.server import XmppServer

from .echo_process import KINDS

IN_FLIGHT = 64
THREADS = 50


@dataclass(frozen=True)
class Measured:
    """One echo agent in one round: answers a second and agent CPU at 64 in flight, latency at one in flight."""

    answers_per_s: float
    cpu_us: float
    p50_ms: float


async def measure(server: XmppServer, kind: str, messages: int, pings: int) -> Measured:
    """Starts the agent in its own process, asks it, and ends it."""
    (jid, password), (user, user_password) = await server.account(), await server.account()
    arguments = (kind, server.host, str(server.port), str(server.ca_file), jid)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "benchmarks.echo_process", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def say(line: str) -> str:
        stdin.write(f"{line}\n".encode())
        async with asyncio.timeout(30):
            return (await stdout.readline()).decode().strip()

    try:
        if await say(password) != "ready":
            raise RuntimeError(f"{kind} did not start on {server.kind}")
        async with StockClient(user, user_password, server) as client:
            latencies = []
            for number in range(pings):
                begin = time.perf_counter()
                await client.ask(f"ping {number}.", jid)
                latencies.append(time.perf_counter() - begin)
            cpu = float(await say("cpu"))
            duration = await _flood(client, jid, messages)
            cpu = float(await say("cpu")) - cpu
        return Measured(messages / duration, cpu / messages * 1e6, statistics.median(latencies) * 1e3)
    finally:
        stdin.close()
        process.terminate()
        await process.wait()


async def _flood(client: StockClient, jid: str, messages: int) -> float:
    room = asyncio.Semaphore(IN_FLIGHT)

    async def read() -> None:
        for _ in range(messages):
            await client.answer(30)
            room.release()

    reader = asyncio.create_task(read())
    begin = time.perf_counter()
    for number in range(messages):
        await room.acquire()
        client.send(f"message {number}.", jid, thread=f"thread-{number % THREADS}", id=f"m{number}")
    async with asyncio.timeout(120):
        await reader
    return time.perf_counter() - begin


async def side_by_side(server: XmppServer, rounds: int, messages: int, pings: int) -> dict[str, Measured]:
    """The medians over some rounds, in each of which every agent has its turn."""
    results: dict[str, list[Measured]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            results[kind].append(await measure(server, kind, messages, pings))
    return {
        kind: Measured(*(statistics.median(getattr(m, name) for m in found) for name in Measured.__dataclass_fields__))
        for kind, found in results.items()
    }


def report(server: str, measured: dict[str, Measured]) -> list[str]:
    """A table, and whether the targets are reached."""
    raw = measured["slixmpp"]
    lines = [
        f"{server}, archive off",
        f"  {'echo agent':28}{'answers/s':>10}{'ratio':>7}{'CPU µs':>9}{'ratio':>7}{'p50 ms':>9}{'ratio':>7}",
    ]
    for kind, m in measured.items():
        lines.append(
            f"  {kind:28}{m.answers_per_s:10.0f}{m.answers_per_s / raw.answers_per_s:7.2f}"
            f"{m.cpu_us:9.0f}{m.cpu_us / raw.cpu_us:7.2f}{m.p50_ms:9.2f}{m.p50_ms / raw.p50_ms:7.2f}"
        )
    ours = measured["hosted"]
    for name, ratio, target, better in (
        ("answers/s against slixmpp", ours.answers_per_s / raw.answers_per_s, 0.8, "at least"),
        ("agent CPU against slixmpp", ours.cpu_us / raw.cpu_us, 1.5, "at most"),
        ("p50 at one in flight against slixmpp", ours.p50_ms / raw.p50_ms, 2.0, "at most"),
    ):
        reached = ratio >= target if better == "at least" else ratio <= target
        lines.append(f"  {'✓' if reached else '✗'} {name}: {ratio:.2f} (target: {better} {target})")
    return lines


def machine() -> str:
    """Where it was measured."""
    names = ("spade", "slixmpp-multiplatform", "pydantic", "SQLAlchemy")
    cpu = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    parser.add_argument("--only", choices=("prosody", "ejabberd"), help="on this server only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON too")
    chosen = parser.parse_args()
    rounds, messages, pings = (1, 200, 20) if chosen.quick else (3, 3000, 300)
    print(f"{machine()}\n64 messages in flight over 50 threads; medians of {rounds} rounds of {messages} messages\n")
    everything: dict[str, dict[str, object]] = {}
    for name, module in (("prosody", prosody), ("ejabberd", ejabberd)):
        if chosen.only not in (None, name):
            continue
        if not module.installed():
            print(f"{name} is not installed; `make servers` enables this measurement")
            continue
        with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
            make = prosody.prosody if name == "prosody" else ejabberd.ejabberd
            with make(Path(directory), archive=False) as server:
                measured = asyncio.run(side_by_side(server, rounds, messages, pings))
        print("\n".join(report(name, measured)), end="\n\n", flush=True)
        everything[name] = {kind: asdict(m) for kind, m in measured.items()}
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"machine": machine(), "measured": everything}, indent=2))


if __name__ == "__main__":
    main()
