"""A restore is rehearsed with two workers: a backup beside them, a lost database, and a start on what is restored."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from pathlib import Path

from tests.support.databases import execute
from tests.support.program import run_command
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.workers import new_asker, run_workers


async def test_two_workers_continue_on_a_restored_backup(prosody: XmppServer, postgres: Postgres, tmp_path: Path) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=2) as workers, new_asker(prosody) as alice:

        async def run(*command: str, data: str = "data") -> subprocess.CompletedProcess[str]:
            options = ("-c", "platform.yaml")
            environment = {"SPADE_COREASON_DATA_DIR": data}
            return await asyncio.to_thread(run_command, "storage", *command, *options, cwd=tmp_path, env=environment)

        lost = [await workers.start(), await workers.start()]
        await workers.wait_for(1, 1)
        assert (await alice.ask_all(workers.agents))[0] == {1}
        done = await run("backup", "friday.tar")
        assert done.returncode == 0, done.stderr
        assert (await alice.ask_all(workers.agents))[0] == {2}
        # Nothing is restored while a worker runs, on this machine or on another.
        for data in ("data", "elsewhere"):
            refused = await run("restore", "friday.tar", data=data)
            assert refused.returncode != 0
            assert re.search("in use by process|another platform uses this database", refused.stderr), refused.stderr

        # The database is lost. The workers can store nothing any more; all of them are stopped.
        [row] = execute(workers.url, "SELECT current_schema() AS name")
        execute(workers.url, f"DROP SCHEMA {row['name']} CASCADE")
        for worker in lost:
            assert await worker.signal(signal.SIGTERM) == 0

        # An empty one takes its place.
        workers.url = postgres.url()
        file = tmp_path / "platform.yaml"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"storage": {"url": workers.url}}))
        done = await run("restore", "friday.tar")
        assert done.returncode == 0, done.stderr
        checked = await run("check")
        assert checked.returncode == 0, checked.stdout
        assert execute(workers.url, "SELECT * FROM workers") == []
        new = [await workers.start(), await workers.start()]
        await workers.wait_for(1, 1)
        assert await alice.ask_all(workers.agents) == ({2}, {worker.pid for worker in new})
