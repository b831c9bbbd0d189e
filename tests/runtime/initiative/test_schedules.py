"""Schedules: a due time is a request, once, in the conversation that made it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4, uuid5
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Peers, Response, Session, agent, every
from spade_coreason.contracts import Missed, NotificationState
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.channel_kinds import PERSON, ROOM
from spade_coreason.domain.messages import NO_HEADERS, ROOM_HEADERS, InboundRequest, RoomOrigin
from spade_coreason.domain.quotas import Quota, Quotas
from spade_coreason.runtime.initiative.notifications import MAX_CONTENT_BYTES
from spade_coreason.runtime.initiative.schedules import MAX_PAYLOAD_BYTES, MAX_SCHEDULES
from spade_coreason.storage import SUSPENDED, addition_of, update_of
from spade_coreason.storage.backends.statements import DELETE_TASK, UPDATE_TASK
from spade_coreason.testing import Policy, Rules, RunnerTimings
from tests.support.clock import Clock
from tests.support.databases import expect_failing_database, on_both_databases
from tests.support.errors import ExpectedErrors
from tests.support.initiative import BOB, START, TESTER, Interruption, ScriptedAgent, scripted
from tests.support.records import AGENT, ALICE
from tests.support.runner import RunnerHarness
from tests.support.wait import TIMEOUT_S, eventually

HOUR = timedelta(hours=1)


async def remind(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
    """Remind after the given number of hours, or at the times of cron; "list" and "cancel" do so; else send the query back."""
    query = request.payload["query"]
    command, _, rest = query.partition(" ")
    if command == "in":
        await response.markdown(await session.remind(timedelta(hours=float(rest)), "tea"))
    elif command == "cron":
        await response.markdown(await session.remind(rest, "tea"))
    elif command == "skip":
        await response.markdown(await session.remind(rest, "tea", missed="skip"))
    elif command == "list":
        await response.markdown(" ".join(schedule.id for schedule in await session.schedules()) or "none")
    elif command == "cancel":
        await response.markdown(str(await session.cancel_schedule(rest)))
    else:
        await response.markdown(f"you said {query}")


def start(work: Any = remind, on_due: Any = None, **options: Any) -> AgentTester:
    return AgentTester(scripted(work, on_due), clock=Clock(START), **options)


# Times


@pytest.mark.parametrize("when", [2 * HOUR, START + 2 * HOUR, (START + 2 * HOUR).astimezone(), "0 14 * * *"])
async def test_a_reminder_comes_at_its_time_in_the_conversation_that_made_it(when: Any) -> None:
    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        await session.remind(when, "tea")

    async with start(work) as t:
        await t.say("go", thread="kitchen")
        await t.advance(2 * HOUR - timedelta(seconds=1))
        assert t.unread() == []
        await t.advance(timedelta(seconds=1))
        message = await t.message()
        assert (message.text, message.thread) == ("tea", "kitchen")


async def test_a_reminder_that_repeats_goes_on_until_it_is_cancelled() -> None:
    async with start() as t:
        [schedule_id] = await t.say("cron 0 * * * *")
        await t.advance(3 * HOUR)
        assert t.unread() == ["tea"] * 3
        assert await t.say("list") == [schedule_id]
        assert await t.say(f"cancel {schedule_id}") == ["True"]
        assert await t.say(f"cancel {schedule_id}") == ["False"]
        assert await t.say("list") == ["none"]
        await t.advance(3 * HOUR)
        assert t.unread() == []


async def test_a_person_neither_sees_nor_cancels_the_reminders_of_another() -> None:
    async with start() as t:
        [schedule_id] = await t.say("in 1")
        assert await t.say("list", user=BOB) == ["none"]
        assert await t.say(f"cancel {schedule_id}", user=BOB) == ["False"]
        await t.advance(HOUR)
        assert t.unread() == ["tea"]


async def test_a_due_time_is_a_request_with_an_id_and_metadata_of_its_own() -> None:
    seen: list[AgentRequest] = []

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        seen.append(request)

    async with start(on_due=on_due) as t:
        [schedule_id] = await t.say("in 1")
        await t.advance(HOUR)
    [request] = seen
    due_at = (START + HOUR).isoformat()
    assert request.request_id == uuid5(UUID(schedule_id), due_at)
    assert request.payload == {"query": "tea"}
    expected = {"schedule": schedule_id, "due_at": due_at, "channel": "schedule", "sender": f"{TESTER}/test"}
    assert {name: request.metadata[name] for name in expected} == expected


async def test_a_due_turn_that_is_cut_off_runs_again_with_the_same_id() -> None:
    ids: list[UUID] = []
    interruption = Interruption()

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        ids.append(request.request_id)
        await interruption(request)
        await response.markdown("tea")

    clock = Clock(START)
    async with AgentTester(scripted(remind, on_due), clock=clock) as t:
        await t.say("in 1")
        advancing = asyncio.create_task(t.advance(HOUR))
        async with asyncio.timeout(TIMEOUT_S):
            await interruption.reached.wait()
        advancing.cancel()
        await asyncio.wait({advancing})
        await t.restart(grace_s=0)
        await t.settled()
        assert t.unread() == ["tea"]
    assert len(ids) == 2
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("when", "payload", "problem"),
    [
        (timedelta(seconds=-1), "tea", "time to come"),
        (datetime(2030, 1, 2), "tea", "time zone"),
        (5, "tea", "timedelta"),
        ("not cron", "tea", "not cron"),
        (HOUR, 7, "payload"),
        (HOUR, {"text": "x" * MAX_PAYLOAD_BYTES}, "limit"),
    ],
)
async def test_an_unsuitable_time_or_payload_is_an_error_at_once(when: Any, payload: Any, problem: str) -> None:
    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        with pytest.raises(ValueError, match=problem):
            await session.remind(when, payload)
        await response.markdown("refused")

    async with start(work) as t:
        assert await t.say("go") == ["refused"]
        assert await t.schedules() == []


async def test_a_time_that_is_over_is_an_error_if_it_would_be_skipped() -> None:
    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        with pytest.raises(ValueError, match='is over, and would be skipped; give a time to come, or missed="once"'):
            await session.remind(START - HOUR, "tea", missed="skip")
        await session.remind(START, "milk", missed="skip")
        await session.remind(START - HOUR, "late tea")

    async with start(work) as t:
        await t.say("go")
        await t.advance(timedelta(seconds=1))
        assert sorted(t.unread()) == ["late tea", "milk"]


async def test_a_payload_may_be_a_text_or_a_dict() -> None:
    seen = []

    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        for payload in ("tea", {"kind": "tea", "cups": [1, 2]}, {}):
            await session.remind(HOUR, payload)

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        seen.append(request.payload)

    async with start(work, on_due) as t:
        await t.say("go")
        await t.advance(HOUR)
    assert seen == [{"query": "tea"}, {"kind": "tea", "cups": [1, 2]}, {}]


async def test_a_person_has_a_hundred_schedules_at_most() -> None:
    problems = []

    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        try:
            for _ in range(MAX_SCHEDULES + 1):
                await session.remind(HOUR, "tea")
        except ValueError as error:
            problems.append(str(error))

    async with start(work) as t:
        await t.say("go", timeout=60)
        assert len(problems) == 1
        assert str(MAX_SCHEDULES) in problems[0]
        assert len(await t.schedules(TESTER)) == MAX_SCHEDULES


# Once


@pytest.mark.parametrize("kind", ["remind", "later"])
async def test_a_turn_that_runs_again_makes_no_second_schedule(kind: str) -> None:
    interruption = Interruption()
    due: list[str] = []

    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        made = await (session.remind(HOUR, "tea") if kind == "remind" else session.later("tea"))
        await interruption(request)
        await response.markdown(made)

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        due.append(request.metadata["schedule"])

    async with start(work, on_due) as t:
        asking = asyncio.create_task(t.ask("go"))
        async with asyncio.timeout(TIMEOUT_S):
            await interruption.reached.wait()
        await t.restart(grace_s=0)
        schedule_id = (await asking).text
        await t.advance(2 * HOUR)
        assert due == [schedule_id]


@pytest.mark.parametrize(("command", "expected"), [("cron", ["tea"]), ("skip", [])])
async def test_times_that_were_missed_come_once_or_not_at_all(command: str, expected: list[str]) -> None:
    async with start() as t:
        await t.say(f"{command} 30 14 * * *")
        await t.restart(down_for=timedelta(days=3))
        await t.settled()
        assert t.unread() == expected
        await t.advance(timedelta(days=1))
        assert t.unread() == ["tea"]


async def test_a_time_that_comes_once_and_was_missed_comes_late() -> None:
    async with start() as t:
        await t.say("in 1")
        await t.restart(down_for=timedelta(days=3))
        await t.settled()
        assert t.unread() == ["tea"]
        assert await t.schedules() == []


# Due times while an earlier run has not ended


class EveryMinute:
    """Work every minute, and answer reminders. Each run waits until it is released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.release.set()
        self.seen: list[datetime] = []

    async def _run(self, request: AgentRequest) -> None:
        self.seen.append(datetime.fromisoformat(request.metadata["due_at"]))
        await self.release.wait()


