"""Agents in processes of their own, on real servers: what ends one, others do not notice, and none is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from click.testing import CliRunner

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.cli.app import cli
from tests.support.hosting import PlatformProcess, run_platform
from tests.support.processes import find_state, is_running
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

AGENT = "tests.app.test_isolation:MortalAgent"
SECRET = "the word of the option"


class MortalAgent:
    """An agent that ends its process at "die", blocks its event loop at "block" and "sleep", and streams its other answers."""

    def __init__(self, word: str = "") -> None:
        self.manifest = AgentDefinition.simple("mortal")
        self._word = word
        self._count = 0

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = request.payload["query"]
        if query == "die":
            os._exit(7)
        if query == "block":
            while True:
                pass
        if query == "sleep":
            time.sleep(3600)  # noqa: ASYNC251 - it blocks its loop, and takes no CPU from other tests
        self._count += 1
        turns = len(await session.history())
        stream = await response.create_stream()
        for part in (f"{query}: ", f"number {self._count}, ", f"{turns} before"):
            await stream.write(part)


def read_status(platform: PlatformProcess) -> tuple[str, list[dict[str, object]]]:
    """Return what `status` and `status --json` show."""
    arguments = ["status", "-c", str(platform.configuration)]
    shown = CliRunner().invoke(cli, arguments).stdout
    return shown, json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)["agents"]


async def find_process(platform: PlatformProcess) -> int:
    """Return the process id of the first agent."""
    _, [agent, *_] = await asyncio.to_thread(read_status, platform)
    process = agent["process"]
    assert isinstance(process, dict)
    return int(process["pid"])


async def test_an_agent_whose_process_ends_is_back_and_others_notice_nothing(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        StockClient(*await real_server.account(), real_server) as alice,
        StockClient(*await real_server.account(), real_server) as bob,
        run_platform(
            real_server,
            tmp_path,
            agent=AGENT,
            errors=["its process ended with exit status 7", "incident", "did not react for 10 s"],
            other_agents=1,
            isolation="process",
        ) as (platform, jid),
    ):
        [other] = platform.other_agents
        assert await alice.ask("hello", jid) == "hello: number 1, 0 before"
        first_pid = await find_process(platform)
        assert (await alice.ask("die", jid)).startswith("Something went wrong on my side")
        assert await alice.ask("again", jid) == "again: number 1, 2 before"
        shown, [agent, _] = await asyncio.to_thread(read_status, platform)
        assert agent["process"] == {"pid": agent["process"]["pid"], "restarts": 1, "last_end": "ended with exit status 7"}  # type: ignore[index]
        assert agent["process"]["pid"] != first_pid
        ended = "restarted 1 time; the last process ended with exit status 7"
        assert f"{jid} in its own process: {agent['process']['pid']}, {ended}\n" in shown
        alice.send("sleep", jid)
        alice.send("and then?", jid)
        answers = 0
        while not alice.messages.unread():
            answers += 1
            assert (
                await bob.ask(f"question {answers}", other)
                == f"question {answers}: number {answers}, {min(answers - 1, 10)} before"
            )
            await asyncio.sleep(0.5)  # other tests run beside this one
        assert answers > 1
        assert str((await alice.answer())["body"]).startswith("Something went wrong on my side")
        assert str((await alice.answer())["body"]) == "and then?: number 1, 4 before"
        last_pid = await find_process(platform)
        assert await platform.signal(signal.SIGTERM) == 0
        await eventually(lambda: not is_running(last_pid))


async def test_a_killed_platform_leaves_no_process_of_an_agent_behind(prosody: XmppServer, tmp_path: Path) -> None:
    async with (
        StockClient(*await prosody.account(), prosody) as alice,
        run_platform(prosody, tmp_path, agent=AGENT, isolation="process") as (platform, jid),
    ):
        assert await alice.ask("hello", jid) == "hello: number 1, 0 before"
        pid = await find_process(platform)
        alice.send("block", jid)  # so that its process cannot see the end of the connection
        await eventually(lambda: find_state(pid) == "R")
        await platform.signal(signal.SIGKILL)
        await eventually(lambda: not is_running(pid))
        await platform.start()  # the question that was open runs again
        assert await find_process(platform) != pid


async def test_options_are_neither_on_the_command_line_nor_in_the_environment(prosody: XmppServer, tmp_path: Path) -> None:
    options = {"word": SECRET}
    async with run_platform(prosody, tmp_path, agent=AGENT, options=options, isolation="process") as (platform, jid):
        process = Path(f"/proc/{await find_process(platform)}")
        command = (process / "cmdline").read_bytes().split(b"\0")
        assert command[-2] == jid.encode()
        assert SECRET.encode() not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
