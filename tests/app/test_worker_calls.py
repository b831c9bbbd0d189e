"""Calls between two workers on PostgreSQL: results, errors, early ends, and callers that end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, cast

import pytest

from spade_coreason.app.workers.calls import CallTargets, Kinds, WorkerCalls, _methods, _Remote
from spade_coreason.app.workers.colleagues import Colleagues
from spade_coreason.contracts import ConversationState
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.exceptions import ConfigError, CoReasonError, StoreError
from spade_coreason.operations.host import RunningAgent
from spade_coreason.storage import (
    CallRepository,
    ErasureReport,
    FoundConversation,
    Leases,
    PendingRequest,
    StoredConversation,
    WorkerCall,
    WorkerTerms,
    open_database,
)
from tests.support.databases import execute
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, ALICE, NOW
from tests.support.servers.postgres import Postgres
from tests.support.wait import TIMEOUT_S, eventually

REQUEST = PendingRequest(7, b"\xff\x00key", '{"a": 1}', None, b"\xfe", "program")


class Recorder:
    """An agent that notes what it is asked."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.asked: list[Any] = []
        self.erasure = self.schedules = self
        self.is_cancelled = False
        self.may_admit = asyncio.Event()
        self.may_admit.set()

    async def refuse_person(self, person: str) -> bool:
        self.refused.add(person)
        return True

    async def admit_person(self, person: str) -> None:
        await self.may_admit.wait()
        self.refused.discard(person)

    async def run_stored(self, request: PendingRequest) -> bool:
        self.asked.append(request)
        return True

    async def find_pause(self) -> bool:
        raise ConfigError("agent", "is wrong")

    async def run_now(self, schedule_id: str) -> bool:
        raise ValueError("a limit")

    async def list_operators(self) -> list[str]:
        self.asked.append("operators")
        return [cast(str, object())]

    async def cut_conversation(self, conversation: Any, should_go_on: Callable[[], bool]) -> ErasureReport:
        while should_go_on():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        return ErasureReport(("one",), interactions=3)

    async def wait_until_admitted(self, person: str) -> None:
        self.asked.append(person)
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled = True


class Worker:
    """A worker whose calls are woken often, in place of NOTIFY."""

    def __init__(self, url: str, rows: CallRepository, calls: WorkerCalls, leases: Leases, waking: asyncio.Task[None]) -> None:
        self.url = url
        self.rows = rows
        self.waking = waking
        self.calls = calls
        self.leases = leases


@asynccontextmanager
async def open_worker(url: str, name: str, target: Recorder | None = None) -> AsyncIterator[Worker]:
    database = await open_database(url, "off", terms=WorkerTerms(name, 3600))

    async def wake() -> None:
        while True:
            calls.wake()
            await asyncio.sleep(0.02)

    rows = CallRepository(database)
    calls = WorkerCalls(rows, CallTargets(lambda agent: target if agent == AGENT else None))  # type: ignore[arg-type, return-value]
    waking = asyncio.create_task(wake())
    try:
        yield Worker(url, rows, calls, Leases(database), waking)
    finally:
        waking.cancel()
        await calls.close()
        await database.close()


@asynccontextmanager
async def open_two(postgres: Postgres) -> AsyncIterator[tuple[Worker, Worker, Recorder, RunningAgent]]:
    """Open a caller and the worker of an agent. Yield both, the agent, and the agent as the caller has it."""
    url, recorder = postgres.url(), Recorder()
    async with open_worker(url, "owner", recorder) as owner, open_worker(url, "caller") as caller:
        await owner.leases.add_agents([AGENT])
        await owner.leases.change(lambda state: [AGENT])
        yield caller, owner, recorder, caller.calls.agent(AGENT)


async def test_arguments_results_and_errors_come_over_as_they_are(postgres: Postgres) -> None:
    async with open_two(postgres) as (_, _, recorder, agent):
        assert await agent.run_stored(REQUEST) is True
        assert recorder.asked == [REQUEST]
        with pytest.raises(ConfigError, match="is wrong") as wrong:
            await agent.find_pause()
        assert wrong.value.place == "agent"
        with pytest.raises(ValueError, match="a limit"):
            await agent.schedules.run_now("1")


