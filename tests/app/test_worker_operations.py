"""Operators reach the agents of all workers, from a machine with a worker and from one with the configuration alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spade_coreason import Peers, ResponseHandler, Session, load_settings
from spade_coreason.app.shared_host import open_command_host
from spade_coreason.contracts import AgentDefinition, AgentRequest
from spade_coreason.domain.jid import bare_jid
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.databases import execute
from tests.support.hosting import PROJECT, PlatformProcess
from tests.support.program import run_command, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import ANSWER_S, TIMEOUT_S, eventually
from tests.support.workers import Workers, run_workers


class CountingAgent:
    """An agent that answers with the number of its turn, and never to "wait". It finds other agents and asks them."""

    manifest = AgentDefinition.simple("counting")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        match str(request.payload["query"]).split():
            case ["wait"]:
                await asyncio.Event().wait()
            case ["who"]:
                await response.markdown(str(os.getpid()))
            case ["find"]:
                states = [f"{card.jid} {'online' if card.is_online else 'offline'}" for card in await self._peers.find()]
                await response.markdown(" ".join(states) or "nobody")
            case ["ask", jid]:
                await response.markdown((await self._peers.ask(jid, "who")).text)
            case _:
                count = await session.get("count", 0) + 1
                await session.store("count", count, scope="conversation")
                await response.markdown(str(count))


class Machine:
    """A machine on which an operator runs commands."""

    def __init__(self, configuration: Path) -> None:
        self.configuration = configuration

    async def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command. Return what it prints, or the error if it fails with `code`."""
        done = await self._run(*arguments)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stderr if code else done.stdout

    async def read(self, *arguments: str) -> Any:
        """Run a command that prints JSON."""
        return json.loads(await self.run(*arguments, "--json"))

    async def wait_until_online(self) -> None:
        """Wait until the status shows all agents online."""
        deadline = time.monotonic() + ANSWER_S
        while (await self._run("status")).returncode != 0:
            assert time.monotonic() < deadline

    async def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = (*arguments, "-c", str(self.configuration))
        return await asyncio.to_thread(run_command, *command, cwd=PROJECT, timeout_s=ANSWER_S)


class Service:
    """A service of workers, a machine with one (`here`) and one with the configuration alone (`elsewhere`), and a person."""

    def __init__(self, workers: Workers, here: Machine, elsewhere: Machine, alice: StockClient) -> None:
        self.workers = workers
        self.agents = workers.agents
        self.here = here
        self.elsewhere = elsewhere
        self.alice = alice

    async def start(self, *shares: int) -> list[PlatformProcess]:
        """Start workers with these numbers of agents."""
        started = [await self.workers.start() for _ in shares]
        await self.workers.wait_for(*shares)
        return started

    async def wait_until_found(self, agent: str, found: str) -> None:
        """Wait until an agent finds the other ones as `found` says. It always finds them."""
        deadline = time.monotonic() + TIMEOUT_S
        while (answer := await self.alice.ask("find", agent, timeout_s=ANSWER_S)) != found:
            assert answer != "nobody"
            assert time.monotonic() < deadline, answer

    async def ask_all(self) -> list[str]:
        """Ask all agents one after the other, and return their answers."""
        return [await self.alice.ask("hi", agent, timeout_s=ANSWER_S) for agent in self.agents]

    async def begin_anew(self) -> None:
        """Ask all agents until each answers as in its first turn."""
        for agent in self.agents:
            self.alice.send("hi", agent)
            while (await self.alice.answer(ANSWER_S))["body"] != "1":
                pass


@asynccontextmanager
async def run_service(server: XmppServer, postgres: Postgres, tmp_path: Path, *, agents: int = 2) -> AsyncIterator[Service]:
    agent = "tests.app.test_worker_operations:CountingAgent"
    async with (
        run_workers(server, postgres, tmp_path, agents=agents, agent=agent) as workers,
        StockClient(*await server.account(), server) as alice,
    ):
        yield Service(workers, Machine(tmp_path / "platform.yaml"), Machine(workers.configure("elsewhere")), alice)


