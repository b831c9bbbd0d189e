"""What an agent does first is deleted with its person or conversation while it runs, and nothing arrives afterwards."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, People, Response, Session
from spade_coreason.contracts import NotificationState
from spade_coreason.domain.quotas import Quota, Quotas
from spade_coreason.testing import Policy
from tests.operations.test_people import holding, perform, rows
from tests.support.clock import Clock
from tests.support.databases import on_both_databases
from tests.support.tester_host import TesterHost
from tests.support.wait import TIMEOUT_S

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"
SECRET, OTHERS = "marzipan", "rhubarb"


class Reminder:
    """Reminds in an hour, and tells its person or Bob in quiet hours."""

    def __init__(self, manifest: AgentDefinition, people: People) -> None:
        self.manifest = manifest
        self.people = people

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        verb, _, text = request.payload["query"].partition(" ")
        if verb == "remind":
            await session.remind(timedelta(hours=1), f"due {text}")
        elif verb == "tell":
            await self.people.notify(BOB, f"{text} for bob")
        await response.markdown(f"{verb} {text}")


@on_both_databases
async def test_what_waits_of_a_deleted_person_never_arrives_and_that_of_others_does(database_url: str) -> None:
    clock = Clock()
    async with AgentTester(Reminder, jid=AGENT, user=ALICE, database=database_url, clock=clock) as t:
        for person, word in ((ALICE, SECRET), (BOB, OTHERS)):
            await t.say(f"remind {word}", user=person)
        await t.say(f"tell {SECRET}")  # it is in a conversation of Bob, because of Alice
        await t.settled()
        t.unread(user=BOB)
        assert holding(await rows(t), "due marzipan")
        deleted = await perform(TesterHost(t), "people.delete", person=ALICE)
        [erasure] = [one for one in deleted.erasures if one.agent == AGENT]
        assert (erasure.report.notifications, erasure.report.schedules) == (1, 1)
        assert holding(await rows(t), ALICE, SECRET) == []
        clock.advance(hours=2)
        t.runners[AGENT].task_clock.check()
        await t.delivered()
        await t.settled()
        assert t.unread(user=ALICE) == []
        assert holding(await rows(t), ALICE, SECRET) == []


@pytest.mark.parametrize("command", ["/forget", "/forget me"])
async def test_a_reminder_goes_with_its_conversation(command: str) -> None:
    clock = Clock()
    async with AgentTester(Reminder, jid=AGENT, user=ALICE, clock=clock) as t:
        await t.say(f"remind {SECRET}")
        await t.say(command)
        answer = await t.say(f"{command} yes")
        assert "1 reminder or schedule" in " ".join(answer)
        assert await t.runners[AGENT].repository.schedules.load() == []


class Digger:
    """Digs in a job, and says so."""

    manifest = AgentDefinition.simple("digger")

    def __init__(self) -> None:
        self.begun, self.release = asyncio.Event(), asyncio.Event()

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] == "job":
            self.begun.set()
            await self.release.wait()
            await response.markdown("dug")
        else:
            if request.payload["query"] == "dig":
                await session.later("job")
            await response.markdown("yes")


@on_both_databases
@pytest.mark.parametrize("thread", [None, "garden"])
async def test_a_job_that_runs_ends_with_the_conversation_that_began_it(database_url: str, thread: str | None) -> None:
    digger = Digger()
    async with AgentTester(digger, jid=AGENT, user=ALICE, database=database_url) as t:
        for place in (thread, "another"):
            await t.say("dig", thread=place)
        await asyncio.wait_for(digger.begun.wait(), TIMEOUT_S)
        await t.say("/forget", thread=thread)
        await t.say("/forget yes", thread=thread)
        digger.release.set()
        await t.settled()
        assert [(message.text, message.thread) for message in t.messages(ALICE) if message.text == "dug"] == [
            ("dug", "another")
        ]
        assert [one.thread for one in await t.notifications()] == ["another"]


async def test_a_job_that_waits_for_a_quota_is_deleted_with_the_conversation_that_began_it() -> None:
    clock = Clock()
    policy = Policy(quotas=Quotas(user=Quota(messages_per_day=1)))
    async with AgentTester(Digger, jid=AGENT, user=ALICE, policy=policy, clock=clock) as t:
        await t.say("dig", thread="garden")
        await t.settled()
        repository = t.runners[AGENT].repository.schedules
        assert len(await repository.load()) == 1
        await t.say("/forget", thread="garden")
        assert "1 reminder or schedule" in " ".join(await t.say("/forget yes", thread="garden"))
        assert await repository.load() == []


async def test_notifications_are_purged_after_seven_days_where_no_request_ever_came() -> None:
    clock = Clock()
    async with AgentTester(Reminder, jid=AGENT, user=ALICE, clock=clock) as t:
        repository = t.runners[AGENT].repository
        new = repository.notifications.make_notification(str(uuid4()), BOB, None, "", "[]", clock())
        refused = new.moved(clock(), NotificationState.REFUSED.value)
        await repository.notifications.create(new, lambda own, of_others: refused)
        clock.advance(days=6)
        await repository.inbox.purge(clock())
        assert len(await repository.notifications.load_page()) == 1
        clock.advance(days=2)
        await repository.inbox.purge(clock())
        assert await repository.notifications.load_page() == []
