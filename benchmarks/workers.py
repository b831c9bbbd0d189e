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

from spade_coreason.domain.jid import bare_jid
from spade_coreason.storage import AgentRepository, WorkerTerms, open_database
from spade_coreason.storage.backends.database import Database
from tests.support.databases import execute
from tests.support.hosting import write_settings
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer

from .child_process import ChildProcess, child_process
from .opening import Hold, measure as measure_opening
from .processes import read_cpu_s, read_memory_kib
from .report import Target

AGENTS = 8
PEOPLE = 2
ONE, TWO, TWO_FULL = "one worker", "two workers", "two, twice the load"
LOADS = {ONE: (1, 64), TWO: (2, 64), TWO_FULL: (2, 128)}
"""The workers and the messages in flight. Of as many messages as one worker has, two have half each: fewer share a batch."""
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
class Round:
    """A round: answers a second, and the CPU of an answer in the workers, in PostgreSQL and in the XMPP server, in µs.

    Then the transactions that write, and the bytes of PostgreSQL's log (WAL) of an answer.
    """

    answers_per_s: float
    cpu_us: float
    database_us: float
    server_us: float
    commits: float
    wal_bytes: float


@dataclass
class WorkersFigures:
    """The rounds of each of `LOADS`, and the CPU of a batch without and with the fence, in µs, in each round.

    `start_s` is the CPU of the start of a worker with all agents, `start_mib` its memory then (proportional set).
    `stored_bytes` is the growth of the database by an answer. `holds` are the steps of `opening`.
    """

    rounds: dict[str, list[Round]] = field(default_factory=lambda: {name: [] for name in LOADS})
    batch_us: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    start_s: float = 0.0
    start_mib: float = 0.0
    stored_bytes: float = 0.0
    holds: list[Hold] = field(default_factory=list)

    def find_median(self, load: str, name: str) -> float:
        """Return the median of a figure of the rounds."""
        return float(statistics.median(getattr(each, name) for each in self.rounds[load]))

    def find_ratio(self, load: str, name: str) -> float:
        """Return the median of the ratios of a figure in the rounds, against one worker."""
        pairs = zip(self.rounds[ONE], self.rounds[load], strict=True)
        return float(statistics.median(getattr(two, name) / getattr(one, name) for one, two in pairs))

    @property
    def fence_us(self) -> float:
        """The median of the differences of the rounds."""
        return statistics.median(fenced - plain for plain, fenced in zip(*self.batch_us, strict=True))


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
    url: str


@dataclass(frozen=True)
class _Counters:
    """The use so far, in the order and the units of `Round`, but for seconds."""

    values: Sequence[float]

    @classmethod
    async def read(cls, pool: _Pool, server: XmppServer, postgres: Postgres) -> _Counters:
        """Read them."""
        query = (
            "SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS xid, pg_current_wal_lsn() - '0/0' AS wal,"
            " pg_database_size(current_database()) AS stored"
        )
        [row] = await asyncio.to_thread(execute, pool.url, query)
        cpu_s = sum(map(read_cpu_s, pool.pids)), read_cpu_s(postgres.pid), read_cpu_s(server.pid)
        return cls((*cpu_s, int(row["xid"]), float(row["wal"]), row["stored"]))

    def divide_since(self, earlier: _Counters, answers: int) -> list[float]:
        """Return what each of the answers since then has used."""
        return [(now - then) / answers for now, then in zip(self.values, earlier.values, strict=True)]


