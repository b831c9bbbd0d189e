"""The process of an isolated agent: how it is made, started again and watched, and what it prints and logs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentTester, ConfigError
from spade_coreason.agents.echo import EchoAgent
from spade_coreason.agents.notes import NotesAgent
from spade_coreason.agents.relay import RelayAgent
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.runtime.isolation.turns import OpenTurn
from spade_coreason.testing import Isolation, IsolationTimings, Policy
from tests.runtime.isolation import faulty_agents
from tests.runtime.isolation.faulty_agents import PlainAgent, UncertainAgent
from tests.runtime.isolation.hostile_agent import HostileAgent
from tests.runtime.isolation.scripted_agent import ScriptedAgent
from tests.support.errors import ExpectedErrors
from tests.support.isolation import WARM_ISOLATION
from tests.support.processes import is_running
from tests.support.wait import eventually
from tests.support.warm import WarmProcess

FAST = Isolation(timings=IsolationTimings(check_s=0.1, first_delay_s=0.05, max_delay_s=0.1), popen=WarmProcess)


def status(t: AgentTester) -> Any:
    return t.agent.process_status  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (faulty_agents.RaisingAgent, {}),
        (faulty_agents.MisconfiguredAgent, {}),
        (faulty_agents.TakenCommandAgent, {}),
        (PlainAgent, {}),
        (PlainAgent, {"word": "a", "numbr": 1}),
        (PlainAgent, {"word": "a", "peers": 1}),
    ],
)
async def test_a_mistake_is_the_same_one_line_as_without_isolation(target: Any, options: dict[str, Any]) -> None:
    problems = []
    for isolation in (None, WARM_ISOLATION):
        with pytest.raises(ConfigError) as error:
            async with AgentTester(target, options=options, isolation=isolation):
                pass
        problems.append(str(error.value).replace("tests.runtime.isolation.faulty_agents:", ""))
    assert problems[0] == problems[1]
    assert "\n" not in problems[0]


async def test_an_agent_that_ends_its_process_while_it_is_made_is_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"ExitingAgent cannot be created: its process ended with exit status 3; correct its code"
    ):
        async with AgentTester(faulty_agents.ExitingAgent, isolation=Isolation()):
            pass


async def test_an_agent_that_leaves_python_while_it_is_made_is_one_line() -> None:
    problem = r"LeavingAgent cannot be created: SystemExit: enough \(.*faulty_agents.py:\d+\); correct its code"
    with pytest.raises(ConfigError, match=problem):
        async with AgentTester(faulty_agents.LeavingAgent, isolation=Isolation()):
            pass


async def test_an_agent_that_is_not_made_in_time_is_one_line() -> None:
    timings = IsolationTimings(build_s=3)
    with pytest.raises(ConfigError, match="its process took longer than 3 s for the import and the constructor"):
        async with AgentTester(faulty_agents.SleepingAgent, isolation=Isolation(timings=timings)):
            pass


@pytest.mark.parametrize("target", [lambda: None, PlainAgent("a")], ids=["a function", "an instance"])
async def test_an_agent_that_no_other_process_finds_is_refused(target: Any) -> None:
    with pytest.raises(ConfigError, match="isolation: process needs a class or a function at the top level of a module"):
        async with AgentTester(target, isolation=Isolation()):
            pass


async def test_an_option_that_cannot_cross_is_refused() -> None:
    with pytest.raises(ConfigError, match="options: one cannot be sent to the process of the agent"):
        async with AgentTester(PlainAgent, options={"word": lambda: "a"}, isolation=Isolation()):
            pass


async def test_startup_runs_again_in_a_new_process_and_is_tried_until_it_succeeds(
    tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("agent@localhost: its process ended with exit status 1")
    expected_errors("agent@localhost: its process does not start: startup() raises RuntimeError: not yet")
    expected_errors("agent@localhost: incident")
    (tmp_path / "may-start").touch()
    async with AgentTester(UncertainAgent, options={"directory": str(tmp_path)}, isolation=FAST) as t:
        assert await t.say("hello") == ["started: True"]
        (tmp_path / "may-start").unlink()
        with pytest.raises(PeerFailedError):
            await t.ask("die", timeout=60)
        t.send("are you back?")
        await eventually(lambda: len((tmp_path / "starts").read_text()) > 3)
        assert status(t).pid is None
        assert status(t).restarts > 1
        assert t.unread() == []
        (tmp_path / "may-start").touch()
        assert (await t.message(timeout=60)).text == "started: True"
        assert status(t).last_end.startswith("does not start: startup() raises RuntimeError")
        assert not (tmp_path / "shutdown").exists()
    assert (tmp_path / "shutdown").exists()


@pytest.mark.parametrize(
    ("way", "is_failing"), [("interrupt in a task", True), ("send itself a signal", True), ("stop the loop", False)]
)
async def test_a_way_out_of_the_event_loop_fails_no_other_turn_of_the_process(
    way: str, is_failing: bool, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    if "signal" not in way:
        expected_errors("code of an agent tried to end the process, which goes on")
    if is_failing:
        expected_errors("agent@localhost: incident")
    (tmp_path / "may-start").touch()
    async with AgentTester(UncertainAgent, options={"directory": str(tmp_path)}, isolation=FAST) as t:
        pid = status(t).pid
        [reply] = await t.say(way, timeout=60)
        assert reply.startswith("Something went wrong on my side") if is_failing else reply == "started: True"
        assert await t.say("are you there?", timeout=60) == ["started: True"]
        assert status(t).pid == pid


async def test_a_new_process_that_ends_while_it_makes_the_agent_has_its_cause_in_the_status(
    tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("agent@localhost: its process was ended by the signal SIGKILL")
    expected_errors("agent@localhost: its process ended with exit status 3")
    (tmp_path / "may-start").touch()
    target, options = faulty_agents.ExitingLaterAgent, {"directory": str(tmp_path)}
    async with AgentTester(target, options=options, isolation=FAST) as t:
        (tmp_path / "may-start").unlink()
        os.kill(status(t).pid, signal.SIGKILL)
        await eventually(lambda: status(t).restarts > 1)
        assert status(t).last_end == "ended with exit status 3"
        (tmp_path / "may-start").touch()
        assert (await t.ask("?", timeout=60)).text == f"yes in process {status(t).pid}"


async def test_a_request_waits_for_the_next_process_no_longer_than_for_an_answer(
    tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("agent@localhost: its process")
    expected_errors("agent@localhost: incident")
    (tmp_path / "may-start").touch()
    async with AgentTester(
        UncertainAgent, options={"directory": str(tmp_path)}, isolation=FAST, policy=Policy(assist_timeout_s=1)
    ) as t:
        (tmp_path / "may-start").unlink()
        with pytest.raises(PeerFailedError):
            await t.ask("die", timeout=60)
        assert (await t.say("are you back?", timeout=60))[-1].startswith("I could not finish this within 1 s")


async def test_printed_text_carries_the_name_of_the_agent_and_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "may-start").touch()
    async with AgentTester(UncertainAgent, options={"directory": str(tmp_path)}, isolation=Isolation()) as t:
        await t.say("print some words")
        shown = ""

        def is_shown() -> bool:
            nonlocal shown
            shown += capsys.readouterr().err
            return shown.count("\n") >= 2

        await eventually(is_shown)
    assert sorted(shown.splitlines()) == ["agent@localhost: and an error", "agent@localhost: some words \\x1b[31m"]


async def test_log_records_keep_their_logger_and_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "may-start").touch()
    with caplog.at_level(logging.INFO):
        async with AgentTester(UncertainAgent, options={"directory": str(tmp_path)}, isolation=Isolation()) as t:
            await t.say("log some 100 % words")
            await eventually(lambda: "in a thread" in caplog.text)
    records = [(record.levelname, record.message) for record in caplog.records if record.name == "isolated.words"]
    assert records == [("WARNING", "some 100 % words"), ("INFO", "in a thread")]


async def test_a_killed_process_is_replaced_between_two_questions(expected_errors: ExpectedErrors) -> None:
    expected_errors("agent@localhost: its process was ended by the signal SIGKILL")
    async with AgentTester(PlainAgent, options={"word": "yes"}, isolation=FAST) as t:
        pid = status(t).pid
        assert (await t.ask("?")).text == f"yes in process {pid}"
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: status(t).restarts == 1 and status(t).pid is not None)
        assert (await t.ask("?")).text == f"yes in process {status(t).pid}"
        assert not is_running(pid)


async def test_threads_that_never_end_do_not_delay_the_stop() -> None:
    timings = IsolationTimings(exit_s=0.5)
    async with AgentTester(HostileAgent, isolation=Isolation(timings=timings, popen=WarmProcess)) as t:
        pid = status(t).pid
        assert (await t.ask("start_endless_threads")).text == "done"
    assert not is_running(pid)


async def test_the_ready_made_agents_run_in_processes_of_their_own() -> None:
    async with AgentTester(EchoAgent, isolation=WARM_ISOLATION) as t:
        assert (await t.ask("one two")).text == "one two"
    async with AgentTester(NotesAgent, isolation=WARM_ISOLATION) as t:
        await t.say("my plane leaves on Friday")
        assert "my plane leaves on Friday" in (await t.say("when does my plane leave?"))[0]
        await t.restart()
        assert "my plane leaves on Friday" in (await t.say("list"))[0]
    async with AgentTester(
        RelayAgent, peers={"echo": EchoAgent}, options={"ask": ["echo@localhost"]}, isolation=WARM_ISOLATION
    ) as t:
        assert "hello there" in (await t.ask("hello there")).text


async def test_a_call_that_is_cancelled_before_it_begins_ends_too() -> None:
    async with AgentTester(ScriptedAgent, isolation=WARM_ISOLATION) as t:
        process, turn = t.agent._supervisor._process, OpenTurn()  # type: ignore[attr-defined]
        call = asyncio.create_task(process.run(turn, ["call", 0, "on_conversation_end", ["c", "ended"]]))
        asyncio.get_running_loop().call_soon(process.cancel, turn)  # both messages leave in one frame
        assert await call is None
        assert (status(t).restarts, status(t).last_end) == (0, None)
