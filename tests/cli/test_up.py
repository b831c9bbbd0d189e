"""`up` waits for its server and for agents that do not start; `up --strict` ends instead."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.app.platform import Platform
from spade_coreason.config.loader import load_settings
from spade_coreason.exceptions import ServerError
from spade_coreason.operations.status import AgentStatus, PlatformStatus
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Tunnel
from tests.support.platform_status import read_status
from tests.support.program import run_command, run_in_background
from tests.support.servers import prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

ECHO = "spade_coreason.agents.echo:EchoAgent"
SHY_AGENT_SOURCE = '''\
"""An agent that starts when a file is there."""

from pathlib import Path


class ShyAgent:
    """Echoes, once it has started."""

    def __init__(self, manifest, file: str) -> None:
        self.manifest = manifest
        self._file = Path(file)
        self.attempts = 0

    async def startup(self):
        self.attempts += 1
        if not self._file.exists():
            raise OSError("its file is not there")

    async def assist(self, request, session, response):
        await response.markdown(request.payload["query"])
'''
SHY_PROBLEM = "does not start: OSError: its file is not there"


def write_external_config(directory: Path, server: XmppServer, port: int, *agents: dict[str, Any], trusts: bool = True) -> Path:
    """Write `platform.yaml` for agents on a server that is reached at `port`."""
    tls = {"ca_file": str(server.ca_file)} if trusts else {}
    server_settings = {"mode": "external", "domain": server.domain, "host": "127.0.0.1", "port": port, "tls": tls}
    file = directory / "platform.yaml"
    file.write_text(json.dumps({"server": server_settings, "data_dir": str(directory / "data"), "agents": agents}))
    file.chmod(0o600)
    return file


async def echo_on(server: XmppServer) -> dict[str, Any]:
    jid, password = await server.account()
    return {"jid": jid, "password": password, "agent": ECHO}


async def wait_for_status(data: Path, is_wanted: Callable[[PlatformStatus], bool]) -> PlatformStatus:
    """Poll the status socket until it shows what is wanted."""
    found: PlatformStatus | None = None

    def is_there() -> bool:
        nonlocal found
        try:
            found = read_status(data)
        except ServerError:  # it is just starting
            return False
        return found is not None and is_wanted(found)

    async with asyncio.timeout(TIMEOUT_S):
        while not await asyncio.to_thread(is_there):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    assert found is not None
    return found


def agent_of(status: PlatformStatus, jid: str) -> AgentStatus:
    return next(agent for agent in status.agents if agent.jid == jid)


def one_line(error_output: str, text: str) -> str:
    """Return the only line of an output that contains the text."""
    [line] = [line for line in error_output.splitlines() if text in line]
    return line


async def test_up_waits_for_a_server_that_is_not_there_and_says_so_once(real_server: XmppServer, tmp_path: Path) -> None:
    agents = [await echo_on(real_server) for _ in range(2)]
    jid = agents[0]["jid"]
    async with Tunnel(real_server) as tunnel:
        tunnel.is_open = False
        file = write_external_config(tmp_path, real_server, tunnel.port, *agents)
        with run_in_background("up", "-c", str(file), cwd=tmp_path, until="") as up:
            waiting = await wait_for_status(
                tmp_path / "data", lambda status: all(agent.connection_problem for agent in status.agents)
            )
            assert {agent.state for agent in waiting.agents} == {"connecting"}
            assert not waiting.is_healthy
            shown = await asyncio.to_thread(up.run_command, "status", "-c", str(file))
            assert shown.returncode == 1
            assert f"cannot connect to 127.0.0.1:{tunnel.port}: " in shown.stdout
            refused = tunnel.refused_count
            await eventually(lambda: tunnel.refused_count >= refused + 4)  # each agent tries again and again
            tunnel.is_open = True
            await asyncio.to_thread(up.wait_for, "^Ready")
            assert (await wait_for_status(tmp_path / "data", lambda status: status.is_healthy)).agents[
                0
            ].connection_problem is None
            async with StockClient(*await real_server.account(), real_server) as alice:
                assert await alice.ask("hello", jid) == "hello"
            code, out, err = await asyncio.to_thread(up.stop, signal.SIGTERM)
    assert code == 0
    assert out.endswith("Stopped.\n")
    said = one_line(err, "cannot connect")
    assert said.startswith(f"warning: cannot connect to 127.0.0.1:{tunnel.port}, retrying until it answers: ")


async def test_sigterm_ends_up_while_it_waits(prosody: XmppServer, tmp_path: Path) -> None:
    [port] = find_free_ports(1)
    file = write_external_config(tmp_path, prosody, port, await echo_on(prosody))
    with run_in_background("up", "-c", str(file), cwd=tmp_path, until="") as up:
        waiting = await wait_for_status(tmp_path / "data", lambda status: bool(status.agents[0].connection_problem))
        assert "Connection refused" in str(waiting.agents[0].connection_problem)
        code, out, err = await asyncio.to_thread(up.stop, signal.SIGTERM)
    assert (code, out.splitlines()[-1]) == (0, "Stopped.")
    assert "Ready" not in out
    assert one_line(err, "Connection refused").startswith("warning: ")
    assert not (tmp_path / "data" / "status.sock").exists()


async def test_an_account_that_is_refused_ends_up_when_the_server_comes(prosody: XmppServer, tmp_path: Path) -> None:
    echo = await echo_on(prosody)
    async with Tunnel(prosody) as tunnel:
        tunnel.is_open = False
        file = write_external_config(tmp_path, prosody, tunnel.port, {**echo, "password": "wrong"})
        refused = f"error: platform.yaml: agents[0].password: {echo['jid']}/agent: 127.0.0.1:{tunnel.port} refuses the login"
        with run_in_background("up", "-c", str(file), cwd=tmp_path, until="", errors=[refused]) as up:
            await wait_for_status(tmp_path / "data", lambda status: bool(status.agents[0].connection_problem))
            tunnel.is_open = True
            code = await asyncio.to_thread(up.process.wait, TIMEOUT_S)
    assert code == 5


def test_what_no_retry_mends_ends_up_at_once(prosody: XmppServer, tmp_path: Path) -> None:
    echo = asyncio.run(echo_on(prosody))

    def assert_ended(file: Path, text: str) -> None:
        done = run_command("up", "-c", str(file), cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        assert text in one_line(done.stderr, "error: ")
        assert "retrying" not in done.stderr

    assert_ended(write_external_config(tmp_path, prosody, prosody.port, echo, trusts=False), "its certificate is not trusted")
    stranger = {**echo, "jid": "echo@elsewhere.example"}
    assert_ended(write_external_config(tmp_path, prosody, prosody.port, stranger), "host-unknown")
    file = tmp_path / "platform.yaml"
    agents = [{**echo, "jid": "echo@nowhere.invalid"}]
    file.write_text(json.dumps({"server": {"mode": "external", "domain": "nowhere.invalid"}, "agents": agents}))
    assert_ended(file, "the host name has no address; correct server.host")


def write_shy_project(directory: Path, mode: str) -> Path:
    (directory / "shy.py").write_text(SHY_AGENT_SOURCE)
    agents = [
        {"jid": "shy@localhost", "agent": "shy:ShyAgent", "options": {"file": str(directory / "file")}},
        {"jid": "echo@localhost", "agent": ECHO},
    ]
    (directory / "config").mkdir()
    (directory / "config" / "platform.yaml").write_text(json.dumps({"server": {"mode": mode}, "agents": agents}))
    return directory


@pytest.fixture(params=["prosody", "embedded"])
def shy_project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A project with the agents echo and shy, on a server that the platform starts."""
    if request.param == "prosody":
        require("Prosody", prosody_server.installed())
    return write_shy_project(tmp_path, request.param)


