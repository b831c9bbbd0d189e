"""Workers are upgraded one after the other over a migration, and go back, while people ask."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import cast

import pytest

from spade_coreason import AgentRequest, Response, ResponseHandler, Session, StoreError
from spade_coreason.storage import open_database, schema
from tests.support.databases import execute
from tests.support.errors import errors_in
from tests.support.next_versions import make_next_version, name_revision
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.version_before import unpack_version_before
from tests.support.wait import eventually
from tests.support.worker_doors import run_command
from tests.support.workers import Asker, WhereAgent, new_asker, run_workers


class SlowAgent(WhereAgent):
    """An agent that never ends the first run of "wait", and asks a question for "which"."""

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        if request.payload["query"] == "wait" and not request.metadata.get("redelivered"):
            await asyncio.Event().wait()
        if request.payload["query"] == "which":
            answer = await cast(Response, response).ask_person("Which one?")
            await response.markdown(f"You said {answer.text}")
        else:
            await super().assist(request, session, response)


async def ask_on(asker: Asker, agents: list[str], until: asyncio.Event) -> int:
    """Ask all agents again and again. Return how often; each question has one answer, and each answer comes once."""
    rounds = 0
    while not until.is_set():
        rounds += 1
        assert (await asker.ask_all(agents))[0] == {rounds}
    assert asker.repeated == 0
    return rounds


async def read_code(person: StockClient) -> str:
    """Return the code of the question that a person is asked."""
    code = re.search(r"/answer (\w+)", str((await person.answer())["body"]))
    assert code is not None
    return code[1]


async def answer(person: StockClient, code: str, agent: str) -> None:
    """Answer a question, and wait for what the agent says to that."""
    person.send(f"/answer {code} that one", agent)
    assert str((await person.answer())["body"]) == "You said that one"


async def test_workers_are_upgraded_over_a_migration_and_go_back_while_people_ask(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    agent = "tests.app.test_rolling_upgrade:SlowAgent"
    async with (
        run_workers(prosody, postgres, tmp_path, agents=4, lease_s=5, agent=agent) as workers,
        new_asker(prosody) as alice,
        StockClient(*await prosody.account(), prosody) as bob,
    ):
        agents, is_upgraded = list(workers.agents), asyncio.Event()
        copying = asyncio.create_task(asyncio.to_thread(make_next_version, tmp_path / "next"))
        old = [await workers.start(), await workers.start()]
        await workers.wait_for(2, 2)
        asking = asyncio.create_task(ask_on(alice, agents, is_upgraded))
        bob.send("which", agents[0], thread="before")
        code = await read_code(bob)
        revision = "SELECT version_num FROM alembic_version"
        assert execute(workers.url, revision) == [{"version_num": schema.REVISION}]
        new = [await workers.start(program=await copying)]
        assert execute(workers.url, revision) == [{"version_num": name_revision(1)}]
        assert await old[0].signal(signal.SIGTERM) == 0
        new.append(await workers.start(program=copying.result()))
        assert await old[1].signal(signal.SIGTERM) == 0
        await workers.wait_for(2, 2)
        is_upgraded.set()
        rounds = await asking
        assert await alice.ask_all(agents) == ({rounds + 1}, {worker.pid for worker in new})
        await answer(bob, code, agents[0])
        assert errors_in(new[0].error_log.read_text()) == []

        # The way back: the old version reads what the new one has stored.
        for query in ("which", "wait"):
            bob.send(query, agents[0], thread=query)
        code = await read_code(bob)
        unanswered = "SELECT request FROM inbox WHERE state = 0"
        await eventually(lambda: len(execute(workers.url, unanswered)) == 1)
        assert '"added":"new"' in execute(workers.url, unanswered)[0]["request"]
        assert await new[0].signal(signal.SIGKILL) != 0
        back = await workers.start()
        assert await new[1].signal(signal.SIGKILL) != 0
        await workers.wait_for(4)
        assert await alice.ask_all(agents) == ({rounds + 2}, {back.pid})
        assert str((await bob.answer())["body"]).endswith(str(back.pid))
        await answer(bob, code, agents[0])
        assert errors_in(back.error_log.read_text()) == []


async def test_workers_of_the_version_before_serve_beside_those_of_today(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    before = tmp_path / "before"
    unpack_version_before(before, schema.OLDEST_REVISIONS["postgresql"])
    async with run_workers(prosody, postgres, tmp_path, agents=4, lease_s=5) as workers, new_asker(prosody) as alice:
        agents, is_upgraded = list(workers.agents), asyncio.Event()
        old = [await workers.start(program=before), await workers.start(program=before)]
        await workers.wait_for(2, 2)
        asking = asyncio.create_task(ask_on(alice, agents, is_upgraded))
        new = [await workers.start()]
        with pytest.raises(StoreError, match="another platform uses this database"):
            await open_database(workers.url)
        assert await old[0].signal(signal.SIGTERM) == 0
        await workers.wait_for(2, 2)
        listed = json.loads(await run_command(tmp_path / "platform.yaml", "status", "--json"))
        assert {agent["worker"] for agent in listed["agents"]} == {worker["name"] for worker in listed["workers"]}
        assert all(worker["is_answering"] for worker in listed["workers"]), listed
        new.append(await workers.start())
        assert await old[1].signal(signal.SIGTERM) == 0
        await workers.wait_for(2, 2)
        is_upgraded.set()
        rounds = await asking
        assert await alice.ask_all(agents) == ({rounds + 1}, {worker.pid for worker in new})
        assert errors_in(new[0].error_log.read_text()) == []
