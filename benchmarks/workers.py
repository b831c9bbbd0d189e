"""What workers cost on PostgreSQL: the CPU of an answer, the fence of a batch, and a new connection with a large inbox."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.domain.jid import bare_jid
from spade_coreason.storage import AgentRepository, WorkerTerms, open_database
from spade_coreason.storage.backends.database import Database
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.workers import write_settings

from .child_process import ChildProcess, child_process
from .opening import Hold, measure as measure_opening
from .report import Target

AGENTS = 8
PEOPLE = 2
START_S = 60.0
_ROUND_S = 120.0
_CPU_RATIO, _FENCE_US, _HOLD_MS, _ANSWERS_RATIO = 1.15, 110, 50, 1.6
CORES = 8
"""The cores for which there is a target of throughput. On fewer, the server and the people take those of the second worker."""


@dataclass(frozen=True)
class WorkersLoad:
    """The rounds, with so many messages each, the batches of the fence in each round, and the rows of the large inbox."""

    rounds: int
    messages: int
    batches: int
    rows: int


@dataclass(frozen=True)
class WorkersFigures:
    """The CPU of an answer and the answers a second, with one worker and with two, in each round.

    Then the CPU of a batch without and with the fence, in µs, in each round. `holds` are the steps of `opening`.
    """

    cpu_us: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    answers_per_s: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    batch_us: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    holds: list[Hold] = field(default_factory=list)

    @property
    def cpu_ratio(self) -> float:
        """The median of the ratios of the rounds."""
        return _median_ratio(self.cpu_us)

    @property
    def answers_ratio(self) -> float:
        """The median of the ratios of the rounds."""
        return _median_ratio(self.answers_per_s)

    @property
    def fence_us(self) -> float:
        """The median of the differences of the rounds."""
        return statistics.median(fenced - plain for plain, fenced in zip(*self.batch_us, strict=True))


class EchoAgent:
    """An agent that repeats each query."""

    manifest = AgentDefinition.simple("echo")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer."""
        await response.markdown(str(request.payload["query"]))


async def measure(server: XmppServer, postgres: Postgres, load: WorkersLoad) -> WorkersFigures:
    """Measure all three."""
    figures = WorkersFigures()
    await _measure_answers(server, postgres, load, figures)
    await _measure_fence(postgres, load, figures)
    figures.holds.extend(await measure_opening(postgres.url(), load.rows))
    return figures


# Answers


@dataclass(frozen=True)
class _Pool:
    """Workers with agents of their own."""

    agents: Sequence[str]
    pids: Sequence[int]

    def read_cpu_s(self) -> float:
        """Return the seconds of CPU that the workers have used, user and system."""
        return sum(_read_cpu_s(pid) for pid in self.pids)


def _read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _measure_answers(server: XmppServer, postgres: Postgres, load: WorkersLoad, figures: WorkersFigures) -> None:
    async with AsyncExitStack() as stack:
        people = []
        for _ in range(PEOPLE):
            arguments = (server.host, str(server.port), str(server.ca_file), *await server.account())
            people.append(await stack.enter_async_context(child_process("benchmarks.workers_process", *arguments)))
        pools = [await stack.enter_async_context(_run_workers(server, postgres, count)) for count in (1, 2)]
        for pool in pools:
            await _send(people, pool, load.messages)  # loads modules, starts conversations
        for number in range(load.rounds):
            for kind in (0, 1) if number % 2 else (1, 0):
                cpu_s = pools[kind].read_cpu_s()
                duration_s = await _send(people, pools[kind], load.messages)
                figures.cpu_us[kind].append((pools[kind].read_cpu_s() - cpu_s) / load.messages * 1e6)
                figures.answers_per_s[kind].append(load.messages / duration_s)


async def _send(people: Sequence[ChildProcess], pool: _Pool, messages: int) -> float:
    """Let all people ask all agents. Return the seconds until the last answer."""
    command = f"load {messages // len(people)} {' '.join(pool.agents)}"
    return max(map(float, await asyncio.gather(*(person.ask(command, _ROUND_S) for person in people))))


