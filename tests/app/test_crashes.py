"""A request that ends the process: it fails, what stands behind it is answered, and innocent requests are too."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from spade_coreason import ResponseHandler, Session
from spade_coreason.cli.app import cli
from spade_coreason.concurrency import run_with_timeout
from spade_coreason.contracts import AgentDefinition, AgentRequest
from tests.contracts.test_json_schema import MAIL, NO_MAIL
from tests.support.hosting import PlatformProcess, run_platform
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

_LONG_TURNS = int(os.environ.get("LONG_TURNS", "10"))
_OTHER_AGENTS = int(os.environ.get("OTHER_AGENTS", "2"))


class FragileAgent:
    """An agent that ends the process at "die", and at "long" waits until the file `release` exists.

    Once the file `healed` exists, it answers "die" too.

    At "block" it searches a text for hours, and at "block in a task" it does so in a task such as those of tools. Both are
    recorded in the file `blocked`. At "pause" it blocks until the platform has noticed, and then waits as at "long".
    """

    def __init__(self, directory: str) -> None:
        self.manifest = AgentDefinition.simple("fragile")
        self._directory = Path(directory)

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        query = request.payload["query"]
        if query == "die" and not (self._directory / "healed").exists():
            os._exit(9)
        if query == "pause":
            while not (self._directory / "data" / "blocked.txt").stat().st_size:
                pass
        if query.startswith(("long", "pause")):
            (self._directory / query).touch()
            await eventually((self._directory / "release").exists)
        if query.startswith("block"):
            with (self._directory / "blocked").open("a") as file:
                file.write(f"{query}\n")
            await (_search() if query == "block" else run_with_timeout(_search(), 3600))
        await response.markdown(f"done: {query}")


async def _search() -> None:
    await asyncio.sleep(0)
    re.search(MAIL, NO_MAIL)


async def _wait_for_death(platform: PlatformProcess) -> None:
    assert await platform.wait() == 9


async def _start_until_death(platform: PlatformProcess) -> None:
    try:
        await platform.start()
    except AssertionError:  # it died before it was ready
        assert platform.process is not None
    await _wait_for_death(platform)


async def test_a_request_that_ends_the_process_fails_alone(prosody: XmppServer, tmp_path: Path) -> None:
    options = {"directory": str(tmp_path)}
    agent = "tests.app.test_crashes:FragileAgent"
    error = "crashed the process again"
    async with (
        StockClient(*await prosody.account(), prosody) as alice,
        StockClient(*await prosody.account(), prosody) as bob,
        StockClient(*await prosody.account(), prosody) as mallory,
        run_platform(prosody, tmp_path, agent=agent, options=options, errors=[error], other_agents=_OTHER_AGENTS) as (
            platform,
            jid,
        ),
    ):
        longs = [f"long {number}" for number in range(_LONG_TURNS)]
        for text in longs:
            alice.send(text, jid, thread=text)
        await eventually(lambda: all((tmp_path / text).exists() for text in longs))
        mallory.send("die", jid)
        mallory.send("hello", jid)
        await _wait_for_death(platform)
        await _start_until_death(platform)
        (tmp_path / "release").touch()
        await _start_until_death(platform)  # the third death: it ran alone
        await platform.start()
        for other in platform.other_agents:
            assert await bob.ask("hello", other) == "done: hello"
        refusal = str((await mallory.answer())["body"])
        assert refusal.startswith("This request has crashed me")
        assert str((await mallory.answer())["body"]) == "done: hello"
        # An answer that the server had not acknowledged at a crash comes twice, under the same id.
        answers: dict[str, str] = {}
        while len(answers) < len(longs):
            answer = await alice.answer()
            answers[answer["id"]] = str(answer["body"])
        assert sorted(answers.values()) == sorted(f"done: {text}" for text in longs)
        assert await mallory.ask("again?", jid) == "done: again?"
        (tmp_path / "healed").touch()
        await asyncio.to_thread(_check_requests_command, platform, mallory.full_jid.partition("/")[0])
        assert str((await mallory.answer())["body"]) == "done: die"
        assert await platform.signal(signal.SIGTERM) == 0
        assert {message["id"] for message in alice.messages.unread() if message["body"]} <= set(answers)


def _check_requests_command(platform: PlatformProcess, sender: str) -> None:
    """`spade-coreason requests` shows the failed request without its text, then with it, and runs it again."""

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(cli, ["requests", *arguments, "-c", str(platform.configuration)])
        assert result.exit_code == 0, result.output
        return result.stdout

    listed = invoke("list").splitlines()
    assert len(listed) == 2
    number = listed[1].split()[0]
    assert sender in listed[1]
    assert "die" not in listed[1]
    assert invoke("show", number).splitlines()[1] == "die"
    assert invoke("retry", number, "--yes") == f"The request {number} runs again now.\n"
    assert invoke("list") == "No failed requests.\n"
    audited = CliRunner().invoke(cli, ["audit", "list", "-c", str(platform.configuration)]).stdout
    assert "requests.retry" in audited
    assert f"request {number}" in audited


@pytest.mark.parametrize("query", ["block", pytest.param("block in a task", marks=pytest.mark.release)])
async def test_a_turn_that_blocks_the_event_loop_until_the_process_is_killed_does_not_run_again(
    prosody: XmppServer, tmp_path: Path, query: str
) -> None:
    errors = ["the event loop was blocked for 1 s or more when the platform was killed", "or blocked it for a minute"]
    agent, options = "tests.app.test_crashes:FragileAgent", {"directory": str(tmp_path)}
    async with (
        StockClient(*await prosody.account(), prosody) as alice,
        StockClient(*await prosody.account(), prosody) as mallory,
        run_platform(prosody, tmp_path, agent=agent, options=options, errors=errors, blocked_s=1) as (platform, jid),
    ):
        alice.send("long", jid)
        await eventually((tmp_path / "long").exists)
        mallory.send(query, jid)
        mallory.send("hello", jid)
        await eventually((tmp_path / "blocked").exists)
        stacks = tmp_path / "data" / "blocked.txt"
        await eventually(lambda: "in _search" in stacks.read_text())  # it is written in pieces
        (tmp_path / "long").unlink()
        await platform.signal(signal.SIGKILL)
        await platform.start()
        assert str((await mallory.answer())["body"]).startswith("This request has crashed me")
        assert str((await mallory.answer())["body"]) == "done: hello"
        await eventually((tmp_path / "long").exists)
        (tmp_path / "release").touch()
        assert str((await alice.answer())["body"]) == "done: long"
        assert (tmp_path / "blocked").read_text() == f"{query}\n"
        assert "in _search" in (tmp_path / "data" / "last-blocked.txt").read_text()
        assert await platform.signal(signal.SIGTERM) == 0
        assert not stacks.exists()


async def test_a_turn_that_blocked_the_event_loop_and_went_on_runs_again_after_a_kill(
    prosody: XmppServer, tmp_path: Path
) -> None:
    agent, options = "tests.app.test_crashes:FragileAgent", {"directory": str(tmp_path)}
    async with (
        StockClient(*await prosody.account(), prosody) as alice,
        run_platform(prosody, tmp_path, agent=agent, options=options, blocked_s=1) as (platform, jid),
    ):
        stacks = tmp_path / "data" / "blocked.txt"
        alice.send("pause", jid)
        await eventually((tmp_path / "pause").exists)
        await eventually(lambda: stacks.stat().st_size == 0)
        await platform.signal(signal.SIGKILL)
        (tmp_path / "release").touch()
        await platform.start()
        assert str((await alice.answer())["body"]) == "done: pause"


async def test_a_clean_stop_counts_as_no_crash(prosody: XmppServer, tmp_path: Path) -> None:
    options = {"directory": str(tmp_path)}
    agent = "tests.app.test_crashes:FragileAgent"
    async with (
        StockClient(*await prosody.account(), prosody) as alice,
        run_platform(prosody, tmp_path, agent=agent, options=options, grace_s=0) as (platform, jid),
    ):
        alice.send("long", jid)
        for _ in range(3):
            await eventually((tmp_path / "long").exists)
            assert await platform.signal(signal.SIGTERM) == 0
            (tmp_path / "long").unlink()
            await platform.start()
        (tmp_path / "release").touch()
        assert str((await alice.answer())["body"]) == "done: long"
