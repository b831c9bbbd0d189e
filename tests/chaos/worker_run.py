"""Several workers that are killed, frozen, cut off and restarted while people ask: each question has one answer.

Each worker is on a machine of its own, as far as it can tell: with its own directories, and a tunnel each to PostgreSQL and to
the XMPP server. The people are those of `kill_run`. They connect to the server directly, and never ask twice.

Triggers in the database record which worker had the lease of an agent when one of its turns was stored, and each turn stores
which process ran it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree.ElementTree import Element

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.exceptions import LeaseLostError
from spade_coreason.storage import open_database
from spade_coreason.storage.audit import list_audited_agents, verify
from tests.chaos.attacks import BODY
from tests.chaos.errands import APPROVERS, KINDS, PAY, REMIND, Errands, approve, do_errand, is_errand
from tests.chaos.kill_run import QUESTION, Asker, KillTally, count_late
from tests.support.databases import execute
from tests.support.hosting import PlatformProcess, Tunnel
from tests.support.line_log import append_line, read_lines
from tests.support.next_versions import make_next_version
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres, standby_of
from tests.support.servers.server import XmppServer
from tests.support.wait import ANSWER_S, TIMEOUT_S, eventually
from tests.support.workers import Workers, run_workers

_ASKERS = 4
_QUESTIONS_PER_S = 60.0
_MAX_OPEN = 600
"""With so many open questions people wait: a busy machine answers more slowly than they ask."""
_QUESTIONS_PER_ERRAND = 11
"""It has no divisor in common with the numbers of people and agents, so that all of them have errands."""
RESTART, UPGRADE = "rolling restart", "rolling upgrade"
"""The faults in which each worker says goodbye: nothing is sent twice."""
DATABASE_SPLIT, SERVER_SPLIT = "split from PostgreSQL", "split from the XMPP server"
REPLACING = ("kill -9", "SIGSTOP", DATABASE_SPLIT, SERVER_SPLIT)
"""The faults after which others have to find out that a worker is gone."""
_EXIT_CODES = (0, -signal.SIGKILL, LeaseLostError.exit_code)
"""The exit codes of a worker that was stopped or killed, or that has lost its lease."""
_STARTS = 5
_PID = "pid"
_FENCED = "another worker serves the agents of this one now"
_RECORD_WRITES = """
    CREATE TABLE chaos_writes (agent text NOT NULL, pid text NOT NULL, owner text);
    CREATE FUNCTION chaos_record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO chaos_writes SELECT NEW.agent, NEW.value,
            (SELECT workers.name FROM leases JOIN workers ON workers.id = leases.worker WHERE leases.agent = NEW.agent);
        RETURN NEW;
    END $$;
    CREATE TRIGGER chaos_record AFTER INSERT OR UPDATE ON variables FOR EACH ROW WHEN (NEW.name = 'pid')
        EXECUTE FUNCTION chaos_record();