async def test_a_result_that_cannot_be_written_is_an_error_and_the_method_is_called_once(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    expected_errors("the call agent.list_operators of another worker failed")
    async with open_two(postgres) as (_, _, recorder, agent), asyncio.timeout(TIMEOUT_S):
        with pytest.raises(CoReasonError, match="its log has the reason"):
            await agent.list_operators()
        assert recorder.asked == ["operators"]


async def test_calls_are_answered_although_a_look_at_them_has_failed(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot be answered; it tries again")

    class Faulty(CallRepository):
        has_failed = False

        async def read(self, callers: Collection[int]) -> tuple[list[tuple[WorkerCall, bool]], set[int]]:
            if not self.has_failed:
                self.has_failed = True
                raise RuntimeError("a fault")
            return await super().read(callers)

    database = await open_database(postgres.url(), "off", terms=WorkerTerms("owner", 3600))
    leases, recorder, rows = Leases(database), Recorder(), Faulty(database)
    calls = WorkerCalls(rows, CallTargets(lambda agent: recorder))  # type: ignore[arg-type, return-value]
    try:
        await leases.add_agents([AGENT])
        await leases.change(lambda state: [AGENT])
        async with asyncio.timeout(TIMEOUT_S):
            assert await calls.agent(AGENT).run_stored(REQUEST)
        assert rows.has_failed
    finally:
        await calls.close()
        await database.close()


class OlderSchedules(Protocol):
    """A part of an agent as another version calls it."""

    async def run_now(self, schedule_id: str, slowly: bool) -> bool: ...


class OlderAgent(Protocol):
    """An agent as another version calls it."""

    schedules: OlderSchedules

    async def dance(self) -> bool: ...
    async def run_stored(self, request: PendingRequest) -> tuple[bool, int]: ...


class OtherKinds(Protocol):
    """The targets as another version calls them."""

    agent: OlderAgent


@pytest.mark.parametrize(
    ("method", "arguments"), [("dance", ()), ("schedules.run_now", ("1", True)), ("run_stored", (REQUEST,))]
)
async def test_a_call_between_two_versions_that_do_not_understand_each_other_says_so(
    postgres: Postgres, method: str, arguments: tuple[Any, ...]
) -> None:
    """The method is unknown there, has other arguments, or has another result."""
    async with open_two(postgres) as (caller, _, _, _):
        agent = _Remote(AGENT, _methods(OtherKinds), partial(caller.calls._ask_agent, AGENT, []), "agent.")
        with pytest.raises(StoreError, match=f"{AGENT}: its worker has another version, .* finish the upgrade"):
            await attrgetter(method)(agent)(*arguments)


async def test_an_answer_of_another_form_is_an_answer_of_another_version(postgres: Postgres) -> None:
    async with open_two(postgres) as (_, owner, recorder, agent):
        waiting = asyncio.ensure_future(agent.erasure.wait_until_admitted(ALICE))
        await eventually(lambda: recorder.asked == [ALICE])
        execute(owner.url, "UPDATE worker_calls SET answer = '{\"later\": true}'")
        with pytest.raises(StoreError, match="its worker has another version"):
            await waiting


async def test_a_call_is_ended_early_when_its_caller_wants_that(postgres: Postgres) -> None:
    async with open_two(postgres) as (_, _, _, agent):
        looks = iter([True, True, False])
        status = ConversationStatus(ConversationState.ACTIVE, 0, NOW, NOW)
        conversation = FoundConversation(AGENT, StoredConversation(1, "t", AGENT, "session", status, 100), [])
        report = await agent.erasure.cut_conversation(conversation, lambda: next(looks, False))
        assert report == ErasureReport(("one",), interactions=3)


async def test_a_call_is_cancelled_with_the_task_of_its_caller(postgres: Postgres) -> None:
    async with open_two(postgres) as (_, _, recorder, agent):
        waiting = asyncio.ensure_future(agent.erasure.wait_until_admitted(ALICE))
        await eventually(lambda: recorder.asked == [ALICE])
        waiting.cancel()
        await eventually(lambda: recorder.is_cancelled)


async def test_a_caller_that_is_cancelled_before_its_call_is_stored_leaves_nothing(postgres: Postgres) -> None:
    async with open_two(postgres) as (caller, _, _, agent):
        asking = asyncio.ensure_future(agent.erasure.wait_until_admitted(ALICE))
        for _ in range(3):
            await asyncio.sleep(0)
        asking.cancel()
        await agent.run_stored(REQUEST)
        await eventually(lambda: execute(caller.url, "SELECT * FROM worker_calls") == [])


async def test_an_answer_that_is_there_before_it_is_waited_for_is_found_at_once(postgres: Postgres) -> None:
    async with open_two(postgres) as (caller, _, _, _):
        calls = WorkerCalls(caller.rows, CallTargets(), check_s=3600)
        answered = "SELECT id FROM worker_calls WHERE answer IS NOT NULL"

        async def add(call: int, *, method: str, arguments: str) -> int | None:
            worker = await caller.rows.ask_agent(call, AGENT, method, arguments)
            caller.waking.cancel()
            await eventually(lambda: execute(caller.url, answered) != [])
            return worker

        arguments = _methods(Kinds)["agent.run_stored"].arguments.dump_json((REQUEST,)).decode()
        async with asyncio.timeout(TIMEOUT_S):
            await calls._ask(add, AGENT, "agent.run_stored", arguments, None)
        await calls.close()


async def test_what_is_undone_for_one_caller_does_not_hold_up_the_others(postgres: Postgres) -> None:
    async with open_two(postgres) as (caller, owner, recorder, agent):
        async with open_worker(caller.url, "other") as other:
            assert await agent.erasure.refuse_person(ALICE)
            recorder.may_admit.clear()
            await eventually(lambda: execute(caller.url, "SELECT id FROM worker_calls") == [])  # the caller writes no more
            await owner.leases.remove(caller.leases.worker, "it died")
            await eventually(lambda: owner.calls._lasting == {})
            assert await other.calls.agent(AGENT).run_stored(REQUEST)
        recorder.may_admit.set()
        await eventually(lambda: recorder.refused == set())


async def test_what_lasts_is_undone_when_its_caller_has_ended(postgres: Postgres) -> None:
    async with open_two(postgres) as (caller, owner, recorder, agent):
        assert await agent.erasure.refuse_person(ALICE)
        assert recorder.refused == {ALICE}
        await eventually(lambda: execute(caller.url, "SELECT id FROM worker_calls") == [])  # the caller writes no more
        await owner.leases.remove(caller.leases.worker, "it died")
        await eventually(lambda: recorder.refused == set())


async def test_a_caller_is_told_that_the_worker_has_ended_or_that_another_one_serves_the_agent(postgres: Postgres) -> None:
    async with open_two(postgres) as (caller, owner, recorder, agent):
        waiting = asyncio.ensure_future(agent.erasure.wait_until_admitted(ALICE))
        await eventually(lambda: recorder.asked == [ALICE])
        assert await agent.erasure.refuse_person(ALICE)
        await caller.leases.remove(owner.leases.worker, "it died")
        with pytest.raises(StoreError, match="has ended before it answered; run the same again"):
            await waiting
        await caller.leases.change(lambda state: [AGENT])
        with pytest.raises(StoreError, match="another worker serves it now"):
            await agent.erasure.list_cut_off(ALICE)


async def test_a_call_is_made_once_although_its_answer_cannot_be_stored_at_once(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.url()
    caplog.set_level(logging.DEBUG, "spade_coreason.app.workers.calls")

    class Interrupted(Recorder):
        async def run_stored(self, request: PendingRequest) -> bool:
            if not self.asked:  # in threads: a statement waits for transactions of this event loop
                await asyncio.to_thread(execute, url, "ALTER TABLE worker_calls RENAME TO away")
                undoing.append(asyncio.create_task(self.undo()))
            return await super().run_stored(request)

        async def undo(self) -> None:
            await eventually(lambda: "cannot be stored yet" in caplog.text)
            await asyncio.to_thread(execute, url, "ALTER TABLE away RENAME TO worker_calls")

    recorder, undoing = Interrupted(), list[asyncio.Task[None]]()
    async with open_worker(url, "owner", recorder) as owner, open_worker(url, "caller") as caller:
        await owner.leases.add_agents([AGENT])
        await owner.leases.change(lambda state: [AGENT])
        async with asyncio.timeout(TIMEOUT_S):
            assert await caller.calls.agent(AGENT).run_stored(REQUEST)
        assert len(recorder.asked) == 1


async def test_a_change_waits_for_an_agent_that_its_own_worker_is_about_to_serve_or_to_give_back(postgres: Postgres) -> None:
    database = await open_database(postgres.url(), "off", terms=WorkerTerms("one", 3600))
    leases, served = Leases(database), dict[str, RunningAgent]()
    colleagues = Colleagues(leases, CallRepository(database), CallTargets(served.get))
    try:
        await leases.add_agents([AGENT])
        await leases.change(lambda state: [AGENT])
        change = asyncio.create_task(colleagues.find_agent(AGENT, changes=True))
        assert await colleagues.find_agent(AGENT, changes=False) is None
        assert not change.done()
        served[AGENT] = cast(RunningAgent, Recorder())
        assert await change is served[AGENT]
    finally:
        await colleagues.calls.close()
        await database.close()
