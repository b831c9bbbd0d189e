"""Operators reach the agents of all workers, from a machine with a worker and from one with the configuration alone."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.databases import execute
from tests.support.hosting import PROJECT, PlatformProcess
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import ANSWER_S
from tests.support.workers import Workers, new_asker, run_workers


async def run(configuration: Path, *arguments: str, code: int = 0) -> str:
    """Run a command, and return what it prints; the error if it fails."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spade_coreason", *arguments, "-c", str(configuration)),
        cwd=PROJECT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), ANSWER_S)
    assert process.returncode == code, (out.decode(), errors.decode())
    return (errors if code else out).decode()


async def run_json(configuration: Path, *arguments: str, code: int = 0) -> Any:
    return json.loads(await run(configuration, *arguments, "--json", code=code))


def make_other_machine(workers: Workers, tmp_path: Path) -> Path:
    """Return a configuration of the same platform with a data directory in which nothing runs."""
    settings = json.loads((tmp_path / "platform.yaml").read_text()) | {"data_dir": str(tmp_path / "elsewhere")}
    file = tmp_path / "elsewhere.yaml"
    file.write_text(json.dumps(settings))
    file.chmod(0o600)
    return file


def find_owners(workers: Workers) -> dict[str, int]:
    """Return the worker of each agent that has one."""
    return {row["agent"]: row["worker"] for row in execute(workers.url, "SELECT * FROM leases WHERE worker IS NOT NULL")}


async def start_two(workers: Workers, *shares: int) -> list[PlatformProcess]:
    started = [await workers.start(), await workers.start()]
    await workers.wait_for(*shares)
    return started


async def test_a_command_pauses_the_agents_of_all_workers_from_any_machine(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=2) as workers, new_asker(prosody) as alice:
        here, elsewhere = tmp_path / "platform.yaml", make_other_machine(workers, tmp_path)
        started = await start_two(workers, 1, 1)
        for configuration in (here, elsewhere):
            paused = await run_json(configuration, "pause", "*")
            assert {(one["agent"], one["is_paused"], one["is_changed"]) for one in paused} == {
                (agent, True, True) for agent in workers.agents
            }
            for agent in workers.agents:
                alice._client.send("hi", agent)
            assert [one["is_changed"] for one in await run_json(configuration, "pause", "*")] == [False, False]
            resumed = await run_json(configuration, "resume", "*")
            assert {(one["agent"], one["is_paused"]) for one in resumed} == {(agent, False) for agent in workers.agents}
            for _ in workers.agents:
                await alice._client.answer()
        # A pause is that of the agent, whoever serves it next.
        await run(elsewhere, "pause", "*")
        await started[0].signal(signal.SIGKILL)
        await workers.wait_for(2)
        status = await run_json(elsewhere, "status", code=0)
        assert [agent["is_paused"] for agent in status["agents"]] == [True, True]