"""


class WorkingAgent:
    """An agent that repeats each question after a durable step, which it logs, and stores the process of each turn.

    It also does errands; `approver` is the person whom it asks about them.
    """

    def __init__(self, log: str, approver: str) -> None:
        self.manifest = AgentDefinition.simple("working")
        self._log = Path(log)
        self._approver = approver

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = str(request.payload["query"])
        if is_errand(query):
            return await do_errand(request, session, response, self._approver, _find_payments(self._log))
        result = await session.run_once("step", self._work, query)
        append_line(self._log, "ends", query, result)
        await session.store(_PID, f"{os.getpid()} {uuid4().hex}", scope="conversation")
        if query.endswith(("0", "3", "6")):
            await response.audit("working", "answer", query, success=True)
        await response.markdown(query)

    async def _work(self, query: str, idempotency_key: str) -> str:
        append_line(self._log, "begins", query, idempotency_key)
        return uuid4().hex


def _find_payments(log: Path) -> Path:
    return log.with_name("payments.log")


@dataclass
class WorkerTally(KillTally):
    """The counts of one run."""

    workers: int = 0
    agents: int = 0
    lease_s: float = 0.0
    failed: int = 0
    """Questions whose answer is that the turn has failed, or that it ran during three crashes and does not run again."""
    notices: int = 0
    """Answers that tell of a failure, and are no answers to a question."""
    sent_twice: int = 0
    """Answers that came again under the same id. A killed worker may send one twice."""
    overtaken: int = 0
    """Turns that were stored behind that of a question which was asked later and came to the inbox later.

    One that was asked earlier and came later is from the archive: it goes before those that wait for that.
    """
    stored_twice: int = 0
    """Questions with two stored turns."""
    stale: int = 0
    """Turns that were stored by a worker that did not have the lease of the agent."""
    fenced: int = 0
    """Writes of workers without a lease, which the database refused."""
    repeated_steps: int = 0
    """Durable steps that ran again because they were cut off."""
    differing_steps: int = 0
    """Durable steps with two results or two idempotency keys."""
    bad_trails: int = 0
    """Audit trails that do not verify."""
    errands: Errands = field(default_factory=Errands)
    wrong_errands: int = 0
    """Errands that were lost, ended or asked about twice, or paid twice or too early."""
    bad_ends: int = 0
    """Ends of workers with another exit code than one of `_EXIT_CODES`."""
    takeovers_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The seconds from each fault until an agent of the worker that it hit answered a question, by the fault."""

    @property
    def cells(self) -> dict[str, object]:
        """The columns of the table with their values."""
        return {
            "server": self.server,
            "workers": self.workers,
            "agents": self.agents,
            "lease": f"{self.lease_s:g} s",
            "faults": ", ".join(f"{count} x {name}" for name, count in sorted(self.faults.items())),
            "asked": self.asked,
            "answered": self.answered,
            "lost": self.lost,
            "refused": self.refused,
            "under two ids": self.twice,
            "crossed": self.crossed,
            "turns out of order": self.turns_out_of_order,
            "answers out of order": self.out_of_order,
            "failed": self.failed,
            "notices": self.notices,
            "sent twice": self.sent_twice,
            "stored twice": self.stored_twice,
            "stale writes": self.stale,
            "fenced writes": self.fenced,
            "steps again": self.repeated_steps,
            "steps that differ": self.differing_steps,
            "bad trails": self.bad_trails,
            "due times": self.errands.count(REMIND),
            "approvals": self.errands.count(PAY),
            "uncertain": len(self.errands.uncertain),
            "wrong errands": self.wrong_errands,
            "takeovers: p50, p95, worst": self.describe_times(REPLACING),
            "restarts: p50, p95, worst": self.describe_times((RESTART, UPGRADE)),
        }

    def describe_times(self, faults: Iterable[str]) -> str:
        """Describe the times of some faults in words."""
        times_s = [time_s for name in faults for time_s in self.takeovers_s.get(name, ())]
        return _describe(times_s) if times_s else "none"

    @property
    def row(self) -> tuple[str, ...]:
        return tuple(map(str, self.cells.values()))

    @property
    def problems(self) -> list[str]:
        wrong = ["lost", "under two ids", "crossed", "stored twice", "stale writes", "steps that differ", "bad trails"]
        wrong.append("wrong errands")
        if self.server != "ejabberd":  # it does not keep the order of what it delivers again
            wrong.append("turns out of order")
        if self.faults.keys() <= {RESTART, UPGRADE}:
            wrong.append("sent twice")
        counts = {name: self.cells[name] for name in wrong} | {
            "turns before that of an earlier request": self.overtaken,
            "ends by an unexpected exit code": self.bad_ends,
        }
        return [f"{count} {name}" for name, count in counts.items() if count]


def _describe(times_s: Iterable[float]) -> str:
    ordered = sorted(times_s)
    return f"{len(ordered)}: {_percentile(ordered, 50):.1f}, {_percentile(ordered, 95):.1f}, {ordered[-1]:.1f} s"


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class TimedAsker(Asker):
    """A person of whose questions some are timed."""

    tally: WorkerTally

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._awaited: dict[str, asyncio.Future[float]] = {}

    def time(self, agent: str, number: int) -> asyncio.Future[float]:
        """Ask an agent now; the result is the time of the first answer by the clock of the event loop."""
        found = self._awaited[f"{self.name} {agent} {number}"] = asyncio.get_running_loop().create_future()
        self.ask(agent, number)
        return found

    def give_errand(self, agent: str, kind: str, number: int) -> None:
        """Give an agent an errand, once."""
        errand = f"{kind} {self.name} {agent} {number}"
        self.tally.errands.given.add(errand)
        self.send(errand, agent)

    def on_message(self, message: Element) -> None:
        text, ident, is_error = message.findtext(BODY) or "", message.get("id", ""), message.get("type") == "error"
        if not self.tally.errands.note(text, ident, is_error) and not is_error:
            if text and not QUESTION.fullmatch(text):
                print(f"{message.get('from')} says: {text}")
                self.tally.notices += 1
            if (found := self._awaited.pop(text, None)) is not None:
                found.set_result(asyncio.get_running_loop().time())
            if ident in self._answer_ids.get(text, ()):
                print(f"sent twice: {text} as {ident}")
                self.tally.sent_twice += 1
        super().on_message(message)