async def test_a_command_pauses_the_agents_of_all_workers_from_any_machine(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        started = await service.start(1, 1)
        for machine in (service.here, service.elsewhere):
            paused = await machine.read("pause", "*")
            assert {(one["agent"], one["is_paused"], one["is_changed"]) for one in paused} == {
                (agent, True, True) for agent in service.agents
            }
            for agent in service.agents:
                service.alice.send("hi", agent)
            assert [one["is_changed"] for one in await machine.read("pause", "*")] == [False, False]
            resumed = await machine.read("resume", "*")
            assert {(one["agent"], one["is_paused"]) for one in resumed} == {(agent, False) for agent in service.agents}
            for _ in service.agents:
                while not (await service.alice.answer(ANSWER_S))["body"].isdigit():
                    pass  # they say once that they are paused
        # A pause is that of the agent, whoever serves it next.
        await service.elsewhere.run("pause", "*")
        await started[0].signal(signal.SIGKILL)
        await service.workers.wait_for(2)
        await service.elsewhere.wait_until_online()
        status = await service.elsewhere.read("status")
        assert [agent["is_paused"] for agent in status["agents"]] == [True, True]


async def test_the_data_of_a_person_are_deleted_at_the_agents_of_all_workers(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        await service.start(1, 1)
        alice = bare_jid(service.alice.full_jid)
        assert await service.ask_all() == ["1", "1"]
        for agent in service.agents:
            service.alice.send("wait", agent)
        await eventually(lambda: len(execute(service.workers.url, "SELECT * FROM inbox WHERE state = 0")) == 2)
        for machine in (service.here, service.elsewhere):
            turns = await machine.read("status", "*")
            assert {(turn["agent"], turn["person"]) for turn in turns} == {(agent, alice) for agent in service.agents}
        deleted = await service.elsewhere.read("people", "delete", alice, "--yes")
        assert (deleted["is_complete"], deleted["kept"]) == (True, [])
        counts = {one["agent"]: one["report"]["interactions"] for one in deleted["erasures"]}
        assert counts == dict.fromkeys(service.agents, 1)
        assert execute(service.workers.url, "SELECT * FROM interactions") == []
        assert await service.here.read("status", "*") == []
        again = await service.here.read("people", "delete", alice, "--yes")
        assert [one["report"]["interactions"] for one in again["erasures"]] == [0, 0]
        await service.begin_anew()  # their people are not refused any more


async def test_a_person_deletes_in_a_chat_what_the_agents_of_all_workers_store_about_them(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        await service.start(1, 1)
        assert await service.ask_all() == ["1", "1"]
        answer = await service.alice.ask("/forget everywhere yes", service.agents[0], timeout_s=ANSWER_S)
        assert all(agent in answer for agent in service.agents), answer
        assert execute(service.workers.url, "SELECT * FROM interactions") == []
        assert await service.ask_all() == ["1", "1"]


async def test_a_drain_hands_over_each_agent_once_it_is_idle_and_takes_them_again_if_it_is_stopped(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    drain = ("drain", "-c", str(tmp_path / "platform.yaml"))
    async with run_service(prosody, postgres, tmp_path, agents=4) as service:
        workers, alice = service.workers, service.alice
        first, _ = await service.start(2, 2)
        query = f"SELECT agent FROM leases JOIN workers ON worker = id WHERE name LIKE '%:{first.pid}' ORDER BY agent"
        busy, idle = (row["agent"] for row in execute(workers.url, query))
        alice.send("wait", busy)
        await eventually(lambda: execute(workers.url, "SELECT * FROM inbox WHERE state = 0") != [])
        with run_in_background(*drain, cwd=PROJECT, until="") as stopped:
            await workers.wait_for(1, 3)
            assert await alice.ask("hi", idle, timeout_s=ANSWER_S) == "1"
            stopped.process.send_signal(signal.SIGINT)
            await asyncio.to_thread(stopped.process.wait, ANSWER_S)
        await workers.wait_for(2, 2)
        with run_in_background(*drain, cwd=PROJECT, until="") as drained:
            await workers.wait_for(1, 3)
            alice.send("/cancel", busy)
            assert await asyncio.to_thread(drained.process.wait, ANSWER_S) == 0
        assert await first.wait() == 0
        await workers.wait_for(4)


async def test_an_agent_that_is_not_configured_any_more_is_changed_without_waiting_for_its_worker(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        await service.start(1, 1)
        url, gone = service.workers.url, "gone@example.org"
        assert await service.ask_all() == ["1", "1"]
        execute(url, f"UPDATE conversations SET agent = '{gone}' WHERE agent = '{service.agents[1]}'")
        await service.elsewhere.run("pause", gone)
        assert execute(url, f"SELECT worker FROM leases WHERE agent = '{gone}'") == [{"worker": None}]
        answer = await service.alice.ask("/forget everywhere yes", service.agents[0], timeout_s=ANSWER_S)
        assert gone in answer, answer
        assert execute(url, f"SELECT * FROM conversations WHERE agent = '{gone}'") == []


async def test_a_failed_request_runs_again_in_the_worker_of_its_agent(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        await service.start(1, 1)
        await service.elsewhere.run("pause", "*")
        assert all(answer.startswith("I am paused") for answer in await service.ask_all())
        failed = "SELECT id, agent, sender, received_at, request, 3, received_at, 0, channel FROM inbox"
        execute(
            service.workers.url,
            "INSERT INTO crashed_requests (id, agent, sender, received_at, request, crashes, failed_at, stops, channel) "
            f"{failed} RETURNING id",
        )
        await service.here.run("resume", "*")
        for _ in service.agents:
            assert (await service.alice.answer(ANSWER_S))["body"] == "1"
        for request in await service.elsewhere.read("requests", "list"):
            assert (await service.elsewhere.run("requests", "retry", str(request["id"]), "--yes")).endswith("runs again now.\n")
            assert (await service.alice.answer(ANSWER_S))["body"] == "2"


async def test_agents_that_no_worker_serves_are_changed_directly(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        assert "no platform is running" in await service.elsewhere.run("status", code=4)
        await service.elsewhere.run("pause", "*")
        await service.start(1, 1)
        await service.here.wait_until_online()
        status = await service.here.read("status")
        assert [agent["is_paused"] for agent in status["agents"]] == [True, True]


async def test_a_command_gives_a_worker_the_time_to_renew_its_lease_after_an_outage(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_workers(prosody, postgres, tmp_path, agents=1, lease_s=8) as workers:
        worker = await workers.start()
        settings = load_settings(tmp_path / "platform.yaml", tmp_path, {})
        async with open_command_host(settings, [], is_exclusive=True) as host:
            execute(workers.url, "UPDATE workers SET expires_at = 0 WHERE NOT is_leaving")
            running = await host.running_agent(workers.agents[0], changes=True)
            assert running is not None
            assert not await running.find_pause()
        assert workers.find_process(workers.agents[0]) == worker.pid


def is_asked(url: str, process: int) -> bool:
    """Return True once a worker, which is frozen, is asked. Until then its lease does not end, however slow the command is."""
    found = f"SELECT id FROM workers WHERE name LIKE '%:{process}'"
    execute(url, f"UPDATE workers SET expires_at = {int((time.time() + 2) * 1e6)} WHERE id IN ({found})")
    return execute(url, f"SELECT id FROM worker_calls WHERE worker IN ({found})") != []


async def test_a_deletion_whose_workers_die_says_so_and_the_same_command_does_the_rest(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        first, second = await service.start(1, 1)
        alice = bare_jid(service.alice.full_jid)
        assert await service.ask_all() == ["1", "1"]
        os.kill(second.pid, signal.SIGSTOP)
        # The first one is asked, and waits for the second one.
        deleting = asyncio.create_task(service.here.run("people", "delete", alice, "--yes", code=4))
        await eventually(lambda: is_asked(service.workers.url, second.pid))
        await first.signal(signal.SIGKILL)
        assert "has ended; run the same command again to continue" in await deleting
        await second.signal(signal.SIGKILL)
        live = "SELECT id FROM workers WHERE expires_at > extract(epoch FROM clock_timestamp()) * 1000000"
        await eventually(lambda: not execute(service.workers.url, live))
        deleted = await service.elsewhere.read("people", "delete", alice, "--yes")
        assert (deleted["is_complete"], deleted["kept"]) == (True, [])
        assert execute(service.workers.url, "SELECT * FROM interactions") == []


async def test_a_deletion_tells_that_a_worker_has_died_and_the_same_command_does_the_rest(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        await service.start(1, 1)
        alice = bare_jid(service.alice.full_jid)
        assert await service.ask_all() == ["1", "1"]
        frozen = service.workers.find_process(service.agents[1])
        os.kill(frozen, signal.SIGSTOP)
        asking = asyncio.create_task(service.elsewhere.run("people", "delete", alice, "--yes", code=1))
        await eventually(lambda: is_asked(service.workers.url, frozen))
        error = await asking
        assert f"{service.agents[1]}: the worker that was asked has ended before it answered; run the same again" in error
        os.kill(frozen, signal.SIGKILL)
        deleted = await service.elsewhere.read("people", "delete", alice, "--yes")
        assert (deleted["is_complete"], deleted["kept"]) == (True, [])
        assert execute(service.workers.url, "SELECT * FROM interactions") == []
        await service.begin_anew()  # nobody is refused any more


async def test_the_status_shows_all_workers_and_the_last_takeover_from_any_machine(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        first, second = await service.start(1, 1)
        await service.elsewhere.wait_until_online()
        for machine, pid in ((service.here, first.pid), (service.elsewhere, 0)):
            status = await machine.read("status")
            assert status["pid"] == pid
            assert [agent["jid"] for agent in status["agents"] if agent["state"] == "online"] == service.agents
            served = [(agent["jid"], int(agent["worker"].rpartition(":")[2])) for agent in status["agents"]]
            assert served == [(agent, service.workers.find_process(agent)) for agent in service.agents]
            lines = (await machine.run("status")).splitlines()
            assert all(any(line.startswith(agent) and line.endswith(f":{pid}") for line in lines) for agent, pid in served)
            assert [(worker["name"].rpartition(":")[2], worker["agents"]) for worker in status["workers"]] == [
                (str(first.pid), 1),
                (str(second.pid), 1),
            ]
            assert [worker["is_this"] for worker in status["workers"]] == [bool(pid), False]
            assert all(0 < worker["lease_left_s"] <= 2 and worker["is_answering"] for worker in status["workers"])
            assert status["last_takeover"] is None
        [taken] = [agent for agent in service.agents if service.workers.find_process(agent) == second.pid]
        os.kill(second.pid, signal.SIGKILL)
        await eventually(lambda: service.workers.find_process(taken) == first.pid)
        await service.elsewhere.wait_until_online()
        for machine in (service.here, service.elsewhere):
            status = await machine.read("status")
            assert [(worker["agents"], worker["is_leaving"]) for worker in status["workers"]] == [(2, False)]
            last = status["last_takeover"]
            assert last["worker"].endswith(f":{second.pid}")
            assert (last["agents"], last["reason"]) == (1, f"{last['worker']} did not renew its lease")
            text = await machine.run("status")
            assert f"Last takeover: 1 agent of {last['worker']} at " in text
            assert f"because {last['reason']}" in text
            assert "2 of 2 agents online, " in text


async def test_agents_find_those_of_other_workers_and_ask_them_over_the_server(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        first, second = await service.start(1, 1)
        [near, far] = sorted(service.agents, key=lambda agent: service.workers.find_process(agent) == second.pid)
        await service.wait_until_found(near, f"{far} online")
        assert await service.alice.ask(f"ask {far}", near, timeout_s=ANSWER_S) == str(second.pid)
        # The first worker takes the agent over, and cannot begin to serve it.
        execute(service.workers.url, "ALTER TABLE api_keys RENAME TO away")
        await second.signal(signal.SIGKILL)
        await service.workers.wait_for(2)
        await service.wait_until_found(near, f"{far} offline")
        execute(service.workers.url, "ALTER TABLE away RENAME TO api_keys")
        await service.wait_until_found(near, f"{far} online")
        assert await service.alice.ask(f"ask {far}", near, timeout_s=ANSWER_S) == str(first.pid)


async def test_a_key_is_taken_and_revoked_by_all_workers(prosody: XmppServer, postgres: Postgres, tmp_path: Path) -> None:
    async with run_service(prosody, postgres, tmp_path) as service:
        file = service.here.configuration
        ports = find_free_ports(2)
        for port in ports:
            settings = json.loads(file.read_text()) | {"web": {"port": port}}
            for agent in settings["agents"]:
                agent["doors"] = ["openai"]
            file.write_text(json.dumps(settings))
            await service.workers.start()
        await service.workers.wait_for(1, 1)
        for machine in (service.here, service.elsewhere):
            name = machine.configuration.stem
            names = [option for agent in service.agents for option in ("--agent", agent)]
            secret = (await machine.run("keys", "create", name, *names)).split()[-1]
            await _wait_for_doors(ports, secret, 200)
            await machine.run("keys", "revoke", name)
            await _wait_for_doors(ports, secret, 401)


async def _wait_for_doors(ports: Sequence[int], secret: str, status: int) -> None:
    """Wait until all doors answer a key with a status."""
    await eventually(lambda: {_ask_door(port, secret) for port in ports} == {status})


def _ask_door(port: int, secret: str) -> int:
    """Return the status of a request with a key."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {secret}"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