class Working(EveryMinute):
    manifest = AgentDefinition.simple("working")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown("heard")

    @every("* * * * *")
    async def tick(self, request: AgentRequest, session: Session, response: Response) -> None:
        await self._run(request)


class WorkingUnlessLate(Working):
    @every("* * * * *", missed="skip")
    async def tick(self, request: AgentRequest, session: Session, response: Response) -> None:
        await self._run(request)


class Reminding(EveryMinute):
    manifest = AgentDefinition.simple("reminding")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        if "due_at" in request.metadata:
            await self._run(request)
        else:
            await session.remind("* * * * *", "tea", missed=request.payload["query"])


@pytest.fixture(params=["every", "reminder"])
def make_busy(request: pytest.FixtureRequest) -> Callable[[Missed], EveryMinute]:
    def make(missed: Missed) -> EveryMinute:
        return Reminding() if request.param == "reminder" else Working() if missed == "once" else WorkingUnlessLate()

    return make


async def pass_minutes(harness: RunnerHarness, clock: Clock, minutes: int) -> None:
    """Let all that is due in this time be handed over, minute by minute."""
    for _ in range(minutes):
        clock.advance(minutes=1)
        harness.runner.task_clock.check()
        await harness.runner.task_clock.catch_up()


@pytest.mark.parametrize("missed", ["once", "skip"])
@on_both_databases
async def test_of_a_schedule_whose_run_hangs_one_request_waits_at_most(
    database_url: str, make_busy: Callable[[Missed], EveryMinute], missed: Missed
) -> None:
    clock, agent = Clock(START), make_busy(missed)
    async with RunnerHarness(database_url, agent, clock=clock) as harness:
        await harness.receive_and_wait(missed)
        harness.runner.task_clock.tasks.alarm.has_timer = False
        agent.release.clear()
        await pass_minutes(harness, clock, 60)
        assert (len(agent.seen), harness.runner.mailboxes.waiting_count) == (1, 1)
        agent.release.set()
        await harness.runner.mailboxes.wait_until_idle()
        await pass_minutes(harness, clock, 1)
        await harness.runner.mailboxes.wait_until_idle()
    late = [START + timedelta(minutes=2)] if missed == "once" else []
    assert agent.seen == [START + timedelta(minutes=1), *late, START + timedelta(minutes=61)]


