"""The clock of an agent and its table: what is due is done once, whatever fails, ends or is changed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, Session, every
from spade_coreason.contracts import NotificationState
from spade_coreason.domain.messages import Bounce
from spade_coreason.domain.quotas import Quota, Quotas
from spade_coreason.exceptions import StoreError
from spade_coreason.runtime.initiative.notifications import dump_blocks
from spade_coreason.runtime.tasks import AgentTasks, Next, TaskClock
from spade_coreason.storage import (
    MAX_OF_LANE,
    NOTIFICATION,
    SCHEDULE,
    SUSPENDED,
    WAITING,
    Commit,
    Task,
    TaskQueue,
    addition_of,
    deletion_of,
    update_of,
)
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.statements import UPDATE_TASK
from spade_coreason.testing import Policy, RunnerTimings
from tests.support.clock import Clock
from tests.support.databases import expect_failing_database, on_both_databases, open_without_sync
from tests.support.errors import ExpectedErrors
from tests.support.failing_rows import FailingRows
from tests.support.records import AGENT, ALICE, BOB, open_repository
from tests.support.runner import RememberingAgent, RunnerHarness
from tests.support.stored_initiative import make_reminder
from tests.support.wait import TIMEOUT_S, eventually

QUICK = Policy(timings=RunnerTimings(retry_s=0.05))


class Handling:
    """Handle tasks with a function, and record their keys."""

    failed = SUSPENDED, "it cannot run"
    most = 1000

    def __init__(self, work: Callable[[Task], Next], *, waits: bool = False) -> None:
        self.work = work
        self.waits = waits
        self.runs: list[str] = []

    async def run(self, task: Task, now: datetime) -> Next:
        self.runs.append(task.key)
        return self.work(task)


class Bench:
    """A clock with a handler over a database."""

    def __init__(self, database: Database, work: Callable[[Task], Next], *, waits: bool = False) -> None:
        self.queue = TaskQueue(database, AGENT, SCHEDULE)
        self.handler = Handling(work, waits=waits)
        self.tasks = AgentTasks(TaskQueue(database, AGENT), AGENT, lambda: datetime.now(UTC), retry_s=0.05)
        self.tasks.add_handler(SCHEDULE, self.handler)
        self.tasks.add_handler(NOTIFICATION, self.handler)
        self.clock = TaskClock(self.tasks)
        self.clock.open()

    async def add(self, key: str, owner: str = ALICE, **times: datetime) -> Task:
        task = self.queue.make(key, owner, None, "", "{}", datetime.now(UTC), **times)
        assert await self.queue.store([addition_of(task)])
        self.tasks.alarm.wake_at(task.due)
        return task

    async def close(self) -> None:
        await self.clock.close()
        self.clock.abandon()


@on_both_databases
async def test_after_a_failed_commit_the_handler_runs_again_and_no_commit_is_awaited_twice(
    database: Database, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot store a schedule")
    failing: list[Commit[bool]] = [Commit.failed(StoreError("the disk is full"))]
    given: list[Commit[bool]] = []

    def work(task: Task) -> Next:
        given.append(failing.pop() if failing else bench.queue.store([deletion_of(task)]))
        return given[-1]

    bench = Bench(database, work)
    await bench.add("a")
    await bench.clock.catch_up()
    assert bench.handler.runs == ["a", "a"]
    assert len(set(map(id, given))) == 2
    assert await bench.queue.load() == []
    await bench.close()


@on_both_databases
async def test_what_a_handler_returns_is_stored_again_until_it_is_durable_and_the_handler_does_not_run_again(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expect_failing_database(expected_errors, database_url, "cannot store a schedule")
    failing = FailingRows(UPDATE_TASK, 2)
    database = await open_without_sync(database_url, failing)
    bench = Bench(database, lambda task: task.moved(datetime.now(UTC), SUSPENDED, "done"))
    await bench.add("a")
    await bench.clock.catch_up()
    assert (failing.failures, bench.handler.runs) == (2, ["a"])
    [stored] = await bench.queue.load()
    assert (stored.state, stored.reason) == (SUSPENDED, "done")
    await bench.close()
    await database.close()


@on_both_databases
async def test_a_task_that_is_changed_by_hand_is_reserved_first(database: Database) -> None:
    bench = Bench(database, lambda task: None)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def change() -> None:
        async with bench.tasks.reserve(SCHEDULE, "a"):
            begun.set()
            await go_on.wait()
            assert await bench.queue.delete("a")

    changing = asyncio.create_task(change())
    await begun.wait()
    looks = bench.clock.wake_ups
    await bench.add("a")
    await bench.add("b")
    await eventually(lambda: bench.clock.wake_ups > looks)
    assert bench.handler.runs == []
    go_on.set()
    await changing
    await bench.clock.catch_up()
    assert bench.handler.runs == ["b"]  # the other one was not forgotten
    await bench.close()


async def test_a_change_by_hand_waits_for_what_is_being_stored(database_url: str) -> None:
    async with RunnerHarness(database_url) as harness:
        ident = await notify(harness)
        await eventually(lambda: len(harness.messages) == 1)
        with harness.writes.hold_batches() as batches:
            harness.messages[0].acknowledge()
            await eventually(lambda: bool(batches))
            retrying = asyncio.create_task(harness.runner.control.notifications.retry(ident))
            await asyncio.sleep(0)
            assert not retrying.done()
        assert await retrying
        await eventually(lambda: len(harness.messages) == 2)
        assert harness.sent[0] == harness.sent[1]


@on_both_databases
async def test_suspended_tasks_are_not_purged(database_url: str) -> None:
    database = await open_without_sync(database_url)
    repository, past = await open_repository(database, AGENT), datetime.now(UTC) - timedelta(days=100)
    suspended = make_reminder(repository, ALICE, past, "suspended").moved(past, SUSPENDED, "the person has no access")
    sent = repository.notifications.make_notification("sent", ALICE, None, "", "[]", past)
    waiting = repository.notifications.make_notification("waiting", ALICE, None, "", "[]", past)
    rows = suspended, sent.moved(past, NotificationState.SENT.value), waiting
    assert await repository.tasks.store([addition_of(task) for task in rows])
    for _ in range(2):  # the first time does nothing in a new database
        await repository.inbox.purge(datetime.now(UTC))
    assert sorted(task.key for task in await repository.tasks.load()) == ["suspended", "waiting"]
    await database.close()


@on_both_databases
async def test_a_task_that_the_database_does_not_take_holds_up_no_other(
    database: Database, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot store a schedule")

    def work(task: Task) -> Next:
        return Commit.failed(StoreError("its value is out of range")) if task.key == "bad" else None

    bench = Bench(database, work)
    await bench.add("bad")
    await eventually(lambda: bool(bench.handler.runs))
    await bench.add("good")
    await eventually(lambda: "good" in bench.handler.runs)
    await bench.close()


async def test_what_is_due_now_waits_for_no_earlier_time_that_a_jump_of_the_clock_has_left_behind(database: Database) -> None:
    bench, now = Bench(database, lambda task: None), datetime.now(UTC)
    await bench.add("later", due_at=now + timedelta(hours=1))
    bench.tasks.now = bench.tasks.alarm.now = lambda: datetime.now(UTC) + timedelta(hours=2)
    await bench.add("now", due_at=now + timedelta(hours=2))
    await eventually(lambda: sorted(bench.handler.runs) == ["later", "now"])
    await bench.close()


async def test_a_task_whose_work_is_cancelled_is_handed_over_again(database: Database) -> None:
    cancelled: list[str] = []

    def work(task: Task) -> Next:
        if not cancelled:
            cancelled.append(task.key)
            raise asyncio.CancelledError
        return None

    bench = Bench(database, work)
    await bench.add("a")
    await eventually(lambda: bench.handler.runs == ["a", "a"])
    await bench.clock.catch_up()
    assert bench.tasks.in_flight == {}
    await bench.close()


async def test_what_a_deletion_has_stopped_goes_on_if_nothing_is_deleted(database_url: str) -> None:
    async with RunnerHarness(database_url) as harness:
        ident = await notify(harness)
        await eventually(lambda: len(harness.messages) == 1)
        assert await harness.runner.control.erasure.refuse_person(ALICE)
        await harness.runner.control.erasure.admit_person(ALICE)
        await eventually(lambda: len(harness.messages) == 2)
        assert ident in harness.sent[1]


class Digger:
    """Begins a job."""

    manifest = AgentDefinition.simple("digger")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await session.later("job")
        await response.markdown("yes")


@pytest.mark.parametrize("thread", [None, "garden"])
async def test_a_job_goes_with_the_conversation_that_began_it(thread: str | None) -> None:
    policy = Policy(quotas=Quotas(user=Quota(messages_per_day=1)))  # so that the jobs wait
    async with AgentTester(Digger(), jid=AGENT, user=ALICE, policy=policy, clock=Clock()) as t:
        for person in (ALICE, BOB):
            await t.say("dig", thread=thread, user=person)
        await t.settled()
        repository = t.runners[AGENT].repository
        assert [(task.owner, task.thread) for task in await repository.schedules.load()] == [(ALICE, thread), (BOB, thread)]
        assert all(schedule.thread == schedule.id for schedule in await t.schedules())
        [record] = await repository.list_conversations(owner=ALICE)
        report = await repository.delete_conversation(record, with_copies=True)
        assert report.schedules == 1
        assert [task.owner for task in await repository.schedules.load()] == [BOB]


class Planner:
    """Reminds itself in its method that runs at times."""

    manifest = AgentDefinition.simple("planner")

    def __init__(self) -> None:
        self.due: list[object] = []

    @every("0 * * * *")
    async def plan(self, request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload:
            self.due.append(request.payload["query"])
        else:
            await session.remind(timedelta(minutes=90), "tea")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        self.due.append(request.payload["query"])


async def test_what_an_agent_reminds_itself_of_is_not_forgotten_at_a_restart() -> None:
    planner = Planner()
    async with AgentTester(planner, jid=AGENT, clock=Clock()) as t:
        await t.advance(timedelta(hours=1))
        assert len(await t.schedules()) == 2
        await t.restart()
        assert len(await t.schedules()) == 2
        await t.advance(timedelta(minutes=100))
        assert planner.due == ["tea"]


async def test_a_bounce_while_it_waits_for_its_conversation_counts(database_url: str) -> None:
    """It was sent by an earlier run of the platform."""
    release = asyncio.Event()
    agent = RememberingAgent(release=release)
    async with RunnerHarness(database_url, agent) as harness:
        await harness.receive("go")
        await asyncio.wait_for(agent.started.wait(), TIMEOUT_S)
        ident, clock = await notify(harness), harness.runner.task_clock
        await eventually(lambda: len(clock.tasks.in_flight) == 1)
        stored = harness.runner.notifier.receive_bounce(Bounce(ALICE, f"{ident}-1", "item-not-found", "", False))
        assert stored is not None
        assert await stored
        release.set()
        await harness.runner.mailboxes.wait_until_idle()
        assert not any(ident in stanza for stanza in harness.sent)
        assert await state_of(harness, ident) == NotificationState.BOUNCED


async def notify(harness: RunnerHarness, person: str = ALICE) -> str:
    """Notify a person in the conversation of `RunnerHarness.receive`, and return the id."""
    ident = str(uuid4())
    await harness.runner.control.notifications.notify(ident, person, "t", dump_blocks("hello"), "")
    return ident


async def state_of(harness: RunnerHarness, ident: str) -> str:
    stored = await harness.repository.notifications.find(ident)
    assert stored is not None
    return stored.state


async def test_close_does_not_cancel_what_is_in_a_mailbox(database_url: str) -> None:
    release = asyncio.Event()
    agent = RememberingAgent(release=release)
    async with RunnerHarness(database_url, agent) as harness:
        await harness.receive("go")
        await asyncio.wait_for(agent.started.wait(), TIMEOUT_S)
        ident, clock = await notify(harness), harness.runner.task_clock
        await eventually(lambda: len(clock.tasks.in_flight) == 1)
        await clock.close()
        release.set()
        await eventually(lambda: any(ident in stanza for stanza in harness.sent))
        harness.messages[-1].acknowledge()
        await clock.catch_up()
        assert await state_of(harness, ident) == NotificationState.SENT


async def test_waiting_for_a_conversation_or_for_the_server_is_not_busy(database_url: str) -> None:
    release = asyncio.Event()
    agent = RememberingAgent(release=release)
    async with RunnerHarness(database_url, agent) as harness:
        await harness.receive("go")
        await asyncio.wait_for(agent.started.wait(), TIMEOUT_S)
        clock = harness.runner.task_clock
        await notify(harness)
        assert clock.tasks.is_busy
        await asyncio.wait_for(clock.catch_up(), TIMEOUT_S)
        assert len(clock.tasks.in_flight) == 1
        release.set()
        await harness.runner.mailboxes.wait_until_idle()
        await asyncio.wait_for(clock.catch_up(), TIMEOUT_S)
        assert (len(clock.tasks.in_flight), clock.tasks.is_busy) == (1, False)
        harness.messages[-1].acknowledge()
        assert clock.tasks.is_busy
        await clock.catch_up()
        assert clock.tasks.in_flight == {}


async def test_a_bounce_is_stored_before_the_stream_is_acknowledged_and_a_late_acknowledgement_changes_nothing(
    database_url: str,
) -> None:
    async with RunnerHarness(database_url) as harness:
        ident = await notify(harness)
        await eventually(lambda: len(harness.messages) == 1)
        stanza_id = fromstring(harness.sent[0]).get("id") or ""
        stored = harness.runner.notifier.receive_bounce(Bounce(ALICE, stanza_id, "item-not-found", "", False))
        harness.messages[0].acknowledge()
        assert stored is not None
        assert await stored  # the stream is acknowledged up to here then
        assert await state_of(harness, ident) == NotificationState.BOUNCED
        harness.messages[0].acknowledge()
        await harness.runner.task_clock.catch_up()
        assert await state_of(harness, ident) == NotificationState.BOUNCED


@on_both_databases
async def test_a_bounce_while_the_database_does_not_take_the_acknowledgement_counts(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expect_failing_database(expected_errors, database_url, "cannot store a notification")
    failing = FailingRows(UPDATE_TASK, 1)
    async with RunnerHarness(database_url, policy=QUICK) as harness:
        ident = await notify(harness)
        await eventually(lambda: len(harness.messages) == 1)
        harness.writes.on_batch = failing
        harness.messages[0].acknowledge()
        await eventually(lambda: failing.failures == 1)
        stanza_id = fromstring(harness.sent[0]).get("id") or ""
        stored = harness.runner.notifier.receive_bounce(Bounce(ALICE, stanza_id, "item-not-found", "", False))
        assert stored is not None
        await stored.wait()
        await harness.runner.task_clock.catch_up()
        assert await state_of(harness, ident) == NotificationState.BOUNCED


@on_both_databases
async def test_tasks_that_wait_hold_up_those_of_their_owner_only(database: Database) -> None:
    held = asyncio.Event()

    class Holding(Handling):
        async def run(self, task: Task, now: datetime) -> Next:
            self.runs.append(task.key)
            if task.owner == "slow@localhost":
                await held.wait()
            return None

    bench = Bench(database, lambda task: None)
    bench.handler = Holding(lambda task: None, waits=True)
    bench.tasks.handlers = {SCHEDULE: bench.handler}
    past = datetime.now(UTC) - timedelta(hours=1)
    many = [bench.queue.make(f"slow {n}", "slow@localhost", None, "", "{}", past) for n in range(2 * MAX_OF_LANE + 100)]
    others = [bench.queue.make(f"other {n}", f"p{n}@localhost", None, "", "{}", datetime.now(UTC)) for n in range(150)]
    assert await bench.queue.store([addition_of(task) for task in (*many, *others)])
    bench.clock.check()
    await eventually(lambda: len(bench.handler.runs) == MAX_OF_LANE + len(others))
    assert sum(key.startswith("slow") for key in bench.handler.runs) == MAX_OF_LANE
    held.set()
    await eventually(lambda: len(bench.handler.runs) == len(many) + len(others))
    await bench.clock.catch_up()
    assert await bench.queue.load() == []
    await bench.close()


async def test_a_task_that_is_stored_while_the_clock_looks_is_found(database: Database) -> None:
    bench = Bench(database, lambda task: None)
    for number in range(30):
        bench.clock.check()
        await bench.add(str(number))
    await bench.clock.catch_up()
    assert sorted(bench.handler.runs, key=int) == [str(number) for number in range(30)]
    await bench.close()


@on_both_databases
async def test_a_state_without_new_data_leaves_the_data_as_they_are(database_url: str) -> None:
    database = await open_without_sync(database_url)
    queue = TaskQueue(database, AGENT, NOTIFICATION)
    task, now = queue.make_notification("a", ALICE, None, "", '["old"]', datetime.now(UTC)), datetime.now(UTC)
    await queue.store([addition_of(task)])
    await queue.store([update_of(task._replace(data='{"content":["new"]}'), with_data=True)])
    await queue.store([update_of(task.moved(now, NotificationState.SENT.value))])
    [stored] = await queue.load()
    assert (stored.state, stored.values) == (NotificationState.SENT, {"content": ["new"]})
    assert (await queue.load_next([NOTIFICATION], now, 10, [], {}), stored.moved(now).state) == ([], WAITING)
    await database.close()