async def test_an_agent_whose_startup_raises_does_not_stop_the_others(shy_project: Path) -> None:
    problem = f"error: shy@localhost: {SHY_PROBLEM}; the agent stays offline and its start is retried"
    data = shy_project / "data"
    with run_in_background("up", cwd=shy_project, until="", errors=[problem]) as up:
        waiting = await wait_for_status(
            data, lambda status: agent_of(status, "echo@localhost").state == "online" and bool(status.agents[0].start_problem)
        )
        shy = agent_of(waiting, "shy@localhost")
        assert (shy.state, shy.start_problem) == ("starting", f"shy@localhost: {SHY_PROBLEM}")
        asked = await asyncio.to_thread(up.run_command, "ask", "echo", "hello")
        assert (asked.returncode, asked.stdout) == (0, "hello\n")
        shown = await asyncio.to_thread(up.run_command, "status")
        assert (shown.returncode, f"shy@localhost: {SHY_PROBLEM}" in shown.stdout.splitlines()) == (1, True)
        (shy_project / "file").touch()
        await asyncio.to_thread(up.wait_for, "^Ready")
        asked = await asyncio.to_thread(up.run_command, "ask", "shy", "are you there?")
        assert (asked.returncode, asked.stdout) == (0, "are you there?\n")
        assert (await wait_for_status(data, lambda status: status.is_healthy)).agents[0].start_problem is None
        code, _, err = await asyncio.to_thread(up.stop, signal.SIGTERM)
        assert code == 0
        assert one_line(err, SHY_PROBLEM)  # not one line for each attempt


