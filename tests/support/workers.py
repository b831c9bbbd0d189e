"""Workers in processes of their own, which share the agents of one database, and people who ask these agents."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import pytest
from sqlalchemy import make_url

from spade_coreason import ResponseHandler, Session
from spade_coreason.contracts import AgentDefinition, AgentRequest
from spade_coreason.domain.jid import bare_jid
from spade_coreason.exceptions import LeaseLostError
from tests.support.databases import SQLITE, execute
from tests.support.hosting import PlatformProcess, run_platform, write_settings
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import ANSWER_S, eventually


class WhereAgent:
    """An agent that answers with the number of its turn and the id of its process.

    It dies if it is asked to "die", and a "long" turn ends only when it runs again.
    """

    manifest = AgentDefinition.simple("where")

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        if request.payload["query"] == "die":
            os._exit(9)
        if request.payload["query"] == "long":
            await asyncio.sleep(1 if request.metadata.get("redelivered") else ANSWER_S)
        count = await session.get("count", 0) + 1
        await session.store("count", count, scope="conversation")
        await response.markdown(f"{count} {os.getpid()}")


class Workers:
    """Workers in processes of their own, with one configuration."""

    def __init__(self, configuration: Path, url: str, agents: Sequence[str]) -> None:
        self._configuration = configuration
        self.url = url
        self.agents = agents
        self.processes: list[PlatformProcess] = []

    async def start(
        self, configuration: Path | None = None, program: Path | None = None, *, clock_error_s: float = 0
    ) -> PlatformProcess:
        """Start another worker. One with a configuration of its own does not wait until its agents are online.

        `program` is the directory with another copy of the package.
        """
        worker = PlatformProcess(
            configuration or self._configuration,
            is_strict=configuration is None,
            program=program,
            clock_error_s=clock_error_s,
        )
        self.processes.append(worker)
        await worker.start()
        return worker

    @property
    def settings(self) -> dict[str, Any]:
        """The common configuration."""
        return dict(json.loads(self._configuration.read_text()))

    def configure(self, name: str, **sections: Any) -> Path:
        """Write the configuration of a worker with a data directory and some sections of its own. Return its file."""
        settings = self.settings
        own = {"data_dir": f"{settings['data_dir']}-{name}", **sections}
        return write_settings(self._configuration.with_name(f"{name}.yaml"), settings | own)

    def move(self, name: str, *, database_port: int, server_port: int) -> Path:
        """Write the configuration of a worker on a machine of its own, with networks of its own. Return its file."""
        url = make_url(self.url).set(port=database_port).render_as_string(hide_password=False)
        return self.configure(name, storage={"url": url}, server=self.settings["server"] | {"port": server_port})

    def count_shares(self) -> list[int]:
        """Return the numbers of agents of the workers, the smallest first."""
        rows = execute(self.url, "SELECT worker FROM leases WHERE worker IS NOT NULL")
        return sorted(Counter(row["worker"] for row in rows).values())

    def find_process(self, agent: str) -> int:
        """Return the process that has an agent by the leases; 0 if no worker has it."""
        rows = execute(self.url, f"SELECT name FROM leases JOIN workers ON workers.id = worker WHERE agent = '{agent}'")
        return int(rows[0]["name"].rpartition(":")[2]) if rows else 0

    def list_running(self) -> list[int]:
        """Return the processes that run."""
        return [worker.pid for worker in self.processes if worker.process is not None and worker.process.poll() is None]

    async def wait_for(self, *shares: int) -> None:
        """Wait until the workers have these numbers of agents, the smallest first."""
        await eventually(lambda: self.count_shares() == list(shares))


@asynccontextmanager
async def run_workers(
    server: XmppServer,
    postgres: Postgres,
    tmp_path: Path,
    *,
    agents: int,
    lease_s: float = 2,
    together: Sequence[Sequence[int]] = (),
    agent: str = "tests.support.workers:WhereAgent",
    options: Mapping[str, Any] | None = None,
    other_agents: Sequence[Mapping[str, Any]] = (),
    further: Mapping[str, Any] | None = None,
) -> AsyncIterator[Workers]:
    """Prepare workers with one configuration; those that still run are killed at the end.

    `together` are the agents of each group, by their numbers. `other_agents` are the last agents of the configuration, as it
    has them, and `further` its other sections.
    """
    accounts = [await server.account() for _ in range(agents)]
    jids = [bare_jid(jid) for jid, _ in accounts]
    url, configuration = postgres.url(), tmp_path / "platform.yaml"
    settings = {
        "server": server.settings,
        "data_dir": str(tmp_path / "data"),
        "storage": {"url": url},
        "conversation": {"max_interactions": 0},
        "workers": {"lease_s": lease_s, "together": [[jids[number] for number in group] for group in together]},
        "agents": [
            *({"jid": jid, "agent": agent, "password": password, "options": options or {}} for jid, password in accounts),
            *other_agents,
        ],
        **(further or {}),
    }
    write_settings(configuration, settings)
    workers = Workers(configuration, url, jids)
    try:
        yield workers
    finally:
        for worker in workers.processes:
            if worker.process is not None and worker.process.poll() is None:
                await worker.signal(signal.SIGKILL)


Fault: TypeAlias = Literal["kill", "kill and start", "stop", "freeze"]


class WorkerPair:
    """Two workers that fail as one platform is killed: a SIGKILL stands for a fault of the one that has the first agent.

    The faults come in a random order, each before any comes again. It is killed, and starts again once the other one has its
    agents, or at once, so that it keeps them. It is stopped by SIGTERM. It is frozen for longer than its lease. When it starts
    again, the first agent moves to it. If a worker loses its lease on a busy machine, it is started again at the next `start`.
    """

    def __init__(self, workers: Workers, rng: random.Random) -> None:
        self._workers = workers
        self._rng = rng
        self._faults: list[Fault] = []
        self._fault: Fault = "kill"
        self._victim = 0
        self.on_victim: Callable[[], object] = lambda: None
        """It is called at each fault, while the worker that has the agent does nothing any more."""
        self.takeovers = 0
        """The number of faults after which the other worker has taken the agent."""
        self.woken: set[int] = set()
        """The processes that went on for a moment after another one had their agent."""

    @property
    def is_victim_owner(self) -> bool:
        """True while no other worker has the agent of the one that is at fault."""
        return self._find_owner() == self._victim

    async def signal(self, number: signal.Signals) -> int:
        """Let the worker that has the agent fail, or with SIGTERM end both. Return the exit code, the worse one of both."""
        if number == signal.SIGTERM:
            self._fault = "stop"
            running = [worker for worker in self._workers.processes if worker.process is not None]
            return max([await worker.signal(number) for worker in running])
        worker = await self._freeze_owner()
        assert worker.process is not None
        self.on_victim()
        if not self._faults:
            self._faults = list(get_args(Fault))
            self._rng.shuffle(self._faults)
        self._fault = self._faults.pop()
        if self._fault.startswith("kill"):
            return await worker.signal(number)
        if self._fault == "freeze":
            await self._wait_for_takeover()
            self.woken.add(worker.pid)
        else:
            worker.process.send_signal(signal.SIGTERM)
        worker.process.send_signal(signal.SIGCONT)
        code = await worker.wait()
        assert code in ((0, LeaseLostError.exit_code) if self._fault == "stop" else (LeaseLostError.exit_code,))
        if self._fault == "stop":
            await self._wait_for_takeover()
        return code

    async def start(self) -> None:
        """Start the worker that has ended."""
        if self._fault == "kill":
            await self._wait_for_takeover()
        for worker in self._workers.processes:
            if worker.process is not None and worker.process.poll() is not None:
                await worker.wait()
                worker.process = None
            if worker.process is None:
                await worker.start()

    async def _freeze_owner(self) -> PlatformProcess:
        """Freeze the worker that has the agent. Return it."""
        while True:
            await eventually(lambda: self._find_owner() in self._workers.list_running())
            self._victim = self._find_owner()
            for worker in self._workers.processes:
                if worker.process is None or worker.pid != self._victim or worker.process.poll() is not None:
                    continue
                worker.process.send_signal(signal.SIGSTOP)
                if self.is_victim_owner:
                    return worker
                worker.process.send_signal(signal.SIGCONT)  # it has just given its agent back

    def _find_owner(self) -> int:
        return self._workers.find_process(self._workers.agents[0])

    async def _wait_for_takeover(self) -> None:
        """Wait until the other worker has the agent."""
        others = {*self._workers.list_running()} - {self._victim}
        await eventually(lambda: self._find_owner() in others)
        self.takeovers += 1


@asynccontextmanager
async def run_pair(
    server: XmppServer,
    postgres: Postgres,
    tmp_path: Path,
    rng: random.Random,
    *,
    agent: str,
    options: Mapping[str, Any],
    **further: Any,
) -> AsyncIterator[tuple[WorkerPair, str, str]]:
    """Run two workers with an agent, and one that does nothing; yield them, the agent's JID and the URL of their database."""
    jid, password = await server.account()
    idle = {"jid": jid, "agent": "tests.support.workers:WhereAgent", "password": password}
    run = run_workers(
        server, postgres, tmp_path, agents=1, lease_s=3, agent=agent, options=options, other_agents=[idle], further=further
    )
    async with run as workers:
        for _ in range(2):
            await workers.start()
        pair = WorkerPair(workers, rng)
        yield pair, workers.agents[0], workers.url
        assert pair.takeovers > 0


