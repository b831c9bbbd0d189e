"""Several workers share the agents of one database: they divide them, replace each other, and hand over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from spade.behaviour import CyclicBehaviour

from spade_coreason import Platform, load_settings
from spade_coreason.exceptions import LeaseLostError, StoreError
from spade_coreason.storage import Leases, WorkerTerms, open_database
from tests.support.databases import execute
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Tunnel, write_settings
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.support.workers import new_asker, run_workers


async def test_a_worker_that_joins_takes_its_share_and_one_that_dies_is_replaced(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=3) as workers, new_asker(prosody) as alice:
        first = await workers.start()
        await workers.wait_for(3)
        assert await alice.ask_all(workers.agents) == ({1}, {first.pid})
        second = await workers.start()
        assert workers.count_shares() == [1, 2]
        assert await alice.ask_all(workers.agents) == ({2}, {first.pid, second.pid})
        # Accounts, passwords and stored data are in no file.
        data = tmp_path / "data"
        own = {"blocked.txt", "lock", "platform.sock", "run.json", "running.bin", "worker"}
        assert {path.name for path in data.iterdir()} == {*own, "memory", "workers"}
        assert {path.name for path in (data / "workers" / "2").iterdir()} == own
        assert list((data / "memory").iterdir()) == []
        assert json.loads((data / "run.json").read_text())["guest"] is None
        await first.signal(signal.SIGKILL)
        await workers.wait_for(3)
        assert await alice.ask_all(workers.agents) == ({3}, {second.pid})
        assert await second.signal(signal.SIGTERM) == 0
        assert execute(workers.url, "SELECT * FROM workers") == []


async def test_a_frozen_worker_is_replaced_and_ends_when_it_wakes_whatever_the_clocks_of_workers_say(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=2) as workers, new_asker(prosody) as alice:
        first, second = await workers.start(clock_error_s=600), await workers.start(clock_error_s=-600)
        await workers.wait_for(1, 1)
        os.kill(first.pid, signal.SIGSTOP)
        await workers.wait_for(2)
        assert await alice.ask_all(workers.agents) == ({1}, {second.pid})
        os.kill(first.pid, signal.SIGCONT)
        assert await first.wait() == LeaseLostError.exit_code
        assert await alice.ask_all(workers.agents) == ({2}, {second.pid})


async def test_a_worker_without_its_database_disconnects_before_its_lease_ends_and_connects_when_it_is_renewed(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    logins: list[bytes] = []

    def note_login(data: bytes) -> bytes:
        if b"<proceed" in data:  # the look for the server, which goes on without a lease, does not begin TLS
            logins.append(data)
        return data

    async with (
        run_workers(prosody, postgres, tmp_path, agents=2, lease_s=6) as workers,
        new_asker(prosody) as alice,
        Tunnel(postgres) as to_database,
        Tunnel(prosody) as to_server,
    ):
        to_server.edit = note_login
        settings = workers.move("elsewhere", database_port=to_database.port, server_port=to_server.port)
        away = await workers.start(settings)
        assert await alice.ask_all(workers.agents) == ({1}, {away.pid})
        [lease] = execute(workers.url, "SELECT id FROM workers")

        to_database.dropped_direction = "both"
        await eventually(lambda: to_server.is_idle)
        is_over = "SELECT id FROM workers WHERE expires_at < extract(epoch FROM clock_timestamp()) * 1000000"
        assert execute(workers.url, is_over) == []
        before = len(logins)
        await eventually(lambda: execute(workers.url, is_over) == [lease])
        assert len(logins) == before

        to_database.dropped_direction = ""
        to_database.cut()
        await eventually(lambda: len(logins) >= before + 2)
        assert await alice.ask_all(workers.agents) == ({2}, {away.pid})
        assert execute(workers.url, "SELECT id FROM workers") == [lease]

        other = await workers.start()
        await workers.wait_for(1, 1)
        to_database.dropped_direction = "both"
        await workers.wait_for(2)
        assert await alice.ask_all(workers.agents) == ({3}, {other.pid})
        before = len(logins)
        to_database.dropped_direction = ""
        to_database.cut()
        assert await away.wait() == LeaseLostError.exit_code
        assert len(logins) == before


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
            assert workers.count_shares() == [2, 2]
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


async def test_a_turn_that_is_cut_off_because_another_worker_has_room_does_not_run_again_where_that_is_not_wanted(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    further = {"limits": {"grace_s": 1}, "conversation": {"on_restart": "report"}}
    async with (
        run_workers(prosody, postgres, tmp_path, agents=2, further=further) as workers,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        await workers.start()
        for agent in workers.agents:
            alice.send("long", agent)
        await eventually(lambda: len(execute(workers.url, "SELECT id FROM inbox")) == 2)
        await workers.start()
        assert str((await alice.answer())["body"]).startswith("I was interrupted")


async def test_a_request_that_ends_workers_ends_three_and_fails_but_not_those_that_ran_beside_it(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with (
        run_workers(prosody, postgres, tmp_path, agents=2) as workers,
        new_asker(prosody) as alice,
        StockClient(*await prosody.account(), prosody) as carol,
        StockClient(*await prosody.account(), prosody) as mallory,
    ):
        started = [await workers.start() for _ in range(4)]
        await eventually(lambda: sum(workers.count_shares()) == 2)
        mallory.send("hello", workers.agents[0])
        await mallory.answer()
        carol.send("long", workers.agents[0])
        await eventually(lambda: len(execute(workers.url, "SELECT id FROM inbox")) == 2)
        mallory.send("die", workers.agents[0])
        while not str((await mallory.answer())["body"]).startswith("This request has crashed me"):
            pass
        assert str((await carol.answer())["body"]).startswith("1 ")
        [left] = [worker for worker in started if worker.process is not None and worker.process.poll() is None]
        assert await alice.ask_all(workers.agents) == ({1}, {left.pid})


async def test_workers_that_start_at_once_on_an_empty_database_share_the_agents_with_those_together_that_are_configured_so(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    together = [(0, 5), (1, 3), (2, 4)]
    run = run_workers(prosody, postgres, tmp_path, agents=6, together=together)
    async with run as workers, new_asker(prosody) as alice:
        started = await asyncio.gather(*(workers.start() for _ in range(3)))
        await workers.wait_for(2, 2, 2)
        pids = set[int]()
        for group in together:
            counts, [pid] = await alice.ask_all([workers.agents[number] for number in group])
            assert counts == {1}
            pids.add(pid)
        assert pids == {worker.pid for worker in started}


async def test_a_worker_that_does_not_reach_the_xmpp_server_gives_its_agents_to_one_that_does(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with (
        run_workers(prosody, postgres, tmp_path, agents=2) as workers,
        new_asker(prosody) as alice,
        Tunnel(prosody) as network,
    ):
        settings = workers.move("elsewhere", database_port=postgres.port, server_port=network.port)
        away, here = await workers.start(settings), await workers.start()
        await workers.wait_for(1, 1)
        network.dropped_direction = "both"
        await workers.wait_for(2)
        assert await alice.ask_all(workers.agents) == ({1}, {here.pid})
        network.cut()
        network.dropped_direction = ""
        await workers.wait_for(1, 1)
        assert await alice.ask_all(workers.agents) == ({2}, {away.pid, here.pid})


async def test_no_agent_changes_hands_while_no_worker_reaches_the_xmpp_server(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with (
        run_workers(prosody, postgres, tmp_path, agents=2, lease_s=1) as workers,
        new_asker(prosody) as alice,
        Tunnel(prosody) as network,
    ):
        settings = workers.move("elsewhere", database_port=postgres.port, server_port=network.port)
        await workers.start(settings), await workers.start(settings)
        await workers.wait_for(1, 1)
        state = "SELECT agent, worker, changed_at FROM leases ORDER BY agent"
        before = execute(workers.url, state)
        network.dropped_direction = "both"
        failed = "SELECT id FROM workers WHERE NOT reaches_server"
        await eventually(lambda: len(execute(workers.url, failed)) == 2)
        network.cut()
        network.dropped_direction = ""
        await eventually(lambda: not execute(workers.url, failed))
        await alice.ask_all(workers.agents)
        assert execute(workers.url, state) == before


@pytest.mark.parametrize("is_read", [False, True], ids=["ended", "hangs"])
def test_a_worker_without_a_lease_ends_also_if_nobody_reads_its_errors(is_read: bool) -> None:
    lost = "from spade_coreason.app.workers.membership import Membership; Membership._on_lease_lost(None, 'a test')"
    reading, writing = os.pipe()
    try:
        if is_read:
            os.set_blocking(writing, False)
            with suppress(BlockingIOError):
                while True:
                    os.write(writing, bytes(4096))
            os.set_blocking(writing, True)
        else:
            os.close(reading)
        ended = subprocess.run([sys.executable, "-c", lost], stderr=writing, timeout=TIMEOUT_S, check=False)
    finally:
        os.close(writing)
        if is_read:
            os.close(reading)
    assert ended.returncode == LeaseLostError.exit_code


async def test_a_worker_takes_no_agent_while_it_cannot_read_who_may_ask_it(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=2, lease_s=60) as workers:
        other = await open_database(workers.url, "off", terms=WorkerTerms("other", 3600))
        await Leases(other).add_agents(workers.agents)
        await Leases(other).change(lambda state: workers.agents[1:])
        async with Platform(load_settings(tmp_path / "platform.yaml", tmp_path, {})) as platform:
            membership = platform._membership
            assert membership is not None
            execute(workers.url, "ALTER TABLE api_keys RENAME TO away")
            with pytest.raises(StoreError):
                await membership.take(workers.agents[1:])
            execute(workers.url, "ALTER TABLE away RENAME TO api_keys")
            assert membership.list_agents() == workers.agents[:1]
            await membership.take(workers.agents[1:])
            assert membership.list_agents() == workers.agents
        await other.close()


async def test_a_worker_without_the_code_of_an_agent_names_the_mistake_in_its_log(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=2) as workers:
        settings = json.loads((tmp_path / "platform.yaml").read_text())
        settings["agents"][1]["agent"] = "nowhere:Agent"
        worker = await workers.start(write_settings(tmp_path / "other.yaml", settings))
        problem = "agents[1].agent: there is no module nowhere"
        await eventually(lambda: worker.error_log.exists() and problem in worker.error_log.read_text())


async def test_agents_that_one_worker_cannot_serve_go_to_one_that_can(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=3) as workers, new_asker(prosody) as alice:
        agents = workers.settings["agents"]
        broken = [agents[0] | {"password": "wrong"}, agents[1] | {"agent": "nowhere:Agent"}, agents[2]]
        first = await workers.start(workers.configure("broken", agents=broken))
        await alice.ask(workers.agents[2])
        await workers.wait_for(3)
        second = await workers.start()
        await workers.wait_for(1, 2)
        assert [workers.find_process(agent) for agent in workers.agents] == [second.pid, second.pid, first.pid]
        assert await alice.ask_all(workers.agents[:2]) == ({1}, {second.pid})


class Unstoppable(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
    """A behaviour that fails when it is ended."""

    async def run(self) -> None:
        await self.receive(timeout=1)

    def kill(self, exit_code: object = None) -> None:
        super().kill(exit_code)
        raise RuntimeError("it fails")


async def test_nothing_of_an_agent_that_does_not_stop_cleanly_goes_on_after_it_is_given_back(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    async with (
        run_workers(prosody, postgres, tmp_path, agents=1, lease_s=60) as workers,
        StockClient(*await prosody.account(), prosody) as alice,
        Platform(load_settings(tmp_path / "platform.yaml", tmp_path, {})) as platform,
    ):
        [agent] = workers.agents
        host, membership, guard = platform.agents[agent], platform._membership, platform._crash_guard
        assert membership is not None
        assert guard is not None
        host.add_behaviour(Unstoppable())
        alice.send("long", agent)
        await eventually(lambda: not guard.running.is_idle)
        [request] = execute(workers.url, "SELECT id FROM inbox")
        assert await membership.give_back(agent) == [request["id"]]
        assert (host.runtime.runner.mailboxes.busy_count, host.connection.state) == (0, "offline")
        assert execute(workers.url, "SELECT answer FROM inbox") == [{"answer": None}]
    expected_errors("failed to stop cleanly")
