"""Suspects run one at a time, and apart from other turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.exceptions import StoreError
from spade_coreason.runtime import command
from spade_coreason.runtime.crash_guard import CrashGuard
from spade_coreason.storage import AgentRepository, Commit, CrashedRequest, RunningRequests, to_micros
from spade_coreason.storage.backends.statements import RECEIVE, UPDATE_TASK
from spade_coreason.storage.crashes import SPARE_SLOT
from tests.support.databases import SQLITE, WriterGate, open_without_sync
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, ALICE, NOW
from tests.support.requests import build_incoming
from tests.support.runner import make_runtime
from tests.support.transports import make_network
from tests.support.wait import eventually


def _suspect(row: int, crashes: int = 2) -> CrashedRequest:
    return CrashedRequest(row, AGENT, ALICE, to_micros(NOW), "{}", crashes, None)


class Turn:
    """A turn under a guard, from the permission until `end` is set."""

    def __init__(self, guard: CrashGuard, row: int) -> None:
        self.is_running = False
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self._run(guard, row))

    async def _run(self, guard: CrashGuard, row: int) -> None:
        async with guard.permit(row):
            slot = guard.running.free_slots.pop()
            self.is_running = True
            await self.end.wait()
            self.is_running = False
            guard.running.free_slots.append(slot)

    async def finish(self) -> None:
        self.end.set()
        await self.task


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_suspect_of_a_worker_waits_until_it_is_stored_that_it_runs_alone_and_that_it_does_no_more() -> None:
    stored: list[tuple[int, bool]] = []
    fails = True

    async def mark_alone(row: int, runs_alone: bool) -> None:
        nonlocal fails
        fails = not fails
        if not fails:
            raise StoreError("the database is away")
        stored.append((row, runs_alone))

    guard = CrashGuard(RunningRequests(), [_suspect(1)], alone_s=600.0, mark_alone=mark_alone)
    suspect = Turn(guard, 1)
    await eventually(lambda: suspect.is_running or suspect.task.done())
    assert stored == [(1, True)]
    await suspect.finish()
    await eventually(lambda: stored == [(1, True), (1, False)])


async def test_suspects_run_one_at_a_time_and_other_turns_wait(caplog: pytest.LogCaptureFixture) -> None:
    guard = CrashGuard(RunningRequests(), [_suspect(1), _suspect(2)], alone_s=600.0)
    assert caplog.text.count("it now runs alone") == 2
    first, second, other = Turn(guard, 1), Turn(guard, 2), Turn(guard, 3)
    await eventually(lambda: first.is_running)
    await _settle()
    assert not second.is_running
    assert not other.is_running
    await first.finish()
    await eventually(lambda: other.is_running)
    await _settle()
    assert not second.is_running  # it would not be alone
    await other.finish()
    await eventually(lambda: second.is_running)
    await second.finish()
    assert not guard.suspects
    assert guard.running.is_idle


async def test_a_long_suspect_delays_other_turns_only_for_a_while() -> None:
    guard = CrashGuard(RunningRequests(), [_suspect(1), _suspect(2)], alone_s=0.05)
    first = Turn(guard, 1)
    await eventually(lambda: first.is_running)
    second, other = Turn(guard, 2), Turn(guard, 3)
    await eventually(lambda: other.is_running)
    assert first.is_running
    assert not second.is_running
    for turn in (other, first, second):
        await turn.finish()


def test_the_time_alone_doubles_with_each_end_of_the_process() -> None:
    guard = CrashGuard(RunningRequests(), [_suspect(row, crashes) for row, crashes in enumerate((2, 3, 4, 20))], alone_s=10.0)
    assert list(guard.suspects.values()) == [10.0, 20.0, 40.0, 160.0]
    stopped = [_suspect(row, 0)._replace(stops=stops) for row, stops in enumerate((4, 5, 6, 7))]
    assert list(CrashGuard(RunningRequests(), stopped, alone_s=10.0).suspects.values()) == [10.0, 20.0, 40.0]


async def test_a_failed_request_and_one_with_a_single_crash_are_no_suspects(expected_errors: ExpectedErrors) -> None:
    expected_errors("crashed the process again")
    guard = CrashGuard(RunningRequests(), [_suspect(1, 3)._replace(failed_at=to_micros(NOW)), _suspect(2, 1)])
    assert not guard.suspects
    assert guard.find_failed(1) is not None
    assert guard.find_failed(2) is None


def test_an_agent_that_another_worker_is_to_serve_leaves_no_suspect() -> None:
    guard = CrashGuard(RunningRequests(), [])
    guard.add([_suspect(1), _suspect(2)], handed_over=[AGENT])
    guard.remove(AGENT, [1, 2])
    assert not guard.suspects
    assert guard.may_have_begun(AGENT, 1)  # its next worker knows more


class WaitingAgent:
    """An agent whose turns and whose command wait until `release` is set."""

    manifest = AgentDefinition.simple("waiting")

    def __init__(self) -> None:
        self.begun, self.release = asyncio.Event(), asyncio.Event()

    @command("wait", "Wait")
    async def wait(self, session: SessionHandle) -> str:
        self.begun.set()
        await self.release.wait()
        return "done"

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(await self.wait(session))


@pytest.mark.parametrize("text", ["hello", "/wait"])
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_turn_counts_as_running_until_it_is_stored(tmp_path: Path, text: str, is_stopped: bool) -> None:
    writes, running, waiting = WriterGate(), RunningRequests(), WaitingAgent()
    database = await open_without_sync(f"{SQLITE}{tmp_path / 'platform.db'}", writes)
    repository = AgentRepository(database, AGENT)
    runner = make_runtime(waiting, repository, make_network(AGENT), crash_guard=CrashGuard(running)).runner
    await runner.open()
    incoming = build_incoming(text, ALICE)
    stored = runner.intake.receive(incoming)
    assert stored is not None
    await stored
    await waiting.begun.wait()
    with writes.hold_batches() as batches:
        waiting.release.set()
        await eventually(lambda: len(batches) > 0)
        assert len(running.rows) == 1
        if is_stopped:
            running.mark_stop()
            await runner.drain(0)
    await runner.mailboxes.wait_until_idle()
    assert running.is_idle
    assert len(running.rows) == is_stopped  # the next start looks whether it was stored
    await runner.drain(1)
    await runner.close()
    await database.close()


@pytest.mark.parametrize("text", ["hello", "/wait"])
async def test_the_first_request_of_a_conversation_is_kept_until_it_is_durable(tmp_path: Path, text: str) -> None:
    writes, running, waiting = WriterGate(), RunningRequests(tmp_path / "running.bin"), WaitingAgent()
    database = await open_without_sync(f"{SQLITE}{tmp_path / 'platform.db'}", writes)
    repository = AgentRepository(database, AGENT)
    runner = make_runtime(waiting, repository, make_network(AGENT), crash_guard=CrashGuard(running)).runner
    await runner.open()
    held: list[tuple[list[Any], Callable[[list[Any]], None]]] = []

    def hold_writes(batch: list[Any], write: Callable[[list[Any]], None]) -> None:
        if any(isinstance(item, Commit) for item in batch):
            held.append((batch, write))
        else:
            write(batch)

    writes.on_batch = hold_writes
    incoming = build_incoming(text, ALICE)
    assert runner.intake.receive(incoming) is not None
    await waiting.begun.wait()
    [kept] = RunningRequests(tmp_path / "running.bin").kept  # as the next start finds it
    assert (kept["agent"], kept["sender"]) == (AGENT, ALICE)
    assert text in kept["request"]
    await eventually(lambda: len(held) > 0)
    writes.on_batch = lambda batch, write: write(batch)
    for batch, write in held:
        write(batch)
    await repository.inbox.flush()
    assert running.kept == []
    assert text.encode() not in (tmp_path / "running.bin").read_bytes()
    waiting.release.set()
    await runner.mailboxes.wait_until_idle()
    await runner.drain(1)
    await runner.close()
    await database.close()


def test_what_does_not_fit_is_not_kept(tmp_path: Path) -> None:
    running = RunningRequests(tmp_path / "running.bin")
    values = (5, AGENT, bytearray(b"k" * 16), ALICE, 0, 0, '"' + "x" * 3000 + '"', bytearray(), "")
    running.slots[1] = 5
    assert running.keep(1, [(RECEIVE, values)])
    assert [columns["key"] for columns in running.kept] == [b"k" * 16]
    running.slots[1] = 6  # the turn of another request
    assert running.kept == []
    assert not running.keep(1, [(RECEIVE, (*values[:6], "x" * 4096, *values[7:]))])
    assert not running.keep(SPARE_SLOT, [(RECEIVE, values)])
    assert not running.keep(65, [(RECEIVE, values)])
    assert not running.keep(1, [(RECEIVE, values), (UPDATE_TASK, values)])  # rows that belong together