@pytest.mark.parametrize("missed", ["once", "skip"])
@on_both_databases
async def test_of_a_schedule_of_a_paused_agent_one_request_waits_at_most(
    database_url: str, make_busy: Callable[[Missed], EveryMinute], missed: Missed
) -> None:
    clock, agent = Clock(START), make_busy(missed)
    async with RunnerHarness(database_url, agent, clock=clock) as harness:
        await harness.receive_and_wait(missed)
        harness.runner.task_clock.tasks.alarm.has_timer = False
        await harness.runner.control.set_paused(True)
        await pass_minutes(harness, clock, 60)
        assert (agent.seen, harness.runner.mailboxes.waiting_count) == ([], 1)
        await harness.runner.control.set_paused(False)
        await harness.runner.mailboxes.wait_until_idle()
        assert agent.seen == ([START + timedelta(minutes=1)] if missed == "once" else [])
        await pass_minutes(harness, clock, 1)
        await harness.runner.mailboxes.wait_until_idle()
        assert agent.seen[-1] == START + timedelta(minutes=61)


@pytest.mark.parametrize("missed", ["once", "skip"])
async def test_one_request_of_a_schedule_waits_also_over_a_restart(
    database_url: str, make_busy: Callable[[Missed], EveryMinute], missed: Missed
) -> None:
    clock, agent = Clock(START), make_busy(missed)
    harness = RunnerHarness(database_url, agent, clock=clock)
    for number in range(3):
        async with harness:
            if not number:
                await harness.receive_and_wait(missed)
                await harness.runner.control.set_paused(True)
            harness.runner.task_clock.tasks.alarm.has_timer = False
            await pass_minutes(harness, clock, 10)
            assert (agent.seen, harness.runner.mailboxes.waiting_count) == ([], 1)