@asynccontextmanager
async def _run_workers(server: XmppServer, postgres: Postgres, count: int) -> AsyncIterator[_Pool]:
    """Run workers with agents and a database of their own, each in a process, as `up` runs them."""
    accounts = [await server.account() for _ in range(AGENTS)]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        directory = Path(name)
        settings = {
            "server": {
                "mode": "external",
                "domain": server.domain,
                "host": server.host,
                "port": server.port,
                "tls": {"ca_file": str(server.ca_file)},
            },
            "data_dir": str(directory / "data"),
            "storage": {"url": postgres.url()},
            "conversation": {"max_interactions": 0},
            "agents": [
                {"jid": jid, "agent": "benchmarks.workers:EchoAgent", "password": password} for jid, password in accounts
            ],
        }
        file = write_settings(directory / "platform.yaml", settings)
        async with AsyncExitStack() as stack:
            pids = [await stack.enter_async_context(_run_worker(file)) for _ in range(count)]
            yield _Pool([bare_jid(jid) for jid, _ in accounts], pids)


@asynccontextmanager
async def _run_worker(configuration: Path) -> AsyncIterator[int]:
    """Run a worker. It has its share when this returns."""
    command = (sys.executable, "-m", "spade_coreason", "up", "-c", str(configuration))
    log = configuration.with_suffix(".log")
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            while not (line := await process.stdout.readline()).startswith(b"Ready."):
                if not line:
                    raise RuntimeError(f"a worker did not start: {log.read_text()[-2000:]}")
        yield process.pid
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


# The fence


async def _measure_fence(postgres: Postgres, load: WorkersLoad, figures: WorkersFigures) -> None:
    databases = [
        await open_database(postgres.url(), "full", terms=terms) for terms in (None, WorkerTerms("one", lease_s=3600.0))
    ]
    try:
        repositories = [AgentRepository(database, "echo@localhost") for database in databases]
        for repository in repositories:
            await repository.inbox.open()
        for number in range(-1, load.rounds):
            for kind in (0, 1) if number % 2 else (1, 0):
                cpu_us = await _measure_batches(databases[kind], repositories[kind], number, load.batches)
                if number >= 0:
                    figures.batch_us[kind].append(cpu_us)
    finally:
        for database in databases:
            await database.close()


async def _measure_batches(database: Database, repository: AgentRepository, number: int, batches: int) -> float:
    """Return the CPU in µs of a batch that stores one request."""
    begin = time.process_time()
    for index in range(batches):
        key = f"{number:8}{index:8}".encode()
        await repository.inbox.receive(key, "alice@localhost", json.dumps({"query": "hello"}), datetime.now(UTC))[1]
    return (time.process_time() - begin) / batches * 1e6


# The report


def lines(figures: WorkersFigures) -> list[str]:
    """Return the figures for people."""
    rows = [f"  {'':32}{'one worker':>12}{'two workers':>12}"]
    for name, (one, two) in (("CPU of an answer, µs", figures.cpu_us), ("answers a second", figures.answers_per_s)):
        rows.append(f"  {name:32}{statistics.median(one):12,.0f}{statistics.median(two):12,.0f}")
    rows.append(f"  answers a second of two workers against one: {figures.answers_ratio:.2f}")
    if _count_cores() < CORES:
        rows.append(
            f"  There is no target for that on {_count_cores()} cores. To see if it is {_ANSWERS_RATIO}, run"
            f" `python -m benchmarks --only workers --server ejabberd` on {CORES}."
        )
    plain, fenced = map(statistics.median, figures.batch_us)
    rows.append(f"  CPU of a batch with one request: {plain:.0f} µs without the fence, {fenced:.0f} µs with it")
    return [*rows, *(f"  {hold}" for hold in figures.holds)]


def targets(figures: WorkersFigures) -> list[Target]:
    """Return the targets. That of throughput needs eight cores."""
    found = [
        Target("CPU of an answer, two workers against one", figures.cpu_ratio, "at most", _CPU_RATIO),
        Target("CPU of the fence of a batch", figures.fence_us, "at most", _FENCE_US, " µs"),
        Target("CPU of the longest hold of a new connection", figures.holds[-1].longest_cpu_ms, "at most", _HOLD_MS, " ms"),
    ]
    if _count_cores() >= CORES:
        found.append(Target("answers/s, two workers against one", figures.answers_ratio, "at least", _ANSWERS_RATIO))
    return found


def _count_cores() -> int:
    return len(os.sched_getaffinity(0))


def _median_ratio(pairs: tuple[Sequence[float], Sequence[float]]) -> float:
    return statistics.median(two / one for one, two in zip(*pairs, strict=True))