async def _measure_answers(server: XmppServer, postgres: Postgres, load: WorkersLoad, figures: WorkersFigures) -> None:
    async with AsyncExitStack() as stack:
        people = []
        for _ in range(PEOPLE):
            arguments = (server.host, str(server.port), str(server.ca_file), *await server.account())
            people.append(await stack.enter_async_context(child_process("benchmarks.workers_process", *arguments)))
        pools = [await stack.enter_async_context(_run_workers(server, postgres, count)) for count in (1, 2)]
        [pid] = pools[0].pids
        figures.start_s, figures.start_mib = read_cpu_s(pid), read_memory_kib(pid) / 1024
        for pool in pools:
            await _send(people, pool, load.messages, 128)  # loads modules, starts conversations
        first = await _Counters.read(pools[0], server, postgres)
        for number in range(load.rounds):
            for name, (count, in_flight) in LOADS.items() if number % 2 else reversed(LOADS.items()):
                pool = pools[count - 1]
                before = await _Counters.read(pool, server, postgres)
                duration_s = await _send(people, pool, load.messages, in_flight)
                used = (await _Counters.read(pool, server, postgres)).divide_since(before, load.messages)
                cpu_us = [seconds * 1e6 for seconds in used[:3]]
                figures.rounds[name].append(Round(load.messages / duration_s, *cpu_us, *used[3:5]))
        last = await _Counters.read(pools[0], server, postgres)
        figures.stored_bytes = last.divide_since(first, len(LOADS) * load.rounds * load.messages)[5]


async def _send(people: Sequence[ChildProcess], pool: _Pool, messages: int, in_flight: int) -> float:
    """Let all people ask all agents. Return the seconds until the last answer."""
    command = f"load {messages // len(people)} {in_flight // len(people)} {' '.join(pool.agents)}"
    return max(map(float, await asyncio.gather(*(person.ask(command, _ROUND_S) for person in people))))


@asynccontextmanager
async def _run_workers(server: XmppServer, postgres: Postgres, count: int) -> AsyncIterator[_Pool]:
    """Run workers with agents and a database of their own, each in a process, as `up` runs them."""
    accounts, url = [await server.account() for _ in range(AGENTS)], postgres.url()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        directory = Path(name)
        settings = {
            "server": server.settings,
            "data_dir": str(directory / "data"),
            "storage": {"url": url},
            "conversation": {"max_interactions": 0},
            "agents": [{"jid": jid, "agent": "benchmarks.echo:EchoAgent", "password": password} for jid, password in accounts],
        }
        file = write_settings(directory / "platform.yaml", settings)
        async with AsyncExitStack() as stack:
            pids = [await stack.enter_async_context(_run_worker(file)) for _ in range(count)]
            yield _Pool([bare_jid(jid) for jid, _ in accounts], pids, url)


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

_LABELS = {
    "cpu_us": "CPU of an answer, µs",
    "database_us": "CPU of PostgreSQL, µs",
    "server_us": "CPU of the XMPP server, µs",
    "commits": "transactions of an answer",
    "wal_bytes": "log (WAL) of an answer, bytes",
    "answers_per_s": "answers a second",
}
_DIGITS = {"commits": 2}


def lines(figures: WorkersFigures) -> list[str]:
    """Return the figures for people."""
    rows = ["".join([f"  {'':32}", *(f"{load:>22}" for load in LOADS)])]
    for name, label in _LABELS.items():
        values = (f"{figures.find_median(load, name):22,.{_DIGITS.get(name, 0)}f}" for load in LOADS)
        rows.append("".join([f"  {label:32}", *values]))
    rows += [
        f"  CPU of an answer, two workers with half the load each against one: {figures.find_ratio(TWO, 'cpu_us'):.2f}",
        f"  answers a second of two workers, twice the load, against one: {figures.find_ratio(TWO_FULL, 'answers_per_s'):.2f}",
        f"  an answer takes {figures.stored_bytes:,.0f} bytes in the database",
        f"  a worker with {AGENTS} agents: {figures.start_s:.1f} s of CPU to start, then {figures.start_mib:.0f} MiB",
    ]
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
        Target(
            "CPU of an answer, two workers, twice the load, against one",
            figures.find_ratio(TWO_FULL, "cpu_us"),
            "at most",
            _CPU_RATIO,
        ),
        Target("CPU of the fence of a batch", figures.fence_us, "at most", _FENCE_US, " µs"),
        Target("CPU of the longest hold of a new connection", figures.holds[-1].longest_cpu_ms, "at most", _HOLD_MS, " ms"),
    ]
    if _count_cores() >= CORES:
        found.append(
            Target(
                "answers/s, two workers, twice the load, against one",
                figures.find_ratio(TWO_FULL, "answers_per_s"),
                "at least",
                _ANSWERS_RATIO,
            )
        )
    return found


def _count_cores() -> int:
    return len(os.sched_getaffinity(0))
