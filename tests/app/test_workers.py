"""Several workers share the agents of one database: they divide them, replace each other, and hand over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from spade_coreason import ResponseHandler, Session
from spade_coreason.app.platform import EXIT_LEASE_LOST
from spade_coreason.contracts import AgentDefinition, AgentRequest
from spade_coreason.domain.jid import bare_jid
from tests.support.databases import execute
from tests.support.hosting import PlatformProcess
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually


class WhereAgent:
    """An agent that answers with the number of its turn and the id of its process."""

    manifest = AgentDefinition.simple("where")

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        if request.payload["query"] == "die":
            os._exit(9)
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

    async def start(self) -> PlatformProcess:
        worker = PlatformProcess(self._configuration)
        self.processes.append(worker)
        await worker.start()
        return worker

    def count_shares(self) -> list[int]:
        """Return the numbers of agents of the workers, the smallest first."""
        rows = execute(self.url, "SELECT worker FROM leases WHERE worker IS NOT NULL")
        return sorted(Counter(row["worker"] for row in rows).values())

    async def wait_for(self, *shares: int) -> None:
        await eventually(lambda: self.count_shares() == list(shares))


@asynccontextmanager
async def run_workers(
    server: XmppServer, postgres: Postgres, tmp_path: Path, *, agents: int, lease_s: float = 2
) -> AsyncIterator[Workers]:
    accounts = [await server.account() for _ in range(agents)]
    url, configuration = postgres.url(), tmp_path / "platform.yaml"
    settings = {
        "server": {
            "mode": "external",
            "domain": server.domain,
            "host": server.host,
            "port": server.port,
            "tls": {"ca_file": str(server.ca_file)},
        },
        "data_dir": str(tmp_path / "data"),
        "storage": {"url": url},
        "conversation": {"max_interactions": 0},
        "workers": {"lease_s": lease_s},
        "agents": [
            {"jid": jid, "agent": "tests.app.test_workers:WhereAgent", "password": password} for jid, password in accounts
        ],
    }
    configuration.write_text(json.dumps(settings))
    configuration.chmod(0o600)
    workers = Workers(configuration, url, [bare_jid(jid) for jid, _ in accounts])
    try:
        yield workers
    finally:
        for worker in workers.processes:
            if worker.process is not None and worker.process.poll() is None:
                await worker.signal(signal.SIGKILL)


class Asker:
    """A person who asks agents. An answer that was not acknowledged when a worker died comes again under its id."""

    def __init__(self, client: StockClient) -> None:
        self._client = client
        self._seen: set[str] = set()

    async def ask(self, agent: str) -> tuple[int, int]:
        """Return the number of the turn, and the process that ran it."""
        self._client.send("hi", agent)
        while (answer := await self._client.answer())["id"] in self._seen:
            pass
        self._seen.add(answer["id"])
        count, pid = str(answer["body"]).split()
        return int(count), int(pid)

    async def ask_all(self, agents: Sequence[str]) -> tuple[set[int], set[int]]:
        """Ask agents one after the other. Return the numbers of the turns and the processes."""
        answers = [await self.ask(agent) for agent in agents]
        return {count for count, _ in answers}, {pid for _, pid in answers}


@asynccontextmanager
async def new_asker(server: XmppServer) -> AsyncIterator[Asker]:
    async with StockClient(*await server.account(), server) as client:
        yield Asker(client)


async def test_a_worker_that_joins_takes_its_share_and_one_that_dies_is_replaced(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=3) as workers, new_asker(prosody) as alice:
        first = await workers.start()
        await workers.wait_for(3)
        assert await alice.ask_all(workers.agents) == ({1}, {first.pid})
        second = await workers.start()
        await workers.wait_for(1, 2)
        assert await alice.ask_all(workers.agents) == ({2}, {first.pid, second.pid})
        await first.signal(signal.SIGKILL)
        await workers.wait_for(3)
        assert await alice.ask_all(workers.agents) == ({3}, {second.pid})
        assert await second.signal(signal.SIGTERM) == 0
        assert execute(workers.url, "SELECT * FROM workers") == []


async def test_a_frozen_worker_is_replaced_and_ends_when_it_wakes(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=2) as workers, new_asker(prosody) as alice:
        first, second = await workers.start(), await workers.start()
        await workers.wait_for(1, 1)
        os.kill(first.pid, signal.SIGSTOP)
        await workers.wait_for(2)
        assert await alice.ask_all(workers.agents) == ({1}, {second.pid})
        os.kill(first.pid, signal.SIGCONT)
        assert await first.wait() == EXIT_LEASE_LOST
        assert await alice.ask_all(workers.agents) == ({2}, {second.pid})


async def test_workers_are_restarted_one_after_the_other_while_people_ask(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=4) as workers, new_asker(prosody) as alice:
        old = [await workers.start(), await workers.start()]
        await workers.wait_for(2, 2)
        rounds = 0
        for worker in old:
            stopping = asyncio.create_task(worker.signal(signal.SIGTERM))
            while not stopping.done():
                rounds += 1
                assert (await alice.ask_all(workers.agents))[0] == {rounds}
            assert stopping.result() == 0
            await workers.start()
            await workers.wait_for(2, 2)
        assert (await alice.ask_all(workers.agents))[0] == {rounds + 1}


async def test_a_worker_that_starts_again_has_its_agents_back_before_its_lease_ends(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=2, lease_s=60) as workers, new_asker(prosody) as alice:
        first = await workers.start()
        assert await alice.ask_all(workers.agents) == ({1}, {first.pid})
        await first.signal(signal.SIGKILL)
        second = await workers.start()
        assert await alice.ask_all(workers.agents) == ({2}, {second.pid})


async def test_a_request_that_ends_workers_ends_three_and_fails(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with (
        run_workers(prosody, postgres, tmp_path, agents=2) as workers,
        new_asker(prosody) as alice,
        StockClient(*await prosody.account(), prosody) as mallory,
    ):
        started = [await workers.start() for _ in range(4)]
        await eventually(lambda: sum(workers.count_shares()) == 2)
        mallory.send("hello", workers.agents[0])
        await mallory.answer()
        mallory.send("die", workers.agents[0])
        while not str((await mallory.answer())["body"]).startswith("This request has crashed me"):
            pass
        [left] = [worker for worker in started if worker.process is not None and worker.process.poll() is None]
        assert await alice.ask_all(workers.agents) == ({1}, {left.pid})


async def test_workers_that_start_at_once_on_an_empty_database_share_the_agents(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=6) as workers, new_asker(prosody) as alice:
        started = await asyncio.gather(*(workers.start() for _ in range(3)))
        await workers.wait_for(2, 2, 2)
        assert await alice.ask_all(workers.agents) == ({1}, {worker.pid for worker in started})
