"""`status` shows the state of a running platform, and says when none is running."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.app.platform import Platform
from spade_coreason.config.loader import load_settings
from spade_coreason.domain.cards import AgentCard, Capability
from spade_coreason.domain.quotas import QuotaUsage
from spade_coreason.exceptions import ServerError, StoreError
from spade_coreason.operations.definition import Call, NoArguments, operation
from spade_coreason.operations.platform import show_status
from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.rpc.unix_socket import PLATFORM_SOCKET
from spade_coreason.operations.status import AgentStatus, PlatformStatus
from spade_coreason.storage.backends.lock import lock_directory
from tests.cli.conftest import Invoke
from tests.support.errors import ExpectedErrors
from tests.support.hosting import PROJECT, Tunnel
from tests.support.platform_status import read_status, serve_status
from tests.support.program import MOODY_AGENT_SOURCE, RunningCommand, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually


def test_status_shows_every_agent_of_a_running_platform(platform: RunningCommand, invoke_beside_platform: Invoke) -> None:
    shown = invoke_beside_platform("status")
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0
    assert lines[0].startswith("XMPP server   ")
    assert lines[1].split() == "AGENT STATE CONVERSATIONS IN FLIGHT ANSWERS/24H P50 P99 ERRORS".split()
    assert all(re.search(r" online (\d+ [a-z]+ ?){1,2}  ", line) for line in lines[2:5])
    assert [line.split()[:2] for line in sorted(lines[2:5])] == [
        [f"{name}@localhost", "online"] for name in ("echo", "moody", "notes")
    ]
    assert lines[-1] == f"3 of 3 agents online, process {platform.process.pid}"
    before = _echo_status(invoke_beside_platform)["conversations"]  # the platform is that of other tests too
    answers = _echo_status(invoke_beside_platform)["recent"]["answers"]
    asked = invoke_beside_platform("ask", "echo", "hello", "--thread", "one more")
    state = invoke_beside_platform("status", "--json").stdout
    assert (asked.stdout, asked.stderr) == ("hello\n", ""), f"{platform.output}\n{state}"
    counted = r"^Today: \w+@localhost \d+ of 20,000,000 messages; from guest@localhost \d+ of 1,000,000 messages$"
    assert re.search(counted, invoke_beside_platform("status").stdout, re.M)
    echo = _echo_status(invoke_beside_platform)
    assert echo["conversations_stored"] >= echo["conversations"]
    assert echo["recent"]["answers"] == answers + 1
    assert 0 < echo["recent"]["p50_ms"] <= echo["recent"]["p99_ms"] < 60_000
    assert echo["recent"]["errors"] == 0
    [row] = [line for line in invoke_beside_platform("status").stdout.splitlines() if line.startswith("echo@localhost ")]
    assert f" {echo['conversations_stored']} ({echo['conversations']} active) " in row
    assert row.split()[-1] == "0"
    assert (echo["state"], echo["conversations"], echo["in_flight"], echo["rooms"]) == ("online", before + 1, 0, {})
    socket = platform.cwd / "data" / PLATFORM_SOCKET
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert socket.stat().st_mode & 0o777 == 0o600


def test_status_shows_the_last_error(platform: RunningCommand, invoke_beside_platform: Invoke) -> None:
    found = None
    for query, pattern in (("fail", "it reported an error"), ("raise", r"ValueError \(incident ([0-9a-f]{8})\)")):
        asked = invoke_beside_platform("ask", "moody", query)
        assert asked.exit_code == 1
        [row] = [line for line in invoke_beside_platform("status").stdout.splitlines() if line.startswith("moody@localhost ")]
        found = re.search(rf" [1-9]\d* \(last: {pattern}\)$", row)
        assert found is not None, row
    assert found is not None
    assert found[1] in asked.stderr


def _echo_status(invoke_beside_platform: Invoke) -> dict[str, Any]:
    agents: list[dict[str, Any]] = json.loads(invoke_beside_platform("status", "--json").stdout)["agents"]
    return next(agent for agent in agents if agent["jid"] == "echo@localhost")


def test_the_status_of_an_older_version_is_understood() -> None:
    agent = AgentStatus("echo@localhost", "online")
    status = show_status.result.dump_python(PlatformStatus(1, "embedded", (agent,)), mode="json")
    for name in ("recent", "conversations_stored", "start_problem", "dropped", "rejected", "notifications"):
        del status["agents"][0][name]
    assert show_status.result.validate_json(json.dumps(status)).agents == (agent,)


def test_the_status_of_a_newer_version_is_understood() -> None:
    status = {"pid": 1, "server": "embedded", "agents": [{"jid": "echo@localhost", "state": "online", "mood": 7}], "weather": 1}
    assert show_status.result.validate_python(status).agents == (AgentStatus("echo@localhost", "online"),)


def test_a_status_is_the_same_after_its_way() -> None:
    card = AgentCard("echo@localhost", "Echo", capabilities=(Capability("echo", inputs={"type": "object"}),))
    usage = QuotaUsage("person", "alice@localhost", "guest", 9, 9, 1, 1, 1, 1)
    agent = AgentStatus("echo@localhost", "online", datetime.now(UTC), card=card, quotas=(usage,))
    status = PlatformStatus(1, "embedded", (agent,))
    assert show_status.result.validate_json(show_status.result.dump_json(status)) == status


def test_stored_requests_whose_channel_is_not_installed_are_counted(invoke: Invoke, tmp_path: Path) -> None:
    agent = AgentStatus("echo@localhost", "online", without_channel={"web": 2, "a2a": 1})
    with serve_status(tmp_path, PlatformStatus(1, "embedded", (agent,))):
        shown = invoke("status", "--data", str(tmp_path)).stdout
        [dumped] = json.loads(invoke("status", "--data", str(tmp_path), "--json").stdout)["agents"]
    assert (
        "2 stored requests or replies of echo@localhost: the channel web is not installed; install it and start again" in shown
    )
    assert "1 stored request or reply of echo@localhost: the channel a2a is not installed" in shown
    assert dumped["without_channel"] == {"web": 2, "a2a": 1}


def test_notifications_that_wait_or_were_not_delivered_are_counted(invoke: Invoke, tmp_path: Path) -> None:
    agents = (
        AgentStatus("echo@localhost", "online", notifications={"bounced": 1, "failed": 2, "sent": 7, "waiting": 1200}),
        AgentStatus("calm@localhost", "online", notifications={"sent": 7, "refused": 1}),
    )
    with serve_status(tmp_path, PlatformStatus(1, "embedded", agents)):
        shown = invoke("status", "--data", str(tmp_path)).stdout
        dumped = json.loads(invoke("status", "--data", str(tmp_path), "--json").stdout)["agents"]
    assert [line for line in shown.splitlines() if line.startswith("Notifications ")] == [
        "Notifications of echo@localhost: 1,200 waiting, 1 bounced, 2 failed; `spade-coreason notifications list` shows them"
    ]
    assert dumped[1]["notifications"] == {"sent": 7, "refused": 1}


def test_without_a_platform_status_is_one_line_and_exit_code_4(invoke: Invoke, tmp_path: Path) -> None:
    remedy = "start one (`spade-coreason up`), or name another data directory with --data\n"
    nothing = invoke("status", "--json")
    wanted = f"error: no platform is running on data (the directory {tmp_path / 'data'} does not exist); {remedy}"
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (4, "", wanted)
    elsewhere = invoke("status", "--data", "/no/such")
    assert elsewhere.stderr.startswith("error: no platform is running on /no/such (")
    with lock_directory(tmp_path / "data"):
        busy = invoke("status")
        assert (busy.exit_code, busy.stderr.count("\n")) == (4, 1)
        assert "its platform does not answer" in busy.stderr


def test_a_killed_platform_counts_as_not_running(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(MOODY_AGENT_SOURCE)
    command = ("run", "moody:MoodyAgent")
    with run_in_background(*command, cwd=tmp_path, until="spade-coreason ask") as run:
        assert read_status(tmp_path / "data") is not None
        run.process.send_signal(signal.SIGSTOP)
        with pytest.raises(ServerError, match="something blocks its event loop"):
            call_platform(tmp_path / "data", show_status_at_once, NoArguments())
        run.stop(signal.SIGKILL)
        assert (tmp_path / "data" / "run.json").exists()
        assert (tmp_path / "data" / PLATFORM_SOCKET).exists()
        killed = run.run_command("status")
        assert (killed.returncode, killed.stdout) == (4, "")
        assert killed.stderr.startswith("error: no platform is running on data;")
    with run_in_background(*command, cwd=tmp_path, until="spade-coreason ask") as run:
        assert read_status(tmp_path / "data") is not None
        assert run.stop(signal.SIGTERM)[0] == 0
    assert not (tmp_path / "data" / PLATFORM_SOCKET).exists()


@operation("status", timeout_s=0.2)
async def show_status_at_once(call: Call, arguments: NoArguments) -> PlatformStatus:
    """Show the status to a caller who does not wait."""
    return await show_status(call, arguments)


@asynccontextmanager
async def platform_behind_tunnel(server: XmppServer, tmp_path: Path) -> AsyncIterator[tuple[Platform, Tunnel, Path]]:
    """Configure a platform with one agent, whose data directory has a path that is too long for a socket."""
    jid, password = await server.account()
    async with Tunnel(server) as tunnel:
        data = tmp_path / ("long" * 30)
        tls = {"ca_file": str(server.ca_file)}
        server_settings = {"mode": "external", "domain": "localhost", "host": "127.0.0.1", "port": tunnel.port, "tls": tls}
        file = tmp_path / "platform.yaml"
        agents = [{"jid": jid, "agent": "tests.xmpp.profile.test_profile:GatedAgent", "password": password}]
        file.write_text(json.dumps({"server": server_settings, "data_dir": str(data), "agents": agents}))
        yield Platform(load_settings(file, PROJECT, {})), tunnel, data


async def _read_status(data: Path) -> PlatformStatus:
    found = await asyncio.to_thread(read_status, data)
    assert found is not None
    return found


async def _wait_for_state(data: Path, state: str) -> PlatformStatus:
    async with asyncio.timeout(TIMEOUT_S):
        while (found := await _read_status(data)).agents[0].state != state:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    return found


async def test_status_is_true_while_the_platform_starts_reconnects_and_stops(
    prosody: XmppServer, tmp_path: Path, invoke: Invoke
) -> None:
    async with (
        platform_behind_tunnel(prosody, tmp_path) as (platform, tunnel, data),
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        starting = asyncio.create_task(platform.__aenter__())
        await eventually((data / PLATFORM_SOCKET).exists)
        assert not (await _wait_for_state(data, "starting")).is_healthy
        [(jid, host)] = platform.agents.items()
        gated_agent = platform.runners[jid].agent
        gated_agent.may_start.set()  # type: ignore[attr-defined]  # of this test's own agent
        await starting
        alice.send("work", jid)
        await eventually(lambda: platform.runners[jid].mailboxes.busy_count == 1)
        online = await _read_status(data)
        assert online.is_healthy
        [agent] = online.agents
        assert (agent.state, agent.connection_problem, agent.sessions, agent.in_flight) == ("online", None, 1, 1)
        assert agent.since == host.connection.online_at
        assert "rejected" not in (await asyncio.to_thread(invoke, "status", "--data", str(data))).stdout
        for _ in range(2):
            alice.send_xml(f"<presence to='{host.connection.client.boundjid.full}'>{'<a>' * 64}{'</a>' * 64}</presence>")
        alice.send_xml(f"<message to='{jid}' type='chat'><active xmlns='http://jabber.org/protocol/chatstates'/></message>")
        await eventually(lambda: host.connection.rejected.total() == 2 and bool(host._gateway.dropped))
        [agent] = (await _read_status(data)).agents
        assert agent.rejected == {"more than 64 levels": 2}
        assert agent.dropped == {"no request": 1}
        shown = await asyncio.to_thread(invoke, "status", "--data", str(data))
        assert f"\n{jid} rejected stanzas (more than 64 levels: 2)\n" in shown.stdout
        [as_json] = json.loads((await asyncio.to_thread(invoke, "status", "--data", str(data), "--json")).stdout)["agents"]
        assert (as_json["rejected"], as_json["dropped"]) == ({"more than 64 levels": 2}, {"no request": 1})
        platform.runners[jid].control.set_paused(True)
        assert ", paused" in (await asyncio.to_thread(invoke, "status", "--data", str(data))).stdout
        platform.runners[jid].control.set_paused(False)

        tunnel.is_open = False
        tunnel.cut()
        await eventually(lambda: not host.is_alive())
        cut = await _wait_for_state(data, "reconnecting")
        assert cut.agents[0].since is None
        assert cut.agents[0].connection_problem
        # The first reason is that of the cut, and each attempt brings one of its own.
        await eventually(lambda: "cannot connect" in host.connection.last_problem)
        shown = await asyncio.to_thread(invoke, "status", "--data", str(data))
        assert shown.exit_code == 1
        assert "0 of 1 agents online" in shown.stdout
        [reason] = re.findall(rf"^{jid}: (cannot connect to .+)$", shown.stdout, re.MULTILINE)
        assert reason not in shown.stdout.partition(f"\n{jid}  reconnecting ")[2].partition("\n")[0]

        tunnel.is_open = True
        back = (await _wait_for_state(data, "online")).agents[0]
        assert (back.resumed, back.sessions, back.connection_problem, back.since) == (1, 1, None, agent.since)
        stopping = asyncio.create_task(platform.__aexit__(None, None, None))
        assert not (await _wait_for_state(data, "stopping")).is_healthy
        gated_agent.may_answer.set()  # type: ignore[attr-defined]  # of this test's own agent
        await stopping
        assert await asyncio.to_thread(read_status, data) is None


async def test_status_shows_agents_that_cannot_store_anything(
    prosody: XmppServer, tmp_path: Path, invoke: Invoke, expected_errors: ExpectedErrors
) -> None:
    expected_errors("platform.db: database or disk is full", "platform.db: the file is missing (No such file or directory)")
    async with platform_behind_tunnel(prosody, tmp_path) as (platform, _, data):
        starting = asyncio.create_task(platform.__aenter__())
        await eventually((data / PLATFORM_SOCKET).exists)
        [runner] = platform.runners.values()
        runner.agent.may_start.set()  # type: ignore[attr-defined]  # of this test's own agent
        await starting
        database, file = platform.database, data / "platform.db"
        assert database is not None

        async def assert_cannot_store(conversations: int | None, problem: str) -> None:
            with pytest.raises(StoreError):
                await runner.repository.save_agent_value("any", "x" * 10_000)
            status = await _read_status(data)
            [agent] = status.agents
            assert (agent.state, agent.conversations, status.is_healthy) == ("online", conversations, False)
            assert str(agent.storage_problem).startswith(f"{file}: {problem}")
            shown = await asyncio.to_thread(invoke, "status", "--data", str(data))
            assert shown.exit_code == 1
            assert ", cannot store anything" in shown.stdout
            assert "\n1 of 1 agents online, 1 cannot store anything, process " in shown.stdout
            assert shown.stdout.count(str(agent.storage_problem)) == 1

        await database.write(lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 1"))  # no room for more
        await assert_cannot_store(0, "database or disk is full")
        await database.write(lambda connection: connection.exec_driver_sql("PRAGMA max_page_count = 100000"))
        assert (await _read_status(data)).is_healthy
        file.rename(data / "aside")
        await assert_cannot_store(None, "the file is missing")
        (data / "aside").rename(file)
        await runner.repository.save_agent_value("any", 1)
        assert (await _read_status(data)).is_healthy
        await platform.__aexit__(None, None, None)
