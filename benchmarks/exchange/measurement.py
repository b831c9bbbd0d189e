"""The rounds of all pairs side by side, their medians, and the targets.

Each side of a pair is a process of its own. All run at once and work in turn, so that noise of the machine affects all alike.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from spade_coreason.config import Settings
from tests.support.servers.server import XmppServer

from ..child_process import ChildProcess, child_process
from ..report import Target
from ..speed import RAW, Load, Measured, Round, medians
from .pair import ROUND_S, Place

CONVERSATIONS = 64
PEERS_PYTHON = Path(__file__).parents[2] / "build" / "bench-peers" / "bin" / "python"
HOSTED = "hosted"
HOSTED_STREAM = "hosted, a stream"
LOCAL = "local"
LOCAL_WIRE = "local, over the wire"
A2A = "A2A"
AUTOGEN = "AutoGen"
_ACCOUNTS_EACH = 3


@dataclass(frozen=True)
class Kind:
    """A kind of pair: its module, and the roles of its processes in the order of their start. The last one asks."""

    pair: str
    roles: tuple[str, ...] = ("answerer", "asker")
    packages: tuple[str, ...] = ()
    """Modules that have to be in the environment of `make bench-peers`. Without any, it runs in this environment."""
    options: Mapping[str, Any] = field(default_factory=dict)


KINDS: dict[str, Kind] = {
    RAW: Kind("slixmpp"),
    "SPADE": Kind("SPADE"),
    HOSTED: Kind("hosted"),
    HOSTED_STREAM: Kind("hosted", options={"agent": "spade_coreason.agents.echo:EchoAgent"}),
    LOCAL: Kind("hosted", roles=("asker_and_answerer",)),
    A2A: Kind("A2A", packages=("a2a.server.routes", "httpx", "uvicorn")),
    AUTOGEN: Kind("AutoGen", roles=("host", "answerer", "asker"), packages=("autogen_ext.runtimes.grpc",)),
}
if "peers" in Settings.model_fields:
    KINDS[LOCAL_WIRE] = Kind("hosted", roles=("asker_and_answerer",), options={"settings": {"peers": {"local": "wire"}}})


@dataclass(frozen=True)
class ExchangeRound(Round):
    """One pair in one round. `cpu_us` is the CPU of both sides for an ask, without a host or a server between them."""

    asker_cpu_us: float


@dataclass(frozen=True)
class ExchangeMeasured(Measured):
    """One pair: medians of its rounds. `asker_cpu_us` is the share of the side that asks."""

    asker_cpu_us: float


def find_kinds(wanted: Iterable[str], peers_python: Path = PEERS_PYTHON) -> tuple[list[str], list[str]]:
    """Return the kinds that can run, with slixmpp for the ratios, and a line for each that cannot."""
    found, missing = [RAW], []
    for name in wanted:
        if name == RAW:
            continue
        if (problem := _find_problem(KINDS[name], peers_python)) is None:
            found.append(name)
        else:
            missing.append(f"{name} is not compared: {problem}; `make bench-peers` installs it")
    return found, missing


def _find_problem(kind: Kind, peers_python: Path) -> str | None:
    if not kind.packages:
        return None
    if not peers_python.exists():
        return "it is not installed"
    command = [str(peers_python), "-c", f"import {', '.join(kind.packages)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stderr.strip().splitlines()[-1] if done.returncode else None


async def side_by_side(server: XmppServer, load: Load, kinds: Sequence[str]) -> dict[str, list[ExchangeRound]]:
    """Run the rounds of each kind, in a random order: the same pair twice in a row would find warm caches."""
    async with AsyncExitStack() as stack:
        pairs = [await _Pair.start(name, server, stack) for name in kinds]
        for pair in pairs:
            await pair.round(load)  # loads modules, starts conversations
        results: dict[str, list[ExchangeRound]] = {name: [] for name in kinds}
        generator = random.Random(0)
        for _ in range(load.rounds):
            for pair in generator.sample(pairs, len(pairs)):
                results[pair.name].append(await pair.round(load))
    return results


class _Pair:
    """The processes of one pair. `answerer` is None if the asker's process has both sides."""

    def __init__(self, name: str, asker: ChildProcess, answerer: ChildProcess | None) -> None:
        self.name = name
        self._asker = asker
        self._answerer = answerer

    @classmethod
    async def start(cls, name: str, server: XmppServer, stack: AsyncExitStack) -> _Pair:
        kind, address = KINDS[name], ""
        processes = []
        for role in kind.roles:
            python = str(PEERS_PYTHON) if kind.packages else sys.executable
            child = await stack.enter_async_context(
                child_process("benchmarks.exchange.process", kind.pair, role, python=python)
            )
            place = Place("", address, options=kind.options)
            if not kind.packages:
                accounts = [await server.account() for _ in range(_ACCOUNTS_EACH)]
                place = Place("", address, server.host, server.port, str(server.ca_file), tuple(accounts), kind.options)
            address = await child.ask(f"start {place.to_json()}")
            processes.append(child)
        return cls(name, processes[-1], processes[-2] if len(processes) > 1 else None)

    async def round(self, load: Load) -> ExchangeRound:
        """Ask with 64 in flight, then one by one."""
        answerer_cpu_s = await self._answerer_cpu_s()
        many = await self._ask(load.messages, CONVERSATIONS)
        answerer_cpu_s = await self._answerer_cpu_s() - answerer_cpu_s
        single = await self._ask(load.pings, 1)
        return ExchangeRound(
            answers_per_s=load.messages / many["duration_s"],
            cpu_us=(many["cpu_s"] + answerer_cpu_s) / load.messages * 1e6,
            latencies_ms=single["latencies_ms"],
            asker_cpu_us=many["cpu_s"] / load.messages * 1e6,
        )

    async def _answerer_cpu_s(self) -> float:
        return 0.0 if self._answerer is None else await self._answerer.cpu_s()

    async def _ask(self, count: int, conversations: int) -> dict[str, Any]:
        try:
            figures: dict[str, Any] = json.loads(await self._asker.ask(f"round {count} {conversations}", ROUND_S))
        except RuntimeError as error:
            raise RuntimeError(f"{self.name}: {error}") from error
        return figures