Hosting: TypeAlias = Literal["one platform", "two workers"]

every_hosting = pytest.mark.parametrize("hosting", get_args(Hosting))
"""Run a test with one platform on SQLite, and with two workers on PostgreSQL, as `run_hosting` has them."""


@asynccontextmanager
async def run_hosting(
    hosting: Hosting,
    server: XmppServer,
    get_postgres: Callable[[], Postgres],
    directory: Path,
    rng: random.Random,
    **settings: Any,
) -> AsyncIterator[tuple[PlatformProcess | WorkerPair, str, str]]:
    """Run a platform or two workers with one agent; yield what can be killed, the agent's JID and the URL of the database."""
    if hosting == "two workers":
        async with run_pair(server, get_postgres(), directory, rng, **settings) as pair:
            yield pair
    else:
        async with run_platform(server, directory, **settings) as (platform, jid):
            yield platform, jid, f"{SQLITE}{directory / 'data' / 'platform.db'}"


class Asker:
    """A person who asks agents. An answer that was not acknowledged when a worker died comes again under its id."""

    def __init__(self, client: StockClient) -> None:
        self._client = client
        self._seen: set[str] = set()
        self.repeated = 0
        """The number of answers that came again."""

    async def ask(self, agent: str) -> tuple[int, int]:
        """Return the number of the turn, and the process that ran it."""
        self._client.send("hi", agent)
        while (answer := await self._client.answer())["id"] in self._seen:
            self.repeated += 1
        self._seen.add(answer["id"])
        count, pid = str(answer["body"]).split()
        return int(count), int(pid)

    async def ask_all(self, agents: Sequence[str]) -> tuple[set[int], set[int]]:
        """Ask agents one after the other. Return the numbers of the turns and the processes."""
        answers = [await self.ask(agent) for agent in agents]
        return {count for count, _ in answers}, {pid for _, pid in answers}


@asynccontextmanager
async def new_asker(server: XmppServer) -> AsyncIterator[Asker]:
    """Log in as a new person."""
    async with StockClient(*await server.account(), server) as client:
        yield Asker(client)