async def test_a_run_that_ends_a_little_late_drops_no_due_time(database_url: str) -> None:
    clock, agent = Clock(START), WorkingUnlessLate()
    async with RunnerHarness(database_url, agent, clock=clock) as harness:
        harness.runner.task_clock.tasks.alarm.has_timer = False
        agent.release.clear()
        await pass_minutes(harness, clock, 2)
        clock.advance(minutes=5)
        agent.release.set()
        await harness.runner.mailboxes.wait_until_idle()
    assert agent.seen == [START + timedelta(minutes=1), START + timedelta(minutes=2)]


# Jobs


async def start_job(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
    await session.later({"query": "dig", "size": 3})
    await response.markdown("I began")


async def test_the_reply_of_a_job_is_a_notification_where_it_was_begun() -> None:
    places = []

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        places.append((request.metadata["conversation_id"], len(await session.history(10)), request.payload))
        await response.markdown("dug")
        await response.markdown("and filled")

    async with start(start_job, on_due) as t:
        assert await t.say("go", thread="garden") == ["I began"]
        await t.settled()
        messages = [message for message in t.messages() if message.text and message.text != "I began"]
        assert [message.thread for message in messages] == ["garden"] * len(messages)
        assert "\n".join(message.text or "" for message in messages).split() == ["dug", "and", "filled"]
        [notification] = await t.notifications()
        assert (notification.person, notification.thread, notification.state) == (TESTER, "garden", NotificationState.SENT)
        garden = next(one for one in await t.conversations() if one.conversation_id != places[0][0])
        assert places == [(places[0][0], 0, {"query": "dig", "size": 3})]
        assert garden.interaction_count == 1


@pytest.mark.parametrize("thread", ["garden", None])
async def test_what_a_job_asks_for_comes_to_the_person_where_the_job_was_begun(thread: str | None) -> None:
    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        match request.payload["query"]:
            case "dig":
                await session.remind(HOUR, "water")
                await session.later("plant")
            case query:
                await response.markdown(query)

    async with start(start_job, on_due) as t:
        assert await t.say("go", thread=thread) == ["I began"]
        assert ((first := await t.message()).text, first.thread) == ("plant", thread)
        await t.advance(HOUR)
        assert ((second := await t.message()).text, second.thread) == ("water", thread)


async def test_the_reply_of_a_job_may_be_larger_than_a_notification() -> None:
    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown("dug " * (MAX_CONTENT_BYTES // 4 + 1))

    async with start(start_job, on_due) as t:
        assert await t.say("go") == ["I began"]
        await t.settled()
        [notification] = await t.notifications()
        assert notification.state == NotificationState.SENT
        assert any("The whole answer" in (message.text or "") for message in t.messages())


async def test_a_conversation_goes_on_while_its_job_runs() -> None:
    release = asyncio.Event()

    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] == "go":
            await session.later("dig")
        await response.markdown("heard")

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        await release.wait()
        await response.markdown("dug")

    async with start(work, on_due) as t:
        assert await t.say("go") == ["heard"]
        assert await t.say("and now?") == ["heard"]
        release.set()
        assert (await t.message()).text == "dug"


async def test_a_job_that_fails_tells_so_with_an_incident(expected_errors: ExpectedErrors) -> None:
    expected_errors("incident")

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        raise RuntimeError("the spade broke")

    async with start(start_job, on_due) as t:
        await t.say("go")
        text = (await t.message()).text or ""
        assert "spade" not in text
        [incident] = [text for text in expected_errors.logged if "incident" in text]
        assert text.split()  # people read a sentence
        assert any(word.strip(".()") in incident for word in text.split() if len(word.strip(".()")) >= 6)


async def test_a_job_has_a_time_limit_of_its_own(expected_errors: ExpectedErrors) -> None:
    expected_errors("assist took longer than 0.2 s")

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        await asyncio.Event().wait()

    async with start(start_job, on_due, policy=Policy(rules=Rules(job_timeout_s=0.2))) as t:
        await t.say("go")
        assert (await t.message(timeout=TIMEOUT_S)).text


async def test_a_job_outlasts_the_limit_of_other_turns() -> None:
    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        await asyncio.sleep(1.2)  # work that takes longer than the limit of other turns
        await response.markdown("dug")

    async with start(start_job, on_due, policy=Policy(rules=Rules(assist_timeout_s=1))) as t:
        await t.say("go")
        assert (await t.message(timeout=TIMEOUT_S)).text == "dug"


# @every


class Hourly:
    manifest = AgentDefinition.simple("hourly")

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any, int]] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown("heard")

    @every("0 * * * *")
    async def tick(self, request: AgentRequest, session: Session, response: Response) -> None:
        count = await session.get("count", 0) + 1
        await session.store("count", count)
        self.seen.append((request.metadata["due_at"], request.metadata["every"], count))
        await response.markdown(f"tick {count}")


