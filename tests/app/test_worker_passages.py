"""Several workers begin after a change of the rules by which the words of documents are indexed."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from spade_coreason.contracts.times import utc_now
from spade_coreason.storage import open_database
from spade_coreason.storage.knowledge import KnowledgeRepository
from spade_coreason.storage.records import DocumentCollection, NewDocument
from tests.support.databases import execute
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.support.workers import run_workers

PASSAGES = 600
COUNT_SLOWLY = (
    "CREATE TABLE indexed (passage bigint)",
    "CREATE FUNCTION count_slowly() RETURNS trigger LANGUAGE plpgsql AS"
    " 'BEGIN INSERT INTO indexed VALUES (new.id); PERFORM pg_sleep(0.005); RETURN new; END'",
    "UPDATE passages SET word_rules = 'older'",
    "CREATE TRIGGER count_slowly AFTER UPDATE ON passages FOR EACH ROW EXECUTE FUNCTION count_slowly()",
)
"""Let the rules be those of an older version, and count what is indexed anew."""


async def test_one_worker_indexes_older_passages_and_another_one_goes_on_if_it_dies(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=2) as workers:
        database = await open_database(workers.url)
        new = [NewDocument(f"d{n}", n.to_bytes(2, "big"), [f"Row {n}."]) for n in range(PASSAGES)]
        await KnowledgeRepository(database, workers.agents[0]).save_documents(DocumentCollection(), new, utc_now())
        for statement in COUNT_SLOWLY:
            await database.write(partial(Connection.exec_driver_sql, statement=statement))
        await database.close()
        started = await asyncio.gather(workers.start(), workers.start())
        await eventually(lambda: bool(execute(workers.url, "SELECT * FROM indexed LIMIT 1")))
        [oldest] = execute(workers.url, "SELECT name FROM workers ORDER BY id LIMIT 1")
        await {str(worker.pid): worker for worker in started}[oldest["name"].rpartition(":")[2]].signal(signal.SIGKILL)
        assert execute(workers.url, "SELECT id FROM passages WHERE word_rules = 'older' LIMIT 1")
        await eventually(lambda: not execute(workers.url, "SELECT id FROM passages WHERE word_rules = 'older' LIMIT 1"))
        assert execute(workers.url, "SELECT count(*) AS rows, count(DISTINCT passage) AS passages FROM indexed") == [
            {"rows": PASSAGES, "passages": PASSAGES}
        ]