@dataclass(eq=False)
class Worker:
    """A worker on a machine of its own."""

    process: PlatformProcess
    to_database: Tunnel
    to_server: Tunnel
    ends: Counter[int] = field(default_factory=Counter)
    """The numbers of its ends, by exit code."""

    async def start(self) -> None:
        """Start the process, again if it ends before it is ready, as a service manager does.

        On a busy machine PostgreSQL may keep it waiting for longer than a short lease.
        """
        for attempt in range(1, _STARTS + 1):
            try:
                return await self.process.start()
            except AssertionError as error:
                print(f"did not start: {error}")
                if attempt == _STARTS:
                    raise

    async def restart(self, number: signal.Signals, program: Path | None = None) -> None:
        """End the process by a signal, and start it again: from now on that of another copy of the package, if one is given."""
        self.ends[await self.process.signal(number)] += 1
        self.process.program = program or self.process.program
        await self.start()

    async def start_again_if_ended(self) -> None:
        """Start the process again if it has ended, as a service manager does."""
        if self.process.process is None or self.process.process.poll() is not None:
            self.ends[await self.process.wait()] += 1
            await self.start()


@dataclass(eq=False)
class Scene:
    """The parts that a fault may break."""

    server: XmppServer
    postgres: Postgres
    shared: Workers
    workers: Sequence[Worker]
    rng: random.Random
    lease_s: float
    tally: WorkerTally
    askers: Sequence[TimedAsker]
    directory: Path
    stack: ExitStack
    """It ends the further servers."""
    rounds: int = 0
    upgrades: int = 0
    broken: set[Worker] = field(default_factory=set)
    """The workers that a fault ends and starts."""

    def choose(self) -> Worker:
        """Choose a worker to break."""
        worker = self.rng.choice(self.workers)
        self.broken.add(worker)
        return worker

    async def supervise(self) -> None:
        """Start the other workers again if they end, as a service manager does, until cancelled.

        On a busy machine a short lease is lost without a fault.
        """
        while True:
            for worker in self.workers:
                if worker not in self.broken:
                    await worker.start_again_if_ended()
            await asyncio.sleep(0.2)

    def find_agents(self, worker: Worker) -> list[str]:
        """Return the agents that a worker serves."""
        found = f"SELECT agent FROM leases JOIN workers ON workers.id = worker WHERE name LIKE '%:{worker.process.pid}'"
        return [row["agent"] for row in execute(self.shared.url, found)]

    def watch(self, name: str, agents: Sequence[str]) -> asyncio.Task[None]:
        """Ask agents now that were just cut off, and note how long they take to answer."""
        self.rounds += 1
        begun_at = asyncio.get_running_loop().time()
        found = [self.rng.choice(self.askers).time(agent, 10**6 + self.rounds) for agent in agents]

        async def note() -> None:
            with suppress(TimeoutError):  # a server may return a question; whether one is lost is counted at the end
                for answer in asyncio.as_completed(found, timeout=TIMEOUT_S):
                    self.tally.takeovers_s[name].append(await answer - begun_at)

        return asyncio.create_task(note())

    async def wait_until_balanced(self) -> None:
        """Wait until all agents are served, in even shares."""
        share = -(-len(self.shared.agents) // len(self.workers))

        def is_balanced() -> bool:
            shares = self.shared.count_shares()
            return sum(shares) == len(self.shared.agents) and len(shares) == len(self.workers) and shares[-1] <= share

        while True:
            try:
                await eventually(is_balanced, ANSWER_S)  # a hundred agents log in again, on a machine that may be busy
                return
            except OSError:  # TimeoutError is an OSError
                print(f"not balanced: {self.shared.count_shares()}")
                raise


async def _kill(scene: Scene) -> None:
    """Kill a worker; its machine starts it again once others have taken over."""
    worker = scene.choose()
    agents = scene.find_agents(worker)
    worker.ends[await worker.process.signal(signal.SIGKILL)] += 1
    await scene.watch("kill -9", agents)
    await worker.start()


async def _kill_and_start(scene: Scene) -> None:
    """Kill a worker; it starts again at once, and replaces itself."""
    await scene.choose().restart(signal.SIGKILL)


async def _freeze(scene: Scene) -> None:
    """Freeze a worker for longer than its lease."""
    worker = scene.choose()
    agents, process = scene.find_agents(worker), worker.process.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    watch = scene.watch("SIGSTOP", agents)
    await asyncio.sleep(scene.lease_s * scene.rng.uniform(1.5, 3.0))
    process.send_signal(signal.SIGCONT)
    await watch
    await _wait_for_end(worker, scene)


async def _split(scene: Scene, name: str, choose_tunnel: Callable[[Worker], Tunnel]) -> None:
    """Cut a worker off for longer than its lease, and until others serve its agents."""
    worker = scene.choose()
    agents, tunnel = scene.find_agents(worker), choose_tunnel(worker)
    tunnel.dropped_direction = scene.rng.choice(("to the server", "to the agent", "both"))
    watch = scene.watch(name, agents)
    await asyncio.sleep(scene.lease_s * scene.rng.uniform(1.5, 3.0))
    await watch
    tunnel.cut()
    tunnel.dropped_direction = ""
    if tunnel is worker.to_database:
        await _wait_for_end(worker, scene)


async def _wait_for_end(worker: Worker, scene: Scene) -> None:
    """Wait until a worker that was replaced has ended, and start it again. If nobody has replaced it, it goes on."""
    process = worker.process.process
    assert process is not None
    await eventually(lambda: process.poll() is not None or bool(scene.find_agents(worker)))
    await worker.start_again_if_ended()


async def _upgrade_all(scene: Scene) -> None:
    """Restart the workers one after the other with a next version. The first one migrates the database beside the others."""
    scene.upgrades += 1
    directory = scene.directory / f"version{scene.upgrades}"
    await _restart_each(scene, UPGRADE, await asyncio.to_thread(make_next_version, directory, scene.upgrades))


async def _restart_each(scene: Scene, name: str = RESTART, program: Path | None = None) -> None:
    """Restart the workers one after the other."""
    for worker in scene.workers:
        scene.broken = {worker}
        agents = scene.find_agents(worker)
        stop = asyncio.create_task(worker.restart(signal.SIGTERM, program))
        await scene.watch(name, agents)
        await stop
        scene.broken.clear()
        await scene.wait_until_balanced()


async def _restart_postgres(scene: Scene) -> None:
    """Restart PostgreSQL."""
    watch = scene.watch("PostgreSQL restarted", scene.shared.agents)
    await asyncio.to_thread(scene.postgres.stop)
    await asyncio.to_thread(scene.postgres.start)
    await watch


async def _fail_over(scene: Scene, name: str, fail: Callable[[Postgres], object]) -> None:
    """Let a standby take the place of PostgreSQL, at the same address. Open connections stay with the server that fails.

    New ones lead to the standby before it takes writes.
    """
    old = scene.postgres
    new = await asyncio.to_thread(scene.stack.enter_context, standby_of(old))
    watch = scene.watch(name, scene.shared.agents)
    await asyncio.to_thread(fail, old)
    for worker in scene.workers:
        worker.to_database.target = new
    await asyncio.sleep(scene.rng.uniform(0.0, 2.0))
    await asyncio.to_thread(new.promote)
    scene.postgres, scene.shared.url = new, scene.shared.url.replace(f":{old.port}/", f":{new.port}/")
    await watch


FAILOVERS: dict[str, Callable[[Postgres], object]] = {
    "failover, killed": Postgres.kill,
    "failover, frozen": Postgres.freeze,
    "failover, read-only": lambda server: server.set("default_transaction_read_only", "on"),
}
FAULTS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "kill -9": _kill,
    "kill -9 and start": _kill_and_start,
    "SIGSTOP": _freeze,
    DATABASE_SPLIT: lambda scene: _split(scene, DATABASE_SPLIT, lambda worker: worker.to_database),
    SERVER_SPLIT: lambda scene: _split(scene, SERVER_SPLIT, lambda worker: worker.to_server),
    RESTART: _restart_each,
    UPGRADE: _upgrade_all,
    "PostgreSQL restarted": _restart_postgres,
    **{name: partial(_fail_over, name=name, fail=fail) for name, fail in FAILOVERS.items()},
}
COLUMNS = tuple(WorkerTally("").cells)