class Daily(Hourly):
    @every("0 8 * * *")
    async def tick(self, request: AgentRequest, session: Session, response: Response) -> None:
        await super().tick(request, session, response)


class Removed(Hourly):
    tick = None  # type: ignore[assignment]  # the method is gone in a new version


async def test_a_method_runs_at_its_times_in_a_conversation_of_the_agent_and_tells_nobody() -> None:
    hourly = Hourly()
    async with AgentTester(hourly, clock=Clock(START)) as t:
        await t.advance(2 * HOUR)
        assert hourly.seen == [((START + n * HOUR).isoformat(), "tick", n) for n in (1, 2)]
        assert t.messages() == []
        repository = t.runners[t.jid].repository
        [conversation] = await repository.list_conversations()
        assert (conversation.owner, conversation.thread if hasattr(conversation, "thread") else "every:tick") == (
            t.jid,
            "every:tick",
        )
        assert "tick 1" in (await repository.turns.load_history(conversation.id, 10))[0]
        await t.restart()
        await t.advance(HOUR)
        assert [count for _, _, count in hourly.seen] == [1, 2, 3]


async def test_other_times_of_a_method_count_from_the_next_start_and_a_method_that_is_gone_has_none() -> None:
    build = Hourly
    async with AgentTester(lambda: build(), clock=Clock(START)) as t:
        [schedule] = await t.schedules()
        assert (schedule.kind, schedule.owner, schedule.cron, schedule.due_at) == ("every", t.jid, "0 * * * *", START + HOUR)
        build = Daily
        await t.restart()
        [changed] = await t.schedules()
        assert (changed.id, changed.cron, changed.due_at) == (schedule.id, "0 8 * * *", START + 20 * HOUR)
        build = Removed
        await t.restart()
        assert await t.schedules() == []
        await t.advance(timedelta(days=1))


async def test_a_method_that_could_not_run_is_tried_again_after_a_start() -> None:
    hourly = Hourly()
    async with AgentTester(hourly, clock=Clock(START)) as t:
        repository = t.runners[t.jid].repository.schedules
        [stored] = await repository.load()
        await repository.store([update_of(stored.moved(START, SUSPENDED, "it cannot run; see the log"))])
        await t.advance(HOUR)
        assert hourly.seen == []
        await t.restart()
        await t.advance(HOUR)
        assert len(hourly.seen) == 1


# Limits, access, state


async def test_a_quota_that_is_used_up_delays_a_reminder() -> None:
    async with start(policy=Policy(quotas=Quotas(user=Quota(messages_per_day=2)))) as t:
        await t.say("in 1")
        await t.say("hello")
        await t.advance(11 * HOUR)
        assert t.unread() == []
        assert len(await t.schedules()) == 1
        await t.advance(2 * HOUR)  # a new day has begun
        assert t.unread() == ["tea"]
        assert await t.schedules() == []


@pytest.mark.parametrize(("down_until", "expected"), [(timedelta(hours=12), ["tea"]), (timedelta(hours=13), [])])
async def test_a_due_time_that_waits_for_a_quota_is_missed_only_if_the_platform_is_down_when_the_quota_has_room(
    down_until: timedelta, expected: list[str]
) -> None:
    async with start(policy=Policy(quotas=Quotas(user=Quota(messages_per_day=2)))) as t:
        await t.say("skip 0 13 * * *")
        await t.say("hello")
        await t.advance(2 * HOUR)  # it waits until midnight
        assert t.unread() == []
        await t.restart(down_for=down_until - 2 * HOUR)
        await t.settled()
        assert t.unread() == expected
        await t.advance(timedelta(days=1))
        assert t.unread() == ["tea"]


