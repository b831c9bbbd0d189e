"""Rights to decide that end while a platform is killed and starts with other groups, also with two workers."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.table import OPERATIONS
from tests.support.databases import SQLITE, execute
from tests.support.hosting import PlatformProcess, run_platform, write_settings
from tests.support.line_log import read_lines
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.support.workers import Hosting, every_hosting, run_workers

AGENT = "tests.support.paying_agent:PayingAgent"
_CODE = re.compile(r"/approve ([A-Z0-9]{6})")


@asynccontextmanager
async def run(
    hosting: Hosting, server: XmppServer, get_postgres: Callable[[], Postgres], directory: Path, access: dict[str, Any]
) -> AsyncIterator[tuple[list[PlatformProcess], str, str]]:
    """Run one platform, or two workers; yield the processes, the agent's JID and the URL of the database."""
    options = {"log": str(directory / "log")}
    if hosting == "one platform":
        async with run_platform(server, directory, agent=AGENT, options=options, access=access) as (platform, jid):
            yield [platform], jid, f"{SQLITE}{directory / 'data' / 'platform.db'}"
        return
    further = {"access": access}
    postgres = get_postgres()
    async with run_workers(server, postgres, directory, agents=2, agent=AGENT, options=options, further=further) as workers:
        processes = [await workers.start() for _ in range(2)]
        yield processes, workers.agents[0], workers.url


async def restart(processes: list[PlatformProcess], directory: Path, groups: dict[str, list[str]]) -> None:
    """Kill all processes, and start them with other groups."""
    for process in processes:
        await process.signal(signal.SIGKILL)
    file = directory / "platform.yaml"
    settings = json.loads(file.read_text())
    settings["access"]["groups"] = groups
    write_settings(file, settings)
    for process in processes:
        await process.start()


async def read_until(client: StockClient, pattern: str) -> str:
    """Return the next text of a client that has a pattern."""
    while True:
        if re.search(pattern, text := str((await client.message())["body"])):
            return text


@pytest.mark.timeout(600)
@every_hosting
async def test_who_left_the_group_over_a_kill_does_not_decide_and_the_present_group_is_asked_anew(
    real_server: XmppServer, hosting: Hosting, get_postgres: Callable[[], Postgres], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    async with AsyncExitStack() as stack:
        client, old, new, chief = [
            await stack.enter_async_context(StockClient(*await real_server.account(), real_server)) for _ in range(4)
        ]
        access = {"groups": {"approvers": [old.jid]}, "operators": [chief.jid]}
        processes, jid, url = await stack.enter_async_context(run(hosting, real_server, get_postgres, tmp_path, access))
        client.send("7", jid)
        [code] = _CODE.findall(await read_until(old, "/approve"))
        await restart(processes, tmp_path, {"approvers": [new.jid]})
        await read_until(client, "No one who was asked may decide")
        [approval] = re.findall(r"/reassign (\w+)", await read_until(chief, "No one who was asked may decide"))
        old.send(f"/approve {code}", jid)
        await read_until(old, "You may not answer this any more")
        await restart(processes, tmp_path, {"approvers": [new.jid]})  # nobody is told again
        chief.send(f"/reassign {approval}", jid)
        await read_until(chief, "I ask those who may decide it now")
        [other] = _CODE.findall(await read_until(new, "/approve"))
        assert other != code
        for person in (old, new):
            person.send(f"/approve {code}", jid)
            await read_until(person, "I have asked you nothing with this code")
        await restart(processes, tmp_path, {"approvers": [old.jid]})
        new.send(f"/approve {other}", jid)
        await read_until(new, "You may not answer this any more")
        await restart(processes, tmp_path, {"approvers": [new.jid, old.jid]})
        assert log.read_text() == ""
        for person in (old, new, new):
            person.send(f"/approve {other}", jid)
        await read_until(client, "paid 7")
        assert read_lines(log) == [["7"]]
        assert [row["state"] for row in execute(url, "SELECT state FROM questions")] == ["approved"]


@pytest.mark.timeout(600)
@every_hosting
async def test_no_one_decides_after_the_end_of_the_time_over_a_kill(
    real_server: XmppServer, hosting: Hosting, get_postgres: Callable[[], Postgres], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    async with AsyncExitStack() as stack:
        client, boss = [
            await stack.enter_async_context(StockClient(*await real_server.account(), real_server)) for _ in range(2)
        ]
        access = {"groups": {"approvers": [boss.jid]}}
        processes, jid, url = await stack.enter_async_context(run(hosting, real_server, get_postgres, tmp_path, access))
        client.send("7", jid)
        [code] = _CODE.findall(await read_until(boss, "/approve"))
        [row] = execute(url, "SELECT question_id FROM questions")
        execute(url, "UPDATE questions SET expires_at = 1")  # the clock of the agent looks at it later
        for operation in ("approvals.approve", "approvals.deny"):
            wanted = OPERATIONS[operation].read_arguments({"id": row["question_id"]})
            with pytest.raises(Exception, match="it is expired already"):
                await asyncio.to_thread(call_platform, tmp_path / "data", OPERATIONS[operation], wanted)
        boss.send(f"/approve {code}", jid)
        await read_until(boss, "The time for this is over")
        execute(url, "UPDATE tasks SET wake_at = 1 WHERE kind = 'question'")
        await restart(processes, tmp_path, {"approvers": [boss.jid]})
        await eventually(lambda: [each["state"] for each in execute(url, "SELECT state FROM questions")] == ["expired"])
        boss.send(f"/approve {code}", jid)
        await read_until(boss, "The time for this is over")
        assert log.read_text() == ""