async def run_worker_chaos(
    server: XmppServer,
    postgres: Postgres,
    directory: Path,
    faults: Sequence[str],
    seed: int,
    *,
    workers: int = 2,
    agents: int = 6,
    lease_s: float = 2.0,
    limit_s: float = math.inf,
    questions_per_s: float = _QUESTIONS_PER_S,
) -> WorkerTally:
    """Break something again and again while people ask; then wait for the last answers. `server` and `postgres` run.

    After `limit_s` seconds no further fault begins.
    """
    ends_at = time.monotonic() + limit_s
    rng = random.Random(seed)
    tally = WorkerTally(server.kind, workers=workers, agents=agents, lease_s=lease_s)
    log = directory / "steps.log"
    async with AsyncExitStack() as stack:
        approver = await stack.enter_async_context(StockClient(*await server.account(), server))
        shared = await stack.enter_async_context(
            run_workers(
                server,
                postgres,
                directory,
                agents=agents,
                lease_s=lease_s,
                agent="tests.chaos.worker_run:WorkingAgent",
                options={"log": str(log), "approver": approver.jid},
                further={"access": {"groups": {APPROVERS: [approver.jid]}}, "notifications": {"per_day": 1_000_000}},
            )
        )
        running: list[Worker] = []
        for number in range(workers):
            to_database = await stack.enter_async_context(Tunnel(postgres))
            to_server = await stack.enter_async_context(Tunnel(server))
            file = shared.move(f"worker{number}", database_port=to_database.port, server_port=to_server.port)
            process = PlatformProcess(file, is_strict=False)
            shared.processes.append(process)
            await process.start()
            if not number:
                execute(shared.url, _RECORD_WRITES)
            running.append(Worker(process, to_database, to_server))
        askers = []
        for number in range(_ASKERS):
            asker = TimedAsker(f"q{number}", await server.account(), server, server.port, tally)
            await asker.connection.open()
            stack.push_async_callback(asker.close)
            askers.append(asker)
        servers = stack.enter_context(ExitStack())
        scene = Scene(server, postgres, shared, running, rng, lease_s, tally, askers, directory, servers)
        await scene.wait_until_balanced()
        approving = asyncio.create_task(approve(approver, tally.errands))
        asking, supervising = (
            asyncio.create_task(_ask(askers, shared.agents, 1 / questions_per_s)),
            asyncio.create_task(scene.supervise()),
        )
        try:
            for name in faults:
                if time.monotonic() > ends_at:
                    break
                await asyncio.sleep(rng.uniform(0.0, lease_s))  # faults come at any moment of a turn and of a lease
                await FAULTS[name](scene)
                scene.broken.clear()
                tally.faults[name] = tally.faults.get(name, 0) + 1
                await scene.wait_until_balanced()
        finally:
            asking.cancel()
            supervising.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                while tally.errands.open or any(asker.unanswered for asker in askers):  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.05)
        assert not approving.done()
        approving.cancel()
        for row in execute(shared.url, "SELECT * FROM inbox WHERE state = 0"):
            print(f"open: {row}")
        for worker in running:
            worker.ends[await worker.process.signal(signal.SIGTERM)] += 1
            print(f"ends by exit code: {dict(worker.ends)}")
            tally.bad_ends += sum(count for code, count in worker.ends.items() if code not in _EXIT_CODES)
        failed = await _count_stored(shared.url, askers, tally, seed)
    for problem in tally.errands.find_problems(failed, _find_payments(log)):
        print(problem)
        tally.wrong_errands += 1
    _count_logged(directory, log, tally)
    for name, times_s in sorted(tally.takeovers_s.items()):
        print(f"{name}: {_describe(times_s)}")
    return tally


