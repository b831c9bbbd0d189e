"""The clock of `AgentTester`, and what it shows of notifications and schedules."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from spade_coreason import AgentDefinition, AgentRequest, People, Response, Session, every
from spade_coreason.contracts import NotificationState
from spade_coreason.testing import AgentTester
from tests.support.clock import Clock

START = datetime(2030, 1, 1, 7, 30, tzinfo=UTC)
BOSS, TESTER = "boss@localhost", "tester@localhost"


class Secretary:
    """An agent that notifies ("notify JID text"), reminds ("remind CRON") and reports each hour to the boss."""

    manifest = AgentDefinition.simple("secretary")

    def __init__(self, people: People) -> None:
        self.people = people

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        if "schedule" in request.metadata:
            await response.markdown(f"{request.payload['query']} at {request.metadata['due_at']}")
            return
        command, _, text = request.payload["query"].partition(" ")
        if command == "notify":
            person, _, text = text.partition(" ")
            await self.people.notify(person, text)
        elif command == "remind":
            await session.remind(text, "stretch")
        elif command == "in":
            await session.remind(timedelta(hours=int(text)), "tea")
        await response.markdown("done")


class Reporter(Secretary):
    @every("0 * * * *")
    async def report(self, request: AgentRequest, session: Session, response: Response) -> None:
        await self.people.notify(BOSS, f"report of {request.metadata['due_at']}")


def at(clock: datetime) -> AgentTester:
    return AgentTester(Secretary, clock=Clock(clock))


async def test_a_day_of_hourly_reminders_is_24_turns_each_at_its_time() -> None:
    async with at(START) as t:
        await t.say("remind 0 * * * *")
        began_s = time.monotonic()
        await t.advance(timedelta(days=1))
        assert t.now == START + timedelta(days=1)
        first = datetime(2030, 1, 1, 8, tzinfo=UTC)
        assert t.unread() == [f"stretch at {(first + timedelta(hours=n)).isoformat()}" for n in range(24)]
        assert time.monotonic() - began_s < 60  # it waits for nothing


async def test_the_clock_stands_still_between_two_calls() -> None:
    async with AgentTester(Secretary) as t:
        before = datetime.now(UTC)
        assert before <= t.now <= datetime.now(UTC)
        await t.advance(timedelta(0))
        stopped = t.now
        await asyncio.to_thread(time.sleep, 0.001)
        assert t.now == stopped


async def test_a_moment_is_reached_exactly_and_what_is_due_at_it_has_happened() -> None:
    async with at(START) as t:
        await t.say("in 2")
        await t.advance(START + timedelta(hours=2, microseconds=-1))
        assert t.unread() == []
        await t.advance(START + timedelta(hours=2))
        assert t.unread() == ["tea at 2030-01-01T09:30:00+00:00"]
        assert await t.schedules() == []


async def test_time_does_not_go_back() -> None:
    async with at(START) as t:
        with pytest.raises(ValueError, match="does not go back"):
            await t.advance(START - timedelta(seconds=1))
        with pytest.raises(ValueError, match="does not go back"):
            await t.advance(timedelta(seconds=-1))
        with pytest.raises(ValueError, match="no time zone"):
            await t.advance(datetime(2030, 1, 2))
        assert t.now == START


async def test_the_agents_of_a_tester_have_one_clock() -> None:
    async with AgentTester(Secretary, peers={"reporter": Reporter}, clock=Clock(START)) as t:
        await t.say("in 2")
        await t.say("in 1", to="reporter@localhost")
        await t.advance(timedelta(hours=3))
        assert [(message.sender, message.text) for message in t.messages() if message.text and message.text != "done"] == [
            ("reporter@localhost", "tea at 2030-01-01T08:30:00+00:00"),
            ("agent@localhost", "tea at 2030-01-01T09:30:00+00:00"),
        ]
        assert t.unread(BOSS) == [f"report of 2030-01-01T{hour:02}:00:00+00:00" for hour in (8, 9, 10)]


async def test_a_notification_reaches_a_person_whom_no_call_has_named() -> None:
    async with at(START) as t:
        assert await t.say(f"notify {BOSS} hello") == ["done"]
        assert (await t.message(BOSS)).text == "hello"


async def test_notifications_are_listed_of_all_people_or_of_one() -> None:
    async with at(START) as t:
        await t.say(f"notify {BOSS} first")
        await t.advance(timedelta(minutes=1))
        await t.say(f"notify {TESTER} second")
        await t.settled()
        assert [(one.person, one.state, one.created_at) for one in await t.notifications()] == [
            (BOSS, NotificationState.SENT, START),
            (TESTER, NotificationState.SENT, START + timedelta(minutes=1)),
        ]
        assert [one.person for one in await t.notifications(TESTER)] == [TESTER]


async def test_say_returns_its_reply_without_what_comes_by_itself() -> None:
    async with at(START) as t:
        for _ in range(5):  # whether the notification arrives before `say` ends or after
            assert await t.say(f"notify {TESTER} by the way") == ["done"]
        await t.settled()
        assert t.unread() == ["by the way"] * 5


async def test_a_message_that_comes_back_is_played_with_its_stanza() -> None:
    async with at(START) as t:
        await t.say(f"notify {BOSS} hello")
        message = await t.message(BOSS)
        error = "<error type='cancel'><item-not-found xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error>"
        t.send_stanza(f"<message to='agent@localhost' type='error' id='{message.id}'>{error}</message>", user=BOSS)
        await t.settled()
        assert [one.state for one in await t.notifications()] == [NotificationState.BOUNCED]


async def test_what_is_due_while_the_platform_is_down_is_missed() -> None:
    async with at(START) as t:
        await t.say("in 1")
        await t.restart(down_for=timedelta(days=1))
        await t.settled()
        assert t.now == START + timedelta(days=1)
        assert t.unread() == ["tea at 2030-01-01T08:30:00+00:00"]