async def test_a_person_who_lost_access_is_not_reminded_and_the_schedule_says_so() -> None:
    async with start(allow=(TESTER,), policy=Policy(operators=frozenset({TESTER}))) as t:
        await t.say(f"/admit {BOB}")
        await t.say("in 1")
        await t.say("in 1", user=BOB)
        await t.say(f"/reject {BOB}")
        t.unread(BOB)
        await t.advance(2 * HOUR)
        assert (t.unread(BOB), t.unread(TESTER)) == ([], ["tea"])
        [schedule] = await t.schedules()
        assert (schedule.owner, schedule.state) == (BOB, SUSPENDED)
        assert schedule.reason
        with pytest.raises(ValueError, match="no access"):
            await t.runners[t.jid].control.schedules.run_now(schedule.id)
        await t.say(f"/admit {BOB}")
        await t.settled()
        assert t.unread(BOB)[-1] == "tea"
        assert await t.schedules() == []


async def test_a_schedule_that_cannot_be_read_holds_up_no_other(expected_errors: ExpectedErrors) -> None:
    expected_errors("cannot run")
    async with start() as t:
        await t.say("cron */5 * * * *")
        repository = t.runners[t.jid].repository.schedules
        [stored] = await repository.load()
        data = json.dumps({**stored.values, "zone": "Nowhere/Land"})
        broken = stored._replace(id=repository.row_ids.next(), key=str(uuid4()), data=data)
        assert await repository.store([addition_of(broken)])
        await t.advance(HOUR / 10)
        assert t.unread() == ["tea"]
        states = {schedule.id: schedule.state for schedule in await t.schedules()}
        assert states == {stored.key: "waiting", broken.key: SUSPENDED}


async def test_a_reminder_that_an_operator_runs_comes_once() -> None:
    async with start() as t:
        await t.say("in 1")
        [schedule] = await t.schedules()
        assert await t.runners[t.jid].control.schedules.run_now(schedule.id)
        await t.advance(2 * HOUR)
        assert t.unread() == ["tea"]
        assert not await t.runners[t.jid].control.schedules.run_now(schedule.id)


async def test_a_reminder_that_an_agent_asks_for_is_recorded_and_sent_to_nobody() -> None:
    seen = []

    @agent
    async def caller(request: AgentRequest, session: Session, response: Response, peers: Peers) -> None:
        await peers.ask("agent@localhost", "cron 0 * * * *")
        await response.markdown("asked")

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        seen.append([turn.output.get("text") for turn in await session.history(10)])
        await response.markdown("tea")

    async with start(on_due=on_due, peers={"caller": caller}) as t:
        assert await t.say("go", to="caller@localhost") == ["asked"]
        [schedule] = await t.schedules()
        await t.advance(2 * HOUR)
        assert seen == [[schedule.id], [schedule.id, "tea"]]
        assert t.unread() == []


async def test_due_times_end_no_conversation_by_their_number() -> None:
    async with start(policy=Policy(rules=Rules(max_interactions=2, timeout_s=0))) as t:
        await t.say("cron 0 * * * *")
        await t.advance(5 * HOUR)
        assert t.unread() == ["tea"] * 5


async def test_cancel_stops_a_due_turn_and_not_its_schedule() -> None:
    started, ran = asyncio.Event(), []

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        ran.append(request.metadata["due_at"])
        if len(ran) == 1:
            started.set()
            await asyncio.Event().wait()
        await response.markdown("tea")

    async with start(on_due=on_due) as t:
        await t.say("cron 0 * * * *")
        advancing = asyncio.create_task(t.advance(HOUR))
        async with asyncio.timeout(TIMEOUT_S):
            await started.wait()
        t.send("/cancel")
        await advancing
        t.unread()
        await t.advance(HOUR)
        assert t.unread() == ["tea"]
    assert len(ran) == 2


async def test_a_due_turn_that_fails_tells_the_person_and_the_next_one_runs(expected_errors: ExpectedErrors) -> None:
    expected_errors("incident")
    count = 0

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        nonlocal count
        count += 1
        if count == 1:
            raise RuntimeError("no kettle")
        await response.markdown("tea")

    async with start(on_due=on_due) as t:
        await t.say("cron 0 * * * *")
        await t.advance(2 * HOUR)
        [problem, tea] = t.unread()
        assert "kettle" not in problem
        assert tea == "tea"


