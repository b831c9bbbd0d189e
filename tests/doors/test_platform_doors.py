"""The HTTP server of a platform: its start, its health, and where it is shown."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import Platform, load_settings
from spade_coreason.config.runfile import read_run_file
from spade_coreason.doors.mcp.tools import make_tools
from spade_coreason.exceptions import ServerError
from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.a2a_server import run_a2a_server
from tests.support.doors import ask, serve, web_settings
from tests.support.program import COMMAND, clean_environment, run_command, run_in_background
from tests.support.wait import TIMEOUT_S

ECHO = "spade_coreason.agents.echo:EchoAgent"


def write_configuration(directory: Path, port: int, **keys: Any) -> Path:
    """Write `config/platform.yaml` for one agent behind a door, and an HTTP server."""
    values = {
        "server": {"mode": "embedded"},
        "data_dir": str(directory / "data"),
        "web": {"port": port},
        "agents": [{"jid": "echo@localhost", "agent": ECHO, "doors": ["openai", "webhook"]}],
        **keys,
    }
    file = directory / "config" / "platform.yaml"
    file.parent.mkdir()
    file.write_text(json.dumps(values))
    return file


def test_a_running_platform_shows_its_http_server(tmp_path: Path) -> None:
    [port] = find_free_ports(1)
    write_configuration(tmp_path, port)
    shown = f"http://127.0.0.1:{port} (openai, webhook, page)"
    with run_in_background("up", "-v", cwd=tmp_path, until="^Ready") as platform:
        assert f"Doors         {shown}\n" in platform.output
        status = platform.run_command("status")
        assert f"Doors         {shown}, 0 connections\n" in status.stdout
        dumped = json.loads(platform.run_command("status", "--json").stdout)["web"]
        assert dumped == {
            "url": f"http://127.0.0.1:{port}",
            "doors": ["openai", "webhook", "page"],
            "connections": 0,
            "full_webhooks": [],
        }
        assert json.loads((tmp_path / "data" / "run.json").read_text())["web"] == f"http://127.0.0.1:{port}"
        checked = platform.run_command("check")
        assert (checked.returncode, shown in checked.stdout) == (0, True)
        code, _, log = platform.stop()
    assert code == 0
    assert f"doors: {shown}" in log
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_a_platform_is_ready_while_its_agents_are_online(tmp_path: Path) -> None:
    [port] = find_free_ports(1)
    file = write_configuration(tmp_path, port)
    settings = load_settings(file, tmp_path, {})
    assert settings.web is not None
    async with Platform(settings):
        for path, key in (("/healthz", None), ("/readyz", None)):
            reply = await ask(settings.web, path, key=key)
            assert (reply.status, json.loads(reply.body)) == (200, {"status": "ok"})
        assert (await ask(settings.web, "/v1/models")).status == 401
    assert read_run_file(settings.data_dir) is None


async def test_a_platform_is_not_ready_before_its_agents_are_online(tmp_path: Path) -> None:
    [port, xmpp_port] = find_free_ports(2)
    server = {"mode": "external", "domain": "localhost", "host": "127.0.0.1", "port": xmpp_port}
    agent = {"jid": "echo@localhost", "agent": ECHO, "password": "secret", "doors": ["openai"]}
    file = write_configuration(tmp_path, port, server=server, agents=[agent])
    settings = load_settings(file, tmp_path, {})
    assert settings.web is not None
    async with Platform(settings, is_strict=False):
        reply = await ask(settings.web, "/readyz", key=None)
        assert (reply.status, json.loads(reply.body)) == (503, {"status": "agents"})
        assert (await ask(settings.web, "/healthz", key=None)).status == 200


async def test_doors_and_the_list_of_agents_show_a_manifest_that_came_later(tmp_path: Path) -> None:
    [port] = find_free_ports(1)
    async with run_a2a_server() as elsewhere:
        agent = {
            "jid": "weather@localhost",
            "agent": "spade_coreason.agents.a2a:RemoteA2AAgent",
            "options": {"url": elsewhere.url, "allow_private": ["127.0.0.0/8"]},
            "doors": ["a2a", "mcp", "openai"],
        }
        settings = load_settings(write_configuration(tmp_path, port, agents=[agent]), tmp_path, {})
        assert settings.web is not None
        async with Platform(settings) as platform:
            create, wanted = OPERATIONS["keys.create"], {"name": "website", "agents": ["weather@localhost"]}
            issued, _ = await asyncio.to_thread(call_platform, settings.data_dir, create, create.read_arguments(wanted))
            reply = await ask(settings.web, "/a2a/weather/.well-known/agent-card.json", key=issued.secret)
            card = json.loads(reply.body)
            assert (card["name"], [skill["id"] for skill in card["skills"]]) == ("Weather desk", ["chat", "forecast"])
            [model] = json.loads((await ask(settings.web, "/v1/models", key=issued.secret)).body)["data"]
            assert model["name"] == "Weather desk"
            tools = make_tools(platform.door_agents.list_agents("mcp"))
            assert list(tools) == ["weather_chat", "weather_forecast"]
            assert platform.agent_descriptions == [("weather@localhost", "Knows the weather")]


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    web = web_settings()
    file = write_configuration(tmp_path, web.port)
    problem = (
        f"web: 127.0.0.1:{web.port} is in use; stop the program that listens there, or choose another web.port"
        " (one of several workers: by SPADE_COREASON_WEB__PORT)"
    )
    async with serve(web):
        with pytest.raises(ServerError, match=re.escape(problem)):
            async with Platform(load_settings(file, tmp_path, {})):
                raise AssertionError("it has started")
        done = run_command("check", cwd=tmp_path)
    assert (done.returncode, problem in done.stdout) == (4, True)


async def test_without_the_section_there_is_no_server(tmp_path: Path) -> None:
    agent = {"jid": "echo@localhost", "agent": ECHO}
    file = write_configuration(tmp_path, 8080, web=None, agents=[agent])
    async with Platform(load_settings(file, tmp_path, {})) as platform:
        assert platform.web_status is None
        assert (await platform.status()).web is None


SLOW = '''
import asyncio

class SlowAgent:
    """Answers never."""

    def __init__(self, manifest):
        self.manifest = manifest

    async def assist(self, request, session, response):
        await response.markdown("began")
        await asyncio.sleep(3600)
'''


async def test_from_the_first_moment_of_a_stop_new_requests_are_refused_while_turns_run(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    settings = web_settings()
    agent = {"jid": "slow@localhost", "agent": "slow:SlowAgent", "doors": ["openai"]}
    write_configuration(tmp_path, settings.port, agents=[agent], limits={"grace_s": 3600})
    with run_in_background("up", cwd=tmp_path, until="^Ready") as platform:
        asking = await asyncio.create_subprocess_exec(
            *COMMAND, "ask", "slow", "x", cwd=tmp_path, env=clean_environment(), stdout=asyncio.subprocess.PIPE
        )
        assert asking.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            assert await asking.stdout.readexactly(5) == b"began"  # its line ends before the next part
            platform.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(platform.wait_for, "Stopping")
            # It says so a moment before.
            while (reply := await ask(settings, "/readyz", key=None)).status == 200:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        assert (reply.status, json.loads(reply.body)) == (503, {"status": "stopping"})
        refused = await ask(settings, "/v1/models")
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert (await ask(settings, "/healthz", key=None)).status == 200
        platform.process.kill()
        asking.kill()
        await asking.wait()