async def test_sigterm_ends_up_while_an_agent_does_not_start(shy_project: Path) -> None:
    with run_in_background("up", cwd=shy_project, until="", errors=[SHY_PROBLEM]) as up:
        await wait_for_status(shy_project / "data", lambda status: bool(status.agents[0].start_problem))
        code, out, err = await asyncio.to_thread(up.stop, signal.SIGTERM)
    assert (code, out.splitlines()[-1]) == (0, "Stopped.")
    assert one_line(err, "error: ")


async def test_an_agent_that_starts_late_answers_what_it_was_asked_before(
    real_server: XmppServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected_errors: ExpectedErrors
) -> None:
    (tmp_path / "shy.py").write_text(SHY_AGENT_SOURCE)
    expected_errors(SHY_PROBLEM)
    jid, password = await real_server.account()
    shy = {"jid": jid, "password": password, "agent": "shy:ShyAgent", "options": {"file": str(tmp_path / "file")}}
    monkeypatch.chdir(tmp_path)
    async with (
        Tunnel(real_server) as tunnel,
        Platform(
            load_settings(write_external_config(tmp_path, real_server, tunnel.port, shy), tmp_path, {}), is_strict=False
        ) as platform,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        agent: Any = platform.runners[jid].agent
        await eventually(lambda: agent.attempts >= 3)
        assert not platform.agents[jid].is_alive()
        alice.send("early", jid)
        (tmp_path / "file").touch()
        assert str((await alice.answer())["body"]) == "early"
        await eventually(platform.agents[jid].is_alive)
        assert await alice.ask("late", jid) == "late"
        tunnel.cut()
        assert await alice.ask("after a cut", jid) == "after a cut"


def test_a_strict_start_ends_with_the_error(tmp_path: Path, prosody: XmppServer) -> None:
    project = write_shy_project(tmp_path, "auto")
    run = ("run", "shy:ShyAgent", "--jid", "shy@localhost", "--option", f"file={tmp_path / 'file'}")
    for command in (("up", "--strict"), run):  # run is always strict
        done = run_command(*command, cwd=project)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"error: shy@localhost: {SHY_PROBLEM}")
    [port] = find_free_ports(1)
    file = write_external_config(tmp_path, prosody, port, asyncio.run(echo_on(prosody)))
    done = run_command("up", "--strict", "-c", str(file), cwd=tmp_path)
    assert done.returncode == 4
    assert f"cannot connect to 127.0.0.1:{port}: Connection refused" in one_line(done.stderr, "error: ")
    assert "retrying" not in done.stderr