async def test_a_due_turn_that_was_cut_off_is_reported_if_the_platform_repeats_no_turns() -> None:
    runs = []
    interruption = Interruption()

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        runs.append(request.request_id)
        await interruption(request)
        await response.markdown("tea")

    async with start(on_due=on_due, policy=Policy(rules=Rules(on_restart="report"))) as t:
        await t.say("in 1")
        advancing = asyncio.create_task(t.advance(HOUR))
        async with asyncio.timeout(TIMEOUT_S):
            await interruption.reached.wait()
        advancing.cancel()
        await asyncio.wait({advancing})
        await t.restart(grace_s=0)
        await t.settled()
        [report] = t.unread()
        assert report != "tea"
    assert len(runs) == 1


async def receive_in_room(harness: RunnerHarness, room: str, occupant: str | None, *, is_private: bool = False) -> None:
    """Let an occupant ask for a reminder in an hour."""
    metadata = {"room": room, "nickname": "ann"} | ({} if occupant is None else {"occupant": occupant})
    owner = f"{room}/occupant-1" if is_private else room
    incoming = InboundRequest(
        PERSON if is_private else ROOM,
        f"{room}/ann",
        str(uuid4()),
        None,
        {"query": "in 1"},
        "in 1",
        metadata,
        NO_HEADERS if is_private else ROOM_HEADERS,
        room=RoomOrigin(owner, "ann"),
        owner=owner,
    )
    stored = harness.runner.intake.receive(incoming)
    assert stored is not None
    await stored
    await harness.runner.mailboxes.wait_until_idle()


async def run_due(harness: RunnerHarness) -> None:
    """Let the agent look at its clock, and do what is due."""
    harness.runner.task_clock.check()
    await harness.runner.task_clock.catch_up()
    await harness.runner.mailboxes.wait_until_idle()


async def test_what_a_room_asks_for_is_due_in_the_room(database_url: str) -> None:
    room = "garden@rooms.localhost"
    clock = Clock(START)
    agent = ScriptedAgent(None, remind)
    async with RunnerHarness(database_url, agent, clock=clock) as harness:
        harness.rooms.add(room)
        await receive_in_room(harness, room, ALICE)
        [schedule] = await harness.runner.control.schedules.find_all()
        assert schedule.owner == room
        clock.advance(hours=1)
        await run_due(harness)
        stanza = fromstring(harness.sent[-1])
        assert (stanza.get("to"), stanza.get("type")) == (room, "groupchat")
        assert "tea" in harness.sent[-1]


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("occupant", [ALICE, None])
async def test_in_a_room_a_person_is_reminded_while_they_have_access_or_are_not_known(
    database_url: str, occupant: str | None, is_private: bool
) -> None:
    room = "garden@rooms.localhost"
    clock = Clock(START)
    agent = ScriptedAgent(None, remind)
    access = AccessPolicy(AGENT, (), operators=(BOB,))
    async with RunnerHarness(database_url, agent, clock=clock, access=access) as harness:
        decide = harness.runner.control.access_requests.decide
        await decide(ALICE, True)
        harness.rooms.add(room)
        await receive_in_room(harness, room, occupant, is_private=is_private)
        await decide(ALICE, False)
        harness.sent.clear()
        clock.advance(hours=1)
        await run_due(harness)
        if occupant is not None:
            assert not any("tea" in stanza for stanza in harness.sent)
            [schedule] = await harness.runner.control.schedules.find_all()
            assert (schedule.state, schedule.reason) == (SUSPENDED, "the person has no access; admit them, or cancel it")
            await decide(ALICE, True)
            await harness.runner.repository.database.write(lambda connection: None)  # the schedule goes on once that is stored
            await run_due(harness)
        assert sum("tea</body>" in stanza for stanza in harness.sent) == 1
        assert await harness.runner.control.schedules.find_all() == []