def measure_medians(rounds: Mapping[str, list[ExchangeRound]]) -> dict[str, ExchangeMeasured]:
    """Build the medians of the rounds of each pair, and of its ratios to slixmpp in the same round."""
    return {
        name: ExchangeMeasured(**asdict(measured), asker_cpu_us=median(round_.asker_cpu_us for round_ in rounds[name]))
        for name, measured in medians(rounds).items()
    }


def targets(server: str, rounds: Mapping[str, list[ExchangeRound]]) -> list[Target]:
    """Build the targets of `peers.ask` between hosted agents, against those of the others that were measured."""
    if HOSTED not in rounds:
        return []
    measured = medians(rounds)[HOSTED]
    built = [
        Target(f"peers.ask over {server}, round trips/s against slixmpp", measured.answers_ratio, "at least", 0.6),
        Target(f"peers.ask over {server}, p50 at one in flight against slixmpp", measured.p50_ratio, "at most", 2.2),
    ]
    if A2A in rounds:
        ratio = answers_ratio(rounds[HOSTED], rounds[A2A])
        built.append(Target(f"peers.ask over {server}, round trips/s against A2A", ratio, "at least", 5))
    if AUTOGEN in rounds and server == "ejabberd":
        ratio = answers_ratio(rounds[HOSTED], rounds[AUTOGEN])
        built.append(Target(f"peers.ask over {server}, round trips/s against AutoGen", ratio, "at least", 0.9))
    if LOCAL in rounds:
        ratio = answers_ratio(rounds[LOCAL], rounds[HOSTED])
        built.append(Target(f"peers.ask in one process, round trips/s against {server}", ratio, "at least", 3))
    return built


def answers_ratio(ours: Sequence[Round], others: Sequence[Round]) -> float:
    """Return the median of the ratios of round trips a second within the same round."""
    return median(our.answers_per_s / other.answers_per_s for our, other in zip(ours, others, strict=True))


def lines(measured: Mapping[str, ExchangeMeasured]) -> Iterator[str]:
    """Build a line for each pair, with ratios to slixmpp."""
    yield f"  {'':22}{'64 in flight':>60}{'one in flight':>28}"
    columns = f"{'asks/s':>8}{'ratio':>7}{'asker CPU/ask':>16}{'answerer CPU/ask':>18}{'ratio':>7}"
    yield f"  {'agents':26}{columns}{'p50':>9}{'ratio':>7}{'p99':>10}"
    for name, m in measured.items():
        answerer = f"{m.cpu_us - m.asker_cpu_us:15.0f} µs" if len(KINDS[name].roles) > 1 else " " * 18
        yield (
            f"  {name:26}{m.answers_per_s:8.0f}{m.answers_ratio:7.2f}{m.asker_cpu_us:13.0f} µs{answerer}{m.cpu_ratio:7.2f}"
            f"{m.p50_ms:6.2f} ms{m.p50_ratio:7.2f}{m.p99_ms:7.2f} ms"
        )
