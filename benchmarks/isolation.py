"""Measure answers of a platform while an agent in another one does its worst: `python -m benchmarks.isolation [--rounds N]`.

Two platforms share a Prosody. A person asks an echo agent of the first one, one question at a time. In each round it is quiet
first. Then the agent of the second platform does one thing after another, each for two seconds. The figures are medians of
the rounds, and the ratio is that of a round's p99 to its quiet one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from tests.support.program import run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.prosody import prosody
from tests.support.servers.server import XmppServer

ROOT = Path(__file__).parents[1]
SECONDS = 2.0
_WARM_UP_S = 1.0
_MIB = 1 << 20
QUIET = "quiet"
WAYS = {
    "block": "blocks: time.sleep",
    "burn": "burns a core",
    "burn_all": "burns all cores",
    "allocate": "allocates 1 GiB, again and again",
}


class WildAgent:
    """Do what the request names, for some seconds."""

    manifest = AgentDefinition.simple("wild")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Block the event loop of this platform, and then answer."""
        _do(request.payload["query"])
        await response.markdown("done")


def _do(way: str) -> None:
    end = time.monotonic() + SECONDS
    hoard: list[bytes] = []
    burning = []
    if way == "burn_all":
        burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    if way in ("block", "burn_all"):
        time.sleep(SECONDS)
    while time.monotonic() < end:
        if way == "allocate":
            if len(hoard) == 1024:
                hoard.clear()
            hoard.append(b"x" * _MIB)
    for process in burning:
        process.kill()
        process.wait()


async def _measure(person: StockClient, echo: str, until: asyncio.Future[object]) -> tuple[float, float]:
    """Return the p50 and the p99 of the answers until then, in milliseconds."""
    waits_ms: list[float] = []
    while not until.done():
        text = f"hello {len(waits_ms)}"
        begin = time.perf_counter()
        assert await person.ask(text, echo) == text
        waits_ms.append((time.perf_counter() - begin) * 1000)
    await until  # it raises what has failed
    return statistics.median(waits_ms), statistics.quantiles(waits_ms, n=100)[-1]


async def _let_do(person: StockClient, way: str, wild: str) -> None:
    assert await person.ask(way, wild) == "done"


async def measure(server: XmppServer, directory: Path, rounds: int) -> Mapping[str, list[tuple[float, float]]]:
    """Return p50 and p99 of each round, when it is quiet and for each of `WAYS`."""
    agents = {"echo": "spade_coreason.agents.echo:EchoAgent", "wild": "benchmarks.isolation:WildAgent"}
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in (QUIET, *WAYS)}
    with ExitStack() as stack:
        for name, agent in agents.items():
            jid, password = await server.account(name)
            settings = {
                "server": server.settings,
                "data_dir": str(directory / name),
                "conversation": {"max_interactions": 0},
                "agents": [{"jid": jid, "agent": agent, "password": password}],
            }
            file = directory / f"{name}.yaml"
            file.write_text(json.dumps(settings))
            stack.enter_context(run_in_background("up", "-c", str(file), cwd=ROOT, until="Ready"))
        echo, wild = (f"{name}@{server.domain}" for name in agents)
        async with (
            StockClient(*await server.account(), server) as person,
            StockClient(*await server.account(), server) as other,
        ):
            await _measure(person, echo, asyncio.ensure_future(asyncio.sleep(_WARM_UP_S)))
            for _ in range(rounds):
                for name, measured in figures.items():
                    work = asyncio.sleep(SECONDS) if name == QUIET else _let_do(other, name, wild)
                    measured.append(await _measure(person, echo, asyncio.ensure_future(work)))
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of all")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="isolation-") as name, prosody(Path(name) / "server", tuned=True) as server:
        figures = asyncio.run(measure(server, Path(name), rounds))
    print(f"{'the agent in the other platform':<36}{'p50, ms':>10}{'p99, ms':>10}{'p99 to quiet':>14}")
    for way, measured in figures.items():
        p50, p99 = (statistics.median(values) for values in zip(*measured, strict=True))
        ratio = statistics.median(own / quiet for (_, own), (_, quiet) in zip(measured, figures[QUIET], strict=True))
        print(f"{WAYS.get(way, way):<36}{p50:>10.2f}{p99:>10.2f}{ratio:>14.2f}")


if __name__ == "__main__":
    main()