async def test_what_is_due_for_a_contact_waits_for_the_roster_and_goes_on_when_the_contact_is_back(database_url: str) -> None:
    clock = Clock(START)
    agent = ScriptedAgent(None, remind)
    access = AccessPolicy(AGENT, (), roster=True)
    async with RunnerHarness(database_url, agent, clock=clock, access=access) as harness:
        scheduler, contacts = harness.runner.control.schedules, harness.runner.control.access_requests
        for query in ("in 1", "in 2"):
            await harness.receive_and_wait(query)
        clock.advance(hours=1)
        await run_due(harness)
        assert [schedule.state for schedule in await scheduler.find_all()] == ["waiting"] * 2  # there is no roster yet
        contacts.set_contacts({ALICE}, set(), is_whole_roster=True)
        clock.advance(minutes=1)
        await run_due(harness)
        assert sum("<body>tea" in stanza for stanza in harness.sent) == 1
        contacts.set_contacts(set(), {ALICE}, is_whole_roster=False)
        clock.advance(hours=1)
        await run_due(harness)
        assert [schedule.state for schedule in await scheduler.find_all()] == [SUSPENDED]
        contacts.set_contacts({ALICE}, set(), is_whole_roster=False)
        await eventually(lambda: sum("<body>tea" in stanza for stanza in harness.sent) == 2)


async def test_what_is_due_in_a_room_that_the_agent_has_left_is_suspended_and_says_so(database_url: str) -> None:
    room = "garden@rooms.localhost"
    clock = Clock(START)
    agent = ScriptedAgent(None, remind)
    async with RunnerHarness(database_url, agent, clock=clock) as harness:
        harness.rooms.add(room)
        await receive_in_room(harness, room, ALICE)
        harness.rooms.clear()
        harness.sent.clear()
        clock.advance(hours=1)
        await run_due(harness)
        [schedule] = await harness.runner.control.schedules.find_all()
        assert "not in the room" in schedule.reason
        with pytest.raises(ValueError, match="not in the room"):
            await harness.runner.control.schedules.run_now(schedule.id)
        harness.rooms.add(room)
        assert await harness.runner.control.schedules.run_now(schedule.id)
        await run_due(harness)
        assert sum("tea</body>" in stanza for stanza in harness.sent) == 1


async def test_one_that_is_due_while_it_is_cancelled_does_not_run(database_url: str) -> None:
    clock = Clock(START)
    agent = ScriptedAgent(None, remind)
    async with RunnerHarness(database_url, agent, clock=clock) as harness:
        await harness.receive_and_wait("in 1")
        schedules, clock_of_tasks = harness.runner.control.schedules, harness.runner.task_clock
        [schedule] = await schedules.find_all()
        with harness.writes.hold_batches():
            cancelling = asyncio.create_task(schedules.cancel(schedule.id))
            await asyncio.sleep(0)
            clock.advance(hours=1)
            looks = clock_of_tasks.wake_ups
            clock_of_tasks.check()
            await eventually(lambda: clock_of_tasks.wake_ups > looks)
        assert await cancelling
        await clock_of_tasks.catch_up()
        await harness.runner.mailboxes.wait_until_idle()
        assert not any("tea" in stanza for stanza in harness.sent)


async def test_a_database_that_fails_delays_a_due_time_and_runs_it_once(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expect_failing_database(
        expected_errors, database_url, "cannot store a schedule", "cannot store a request of alice@localhost"
    )
    runs: list[str] = []
    failures = 0

    async def on_due(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        runs.append(request.metadata["due_at"])
        await response.markdown("tea")

    def fail_once(batch: list[Any], write: Callable[[list[Any]], None]) -> None:
        nonlocal failures
        for pending in batch:
            if not failures and any(number == DELETE_TASK for number, _ in getattr(pending, "rows", ())):
                failures += 1
                pending.rows = [(UPDATE_TASK, ("no",) * 3)]
        write(batch)

    clock = Clock(START)
    agent = ScriptedAgent(None, remind, on_due)
    policy = Policy(timings=RunnerTimings(retry_s=0.05))
    async with RunnerHarness(database_url, agent, policy, clock) as harness:
        await harness.receive_and_wait("in 1")
        harness.writes.on_batch = fail_once
        clock.advance(hours=1)
        harness.runner.task_clock.check()
        await eventually(lambda: any("tea" in stanza for stanza in harness.sent))
        await harness.runner.mailboxes.wait_until_idle()
        assert failures == 1
        assert await harness.runner.control.schedules.find_all() == []
        assert runs[-1] == (START + HOUR).isoformat()
        assert sum("<body>tea" in stanza for stanza in harness.sent) == 1
