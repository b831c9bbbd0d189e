"""Due times and notifications wait for an agent that is paused, restarted or behind an interceptor: none is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, People, Response, Session, agent, every
from spade_coreason.contracts import Accept, ErrorCode, Interceptor, ReceivedRequest, Refuse, ResponseWrapper
from spade_coreason.contracts.interceptors import Next
from tests.support.clock import Clock
from tests.support.databases import SQLITE, read_rows
from tests.support.errors import ExpectedErrors
from tests.support.wait import eventually

BOB = "bob@localhost"


def advance(t: AgentTester, clock: Clock, by: timedelta) -> None:
    """Advance the clock, and let the agent look at it."""
    clock.now += by
    t.runners[t.jid].task_clock.check()


async def next_text(t: AgentTester) -> str:
    return str((await t.message(BOB)).text)


def wake_time(url: str) -> datetime:
    """Return when the only schedule is looked at next."""
    [row] = read_rows(url, "tasks")
    return datetime.fromtimestamp(row["wake_at"] / 1_000_000, UTC)


@agent
async def reminding(request: AgentRequest, session: Session, response: Response) -> None:
    """Remind in an hour."""
    if "due_at" not in request.metadata:
        await session.remind(timedelta(hours=1), request.payload)
    await response.markdown("due" if "due_at" in request.metadata else "yes")


# Interceptors


class Gate(Interceptor):
    """Decides on due times with a function, and records what it saw of them."""

    def __init__(self, decide: Callable[[], Accept | Refuse]) -> None:
        self.decide = decide
        self.seen: list[ReceivedRequest] = []

    def receive(self, request: ReceivedRequest) -> Accept | Refuse:
        if request.channel != "schedule":
            return Accept()
        self.seen.append(request)
        return self.decide()


def refuse() -> Accept | Refuse:
    return Refuse(ErrorCode.UNAVAILABLE, "closed", 90)


def fail() -> Accept | Refuse:
    raise ValueError("a fault")


@pytest.mark.parametrize(("decide", "minutes"), [(refuse, 1.5), (fail, None)], ids=["refuses", "fails"])
async def test_an_interceptor_moves_a_due_time_as_a_quota_does(
    decide: Callable[[], Accept | Refuse], minutes: float | None, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    if decide is fail:
        expected_errors("a request of bob@localhost/test is refused")
    clock, url, gate = Clock(), f"{SQLITE}{tmp_path}/platform.db", Gate(decide)
    async with AgentTester(reminding, interceptors=[gate], clock=clock, database=url) as t:
        t.send("tea", user=BOB)
        assert await next_text(t) == "yes"
        advance(t, clock, timedelta(hours=1))
        await eventually(lambda: wake_time(url) > clock.now)
        delay = wake_time(url) - clock.now
        assert delay == timedelta(minutes=minutes) if minutes is not None else delay > timedelta(0)
        assert len(gate.seen) == 1
        gate.decide = Accept
        advance(t, clock, delay)
        assert await next_text(t) == "due"
        await t.settled()
        assert read_rows(url, "tasks") == []
        first, second = gate.seen
        assert first.request_id == second.request_id
        assert (first.owner, first.thread, first.content, dict(first.payload)) == (BOB, None, "", {"query": "tea"})
        assert first.metadata["due_at"] == (clock.now - delay).isoformat()
        assert first.metadata["schedule"]


class Bracketed(ResponseWrapper):
    """A response that puts texts in brackets."""

    async def markdown(self, content: str) -> None:
        await super().markdown(f"[{content}]")


class Brackets(Interceptor):
    """Wraps the response."""

    async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
        await next(request, session, Bracketed(response))


async def test_an_interceptor_runs_around_a_due_time() -> None:
    clock = Clock()
    async with AgentTester(reminding, interceptors=[Brackets], clock=clock) as t:
        t.send("tea", user=BOB)
        assert await next_text(t) == "[yes]"
        advance(t, clock, timedelta(hours=1))
        assert await next_text(t) == "[due]"


# Pauses and restarts


class Morning:
    """Makes agents that report each day at a time that a test sets."""

    def __init__(self, cron: str) -> None:
        self.cron = cron
        self.release = asyncio.Event()
        self.release.set()
        self.runs: list[str] = []

    def __call__(self, people: People) -> Any:
        morning = self

        class Reporting:
            manifest = AgentDefinition.simple("reporting")

            async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
                await people.notify(BOB, "asked")
                await response.markdown("yes")

            @every(morning.cron)
            async def report(self, request: AgentRequest, session: Session, response: Response) -> None:
                morning.runs.append(request.metadata["due_at"])
                await morning.release.wait()
                await people.notify(BOB, f"report {request.metadata['due_at'][:16]}")

        return Reporting()


NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


async def test_due_times_and_notifications_wait_while_the_agent_is_paused(tmp_path: Path) -> None:
    clock, morning, url = Clock(NOON), Morning("0 13 * * *"), f"{SQLITE}{tmp_path}/platform.db"
    async with AgentTester(morning, clock=clock, database=url) as t:
        control = t.runners[t.jid].control
        await control.set_paused(True)
        advance(t, clock, timedelta(hours=1))
        made = await t.runners[t.jid].control.notifications.notify(
            "c0ffee00-0000-4000-8000-000000000001", BOB, None, '[{"block_type": "MARKDOWN", "content": "hello"}]', ""
        )
        assert made.state == "waiting"
        await eventually(lambda: len(read_rows(url, "inbox")) == 1)
        await t.restart()
        advance(t, clock, timedelta(0))
        assert (morning.runs, t.messages(BOB)) == ([], [])
        await t.runners[t.jid].control.set_paused(False)
        assert sorted([await next_text(t), await next_text(t)]) == ["hello", "report 2026-01-05T13:00"]
        await t.settled()
        assert (len(morning.runs), len(t.messages(BOB))) == (1, 2)


async def test_a_restart_in_a_due_turn_runs_it_again_and_notifies_once() -> None:
    clock, morning = Clock(NOON), Morning("0 13 * * *")
    morning.release.clear()
    async with AgentTester(morning, clock=clock) as t:
        advance(t, clock, timedelta(hours=1))
        await eventually(lambda: len(morning.runs) == 1)
        await t.restart(grace_s=0)
        await eventually(lambda: len(morning.runs) == 2)
        morning.release.set()
        assert await next_text(t) == "report 2026-01-05T13:00"
        await t.settled()
        assert (set(morning.runs), len(t.messages(BOB))) == ({"2026-01-05T13:00:00+00:00"}, 1)


async def test_a_changed_cron_counts_after_a_restart() -> None:
    clock, morning = Clock(NOON), Morning("0 13 * * *")
    async with AgentTester(morning, clock=clock) as t:
        morning.cron = "0 15 * * *"
        await t.restart()
        advance(t, clock, timedelta(hours=1))
        await t.restart()
        await t.settled()
        assert morning.runs == []
        advance(t, clock, timedelta(hours=2))
        assert await next_text(t) == "report 2026-01-05T15:00"
        await t.settled()
        assert morning.runs == ["2026-01-05T15:00:00+00:00"]
