"""Agents that mean harm, in a process of their own: nobody else notices, and they answer the next question."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from spade_coreason import AgentRequest, AgentTester, Response, Session, agent
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.testing import Isolation, IsolationTimings, Policy, Rules
from tests.runtime.isolation import hostile_agent
from tests.runtime.isolation.hostile_agent import HostileAgent
from tests.support.errors import ExpectedErrors
from tests.support.processes import is_running
from tests.support.wait import eventually
from tests.support.warm import WarmProcess

TIMINGS = IsolationTimings(check_s=0.1, blocked_s=5, cancel_grace_s=3, first_delay_s=0.05, healthy_s=0)
ISOLATION = Isolation(memory_mb=400, timings=TIMINGS, popen=WarmProcess)
POLICY = Policy(assist_timeout_s=9, rules=Rules(max_interactions=0))
TIMEOUT_S = 60.0
PAUSE_S = 0.05

# What the log says of the end of the process; None if only the turn ends.
ATTACKS: dict[str, str | None] = {
    "block_in_a_loop": "did not react for 5 s",
    "sleep_without_await": "did not react for 5 s",
    "backtrack_with_the_lock": "did not react for 5 s",
    "stop_itself": "did not react for 5 s",
    "exit_the_process": "ended with exit status 0",
    "kill_itself": "was ended by the signal SIGKILL",
    "read_a_null_pointer": "was ended by the signal SIGSEGV",
    "recurse_without_end": "",
    "close_all_descriptors": "",
    "allocate_at_once": None,
    "leak": "MiB of memory (memory_mb: 400",
    "print_without_end": None,
    "log_without_end": None,
    "send_no_json": "sent a malformed frame",
    "send_a_huge_length": "sent a frame of 4,294,967,295 bytes",
    "send_an_unknown_message": "sent a wrong message 'surprise'",
    "send_what_is_out_of_turn": "sent a wrong message 'do'",
    "schedule_out_of_turn": "sent a wrong message 'ask'",
    "notify_with_too_few_arguments": "sent a wrong message 'ask'",
    "send_deep_json": "sent a malformed frame",
    "send_frames_without_end": "sent log records without end",
    "leave_programs_behind": "ended with exit status 1",
    "leave_a_fork_behind": "ended with exit status 1",
    "swallow_cancellations": "did not stop a cancelled turn within 3 s",
    "flood_with_texts": None,
    "stream_without_end": None,
    "store_without_end": None,
    "flood_past_the_window": "sent ",
}

LIKE_OTHERS = ("block_in_a_loop", "sleep_without_await", "log_without_end")
"""What a process that holds the interpreter's lock, that is stopped, or that sends frames without end, does too."""


@agent
async def neighbour(request: AgentRequest, session: Session, response: Response) -> None:
    """Answer every question."""
    await response.markdown(f"{request.payload['query']}: fine")


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1_048_576


async def talk_to_neighbour(t: AgentTester, attack: asyncio.Task[object]) -> int:
    """Ask the neighbour until the attack has ended. Return the number of answers."""
    count = 0
    while not attack.done():
        count += 1
        answer = await t.ask(f"question {count}", to="neighbour@localhost", user="bob@localhost", timeout=TIMEOUT_S)
        assert answer.text == f"question {count}: fine"
        await asyncio.wait([attack], timeout=PAUSE_S)
    return count


@pytest.mark.parametrize(
    "attack", [pytest.param(name, marks=pytest.mark.release) if name in LIKE_OTHERS else name for name in ATTACKS]
)
async def test_hostile_code_in_its_own_process_harms_nobody_else(
    attack: str, expected_errors: ExpectedErrors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = ATTACKS[attack]
    expected_errors("agent@localhost: incident")
    if cause is not None:
        expected_errors("agent@localhost: its process")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.chdir(tmp_path)
    async with AgentTester(HostileAgent, peers={"neighbour": neighbour}, policy=POLICY, isolation=ISOLATION) as t:
        assert "hello" in (await t.ask("hello", timeout=TIMEOUT_S)).text
        before_mb = resident_mb()
        attacking = asyncio.create_task(ask(t, attack))
        answers = await talk_to_neighbour(t, attacking)
        assert answers > 0
        assert "on my side" in attacking.result() or "could not finish" in attacking.result()
        assert resident_mb() < before_mb + 200
        if cause is not None:  # on a busy machine the turn may end before its process does
            await eventually(lambda: t.agent.process_status.restarts > 0)  # type: ignore[attr-defined]
        assert "again" in (await t.ask("again", timeout=TIMEOUT_S)).text
        status = t.agent.process_status  # type: ignore[attr-defined]
        if cause is None:
            assert status.restarts == 0
        else:
            assert status.restarts == 1
            assert cause in status.last_end
        left = [int(name.removeprefix("left-")) for name in os.listdir(tmp_path) if name.startswith("left-")]
        assert len(left) == (2 if attack == "leave_programs_behind" else 0)
        assert not any(is_running(pid) for pid in left)
    await eventually(lambda: not is_running(status.pid))


async def ask(t: AgentTester, query: str) -> str:
    try:
        return (await t.ask(query, timeout=TIMEOUT_S)).text
    except PeerFailedError as error:
        return str(error)


def test_every_hostile_function_is_tried() -> None:
    helpers = {"find_connection", "write_raw", "frame", "start_endless_threads", "HostileAgent"}
    assert set(hostile_agent.FUNCTIONS) - helpers == set(ATTACKS)