async def _ask(askers: Sequence[TimedAsker], agents: Sequence[str], pause_s: float) -> None:
    """Let each asker ask each agent at an even rate, whether it has answered or not, until cancelled."""
    number, count = 0, itertools.count(1)
    while True:
        number += 1
        for agent in agents:
            for asker in askers:
                asker.ask(agent, number)
                errand, rest = divmod(next(count), _QUESTIONS_PER_ERRAND)
                if not rest:
                    asker.give_errand(agent, KINDS[errand % len(KINDS)], number)
                await asyncio.sleep(pause_s)
                while sum(len(asker.unanswered) for asker in askers) > _MAX_OPEN:  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(pause_s)


async def _count_stored(url: str, askers: Sequence[Asker], tally: WorkerTally, seed: int) -> set[str]:
    """Compare the answers with what is stored. Return the queries whose turns have failed."""
    turns: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    crashed = execute(url, "SELECT request FROM crashed_requests WHERE failed_at IS NOT NULL")
    failed = {str(json.loads(row["request"])["payload"]["query"]) for row in crashed}
    received: dict[tuple[str, str, int], int] = {}
    joined = "interactions LEFT JOIN inbox ON inbox.interaction = interactions.id"  # a subquery would read all of it for each
    for row in execute(
        url, f"SELECT interactions.id, interactions.body, inbox.id AS received FROM {joined} ORDER BY interactions.id"
    ):
        body = json.loads(row["body"])
        text = str((body["input"] or {}).get("query", ""))
        if "error" in (body.get("output") or {}):
            failed.add(text)
        if QUESTION.fullmatch(text):
            name, agent, number = text.split()
            if int(number) in turns[name, agent]:
                print(f"stored twice: {text} as {row['id']} {row['body']}")
            turns[name, agent].append(int(number))
            received[name, agent, int(number)] = row["received"]
    for text in (text for asker in askers for text in asker.unanswered):
        tally.failed += text in failed
        tally.lost += text not in failed
        if text not in failed:
            print(f"lost: {text}")
    tally.stored_twice = sum(len(order) - len(set(order)) for order in turns.values())
    for asker in askers:
        for agent, answered in asker.answers.items():
            order = [number for number in turns[asker.name, agent] if number < 10**6]
            tally.turns_out_of_order += count_late(order)
            rows = [received[asker.name, agent, number] for number in order]
            tally.overtaken += _count_overtaken(list(zip(order, rows, strict=True)))
            for (before, before_row), (late, late_row) in pairwise(zip(order, rows, strict=True)):
                if late < before or late_row < before_row:
                    turn = f"{asker.name} {agent} {late} (row {late_row})"
                    print(f"out of order with seed {seed}: {turn} behind {before} (row {before_row})")
            tally.out_of_order += count_late([order.index(number) for number in answered if number < 10**6])
    for row in execute(url, "SELECT pid, owner FROM chaos_writes"):
        tally.stale += row["owner"] is None or row["owner"].rpartition(":")[2] != json.loads(row["pid"]).split()[0]
    database = await open_database(url, "off")
    try:
        trails = await database.read(
            lambda connection: [verify(connection, agent) for agent in list_audited_agents(connection)]
        )
    finally:
        await database.close()
    for trail in trails:
        tally.bad_trails += bool(trail.problems)
        for problem in trail.problems:
            print(problem)
    return failed


def _count_overtaken(turns: Sequence[tuple[int, int]]) -> int:
    """Count the turns, each a number and a row, behind one of which both are larger."""
    return sum(
        any(before_number > number and before_row > row for before_number, before_row in turns[:place])
        for place, (number, row) in enumerate(turns)
    )


def _count_logged(directory: Path, log: Path, tally: WorkerTally) -> None:
    tally.fenced = sum(file.read_text().count(_FENCED) for file in directory.glob("*.errors"))
    keys: defaultdict[str, list[str]] = defaultdict(list)
    results: defaultdict[str, set[str]] = defaultdict(set)
    for phase, query, value in read_lines(log):
        if phase == "begins":
            keys[query].append(value)
        else:
            results[query].add(value)
    tally.repeated_steps = sum(len(of_query) - 1 for of_query in keys.values())
    tally.differing_steps = sum(len(found) > 1 for found in results.values())
    tally.differing_steps += sum(len(set(of_query)) > 1 for of_query in keys.values())


def list_faults(counts: dict[str, int], rng: random.Random) -> list[str]:
    """Return the names of faults, each as often as counted, in a random order."""
    names = [name for name, count in counts.items() for _ in range(count)]
    rng.shuffle(names)
    return names
