"""Code of an agent that tries to end the platform: its turn fails alone, and a Ctrl-C still stops everything."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.cli.test_up import echo_on, wait_for_status, write_external_config
from tests.support.program import run_in_background
from tests.support.servers import prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

AGENT = '''\
"""An agent that tries to end the platform in the way that the question names."""

import asyncio
import os
import signal
import sys

from spade_coreason import agent


def interrupt(*args):
    raise KeyboardInterrupt


async def interrupt_later():
    await asyncio.sleep(0)
    interrupt()


async def exit_later():
    await asyncio.sleep(0)
    sys.exit(3)


@agent(description="Tries to end the platform")
async def ender(request, session, response):
    loop = asyncio.get_running_loop()
    match request.payload["query"]:
        case "interrupt":
            interrupt()
        case "interrupt in a task":
            await asyncio.create_task(interrupt_later())
        case "exit in a group":
            async with asyncio.TaskGroup() as group:
                group.create_task(exit_later())
        case "exit in a thread":
            await asyncio.to_thread(sys.exit, 3)
        case "close the loop":
            loop.close()
        case "interrupt in callbacks":
            loop.call_soon(interrupt)
            await asyncio.sleep(0)
            loop.call_later(0, interrupt)
            await asyncio.sleep(0.001)
        case "cancel all":
            for task in asyncio.all_tasks():
                task.cancel()
            await asyncio.Event().wait()
        case "stop":
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        case "wait":
            os.close(os.open("waiting", os.O_CREAT))
            while not os.path.exists("go"):
                await asyncio.sleep(0.02)
        case "stop the loop":
            loop.stop()
            await asyncio.sleep(0)
    await response.markdown(f"still here in {os.getpid()}")
'''
FAILING = ("interrupt", "interrupt in a task", "exit in a group", "exit in a thread", "close the loop")
CONTAINED = ("interrupt in callbacks", "stop the loop")


@pytest.mark.servers
@pytest.mark.parametrize(
    "command", [("up",), pytest.param(("up", "--reload"), marks=pytest.mark.release), ("run", "ender:ender")], ids=" ".join
)
def test_an_agent_that_tries_to_end_the_platform_fails_its_own_turn_only(command: tuple[str, ...], tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    (tmp_path / "ender.py").write_text(AGENT)
    (tmp_path / "config").mkdir()
    agents = [{"jid": "ender@localhost", "agent": "ender:ender"}]
    (tmp_path / "config" / "platform.yaml").write_text(json.dumps({"server": {"mode": "prosody"}, "agents": agents}))
    until = "^Ready" if command[0] == "up" else "is online"
    errors = ["code of an agent tried to end the process, which goes on", "ender@localhost: incident"]
    with run_in_background(*command, cwd=tmp_path, until=until, errors=errors) as platform:
        first = platform.run_command("ask", "ender", "who?").stdout
        assert first.startswith("still here in ")
        for query in FAILING:
            asked = platform.run_command("ask", "ender", query)
            assert "Something went wrong on my side (incident " in asked.stdout + asked.stderr, query
        for query in (*CONTAINED, "who?"):
            assert platform.run_command("ask", "ender", query).stdout == first, query
        code, out, _ = platform.stop(signal.SIGINT)
    assert (code, out.splitlines()[-1]) == (0, "Stopped.")


async def test_a_second_ctrl_c_is_no_crash_of_the_turns_that_it_cuts_off(prosody: XmppServer, tmp_path: Path) -> None:
    (tmp_path / "ender.py").write_text(AGENT)
    jid, password = await prosody.account()
    agent = {"jid": jid, "password": password, "agent": "ender:ender"}
    file = write_external_config(tmp_path, prosody, prosody.port, agent)
    async with StockClient(*await prosody.account(), prosody) as alice:
        alice.send("wait", jid)
        for _ in range(3):
            with run_in_background("up", "-c", str(file), cwd=tmp_path, until="^Ready") as up:
                await eventually((tmp_path / "waiting").exists)
                up.process.send_signal(signal.SIGINT)
                await asyncio.to_thread(up.wait_for, "^Stopping")
                up.process.send_signal(signal.SIGINT)
                assert await asyncio.to_thread(up.process.wait, TIMEOUT_S) == 130
            (tmp_path / "waiting").unlink()
        (tmp_path / "go").touch()
        with run_in_background("up", "-c", str(file), cwd=tmp_path, until="^Ready"):
            assert str((await alice.answer())["body"]).startswith("still here in ")


async def test_a_request_that_stops_the_platform_at_every_start_fails_at_the_sixth_stop(
    prosody: XmppServer, tmp_path: Path
) -> None:
    (tmp_path / "ender.py").write_text(AGENT)
    jid, password = await prosody.account()
    file = write_external_config(tmp_path, prosody, prosody.port, {"jid": jid, "password": password, "agent": "ender:ender"})
    async with StockClient(*await prosody.account(), prosody) as mallory:
        mallory.send("stop", jid)
        mallory.send("who?", jid)
        for _ in range(6):
            with run_in_background(
                "up", "-c", str(file), cwd=tmp_path, until="", env={"SPADE_COREASON_LIMITS__GRACE_S": "0"}
            ) as up:
                assert await asyncio.to_thread(up.process.wait, TIMEOUT_S) == 0
        error = "was cut off by 6 stops and has failed; see `spade-coreason requests list`"
        with run_in_background("up", "-c", str(file), cwd=tmp_path, until="^Ready", errors=[error]) as up:
            assert str((await mallory.answer())["body"]).startswith("I was stopped again and again before I could answer")
            assert str((await mallory.answer())["body"]).startswith("still here in ")
            listed = await asyncio.to_thread(up.run_command, "requests", "list", "-c", str(file))
            assert listed.stdout.splitlines()[1].split()[3:5] == ["0", "6"]


async def test_an_agent_that_cancels_every_task_ends_the_platform_once(prosody: XmppServer, tmp_path: Path) -> None:
    (tmp_path / "ender.py").write_text(AGENT)
    jid, password = await prosody.account()
    agent = {"jid": jid, "password": password, "agent": "ender:ender"}
    file = write_external_config(tmp_path, prosody, prosody.port, agent)
    async with StockClient(*await prosody.account(), prosody) as mallory:
        with run_in_background(
            "up", "-c", str(file), cwd=tmp_path, until="^Ready", errors=["incident", "failed to stop cleanly: CancelledError"]
        ) as up:
            mallory.send("cancel all", jid)
            assert await asyncio.to_thread(up.process.wait, TIMEOUT_S) == 130
        with run_in_background("up", "-c", str(file), cwd=tmp_path, until="^Ready"):
            assert str((await mallory.answer())["body"]).startswith("Something went wrong on my side (incident ")
            assert (await mallory.ask("who?", jid)).startswith("still here in ")


STARTING_AGENT = '''\
"""An agent whose startup() ends in a given way, until a file is there."""

import asyncio
from pathlib import Path


class StartingAgent:
    """Echoes, once it has started."""

    def __init__(self, manifest) -> None:
        self.manifest = manifest

    async def startup(self):
        if not Path("file").exists():
            raise {error}

    async def assist(self, request, session, response):
        await response.markdown(request.payload["query"])
'''


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "asyncio.CancelledError", "GeneratorExit"])
async def test_a_startup_that_raises_no_ordinary_exception_is_tried_again(
    error: str, prosody: XmppServer, tmp_path: Path
) -> None:
    (tmp_path / "starting.py").write_text(STARTING_AGENT.format(error=error))
    agents = [await echo_on(prosody), {**await echo_on(prosody), "agent": "starting:StartingAgent"}]
    file = write_external_config(tmp_path, prosody, prosody.port, *agents)
    problem = f"does not start: {error.rpartition('.')[2]}: "
    async with StockClient(*await prosody.account(), prosody) as alice:
        with run_in_background("up", "-c", str(file), cwd=tmp_path, until="", errors=[problem]) as up:
            await wait_for_status(tmp_path / "data", lambda status: bool(status.agents[1].start_problem))
            assert await alice.ask("hello", agents[0]["jid"]) == "hello"
            (tmp_path / "file").touch()
            await asyncio.to_thread(up.wait_for, "^Ready")
            assert await alice.ask("hello", agents[1]["jid"]) == "hello"
            code, _, _ = await asyncio.to_thread(up.stop, signal.SIGTERM)
    assert code == 0
