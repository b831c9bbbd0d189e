"""Workers that start at once move the files of interaction memories to the database: each file once, and all of them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from spade_coreason import AgentInteractionMemory
from spade_coreason.storage import open_database
from tests.support.databases import execute
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.workers import run_workers

FACTS = 5
INSERT_SLOWLY = (
    "CREATE FUNCTION wait_a_little() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.05); RETURN new; END'",
    "CREATE TRIGGER wait_a_little AFTER INSERT ON interaction_memory FOR EACH ROW EXECUTE FUNCTION wait_a_little()",
)


async def test_two_workers_import_each_file_once(prosody: XmppServer, postgres: Postgres, tmp_path: Path) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=6) as workers:
        database = await open_database(workers.url)
        for statement in INSERT_SLOWLY:
            await database.write(partial(Connection.exec_driver_sql, statement=statement))
        await database.close()
        directory = tmp_path / "data" / "memory"
        agents = [*workers.agents, "removed@localhost", "older@localhost"]
        for agent in agents:
            memory = AgentInteractionMemory(agent, directory)
            for number in range(FACTS):
                memory.add_information("c", f"fact {number}")
        await asyncio.gather(workers.start(), workers.start())
        await workers.wait_for(3, 3)
        found = execute(workers.url, "SELECT agent, count(*) AS entries FROM interaction_memory GROUP BY agent")
        assert {row["agent"]: row["entries"] for row in found} == dict.fromkeys(agents, FACTS)
        assert {path.suffix for path in directory.iterdir()} == {".lock"}


async def test_a_worker_imports_the_files_of_agents_that_another_one_serves(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=1) as workers:
        await workers.start()
        settings = workers.move("elsewhere", database_port=postgres.port, server_port=prosody.port)
        directory = tmp_path / "data-elsewhere" / "memory"
        AgentInteractionMemory(workers.agents[0], directory).add_information("c", "from elsewhere")
        await workers.start(settings)
        assert len(execute(workers.url, "SELECT agent FROM interaction_memory")) == 1
        assert {path.suffix for path in directory.iterdir()} == {".lock"}
        assert workers.count_shares() == [1]
