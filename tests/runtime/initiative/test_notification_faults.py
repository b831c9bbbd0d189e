"""Notifications when the network does not answer, the database fails or the platform stops: nothing is lost, no state lies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason.contracts import NotificationState
from spade_coreason.domain.messages import Bounce
from spade_coreason.runtime.initiative.notifications import dump_blocks
from spade_coreason.storage import Task
from spade_coreason.storage.backends.statements import ADD_INTERACTION, UPDATE_TASK
from spade_coreason.testing import Policy, RunnerTimings
from tests.support.databases import expect_failing_database, read_rows
from tests.support.errors import ExpectedErrors
from tests.support.failing_rows import FailingRows
from tests.support.records import ALICE, BOB
from tests.support.runner import RememberingAgent, RunnerHarness
from tests.support.wait import TIMEOUT_S, eventually

QUICK = Policy(timings=RunnerTimings(retry_s=0.05))
ROOM = "garden@rooms.localhost"


async def notify(harness: RunnerHarness, text: str, person: str = ALICE) -> str:
    """Notify a person as a task of the agent does, and return the id."""
    notification_id = str(uuid4())
    await harness.runner.control.notifications.notify(notification_id, person, "t", dump_blocks(text), "")
    return notification_id


async def find(harness: RunnerHarness, notification_id: str) -> Task:
    stored = await harness.repository.notifications.find(notification_id)
    assert stored is not None
    return stored


async def wait_for(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition of the database holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


async def wait_for_state(harness: RunnerHarness, notification_id: str, state: NotificationState) -> None:
    async def has_state() -> bool:
        return (await find(harness, notification_id)).state == state

    await wait_for(has_state)


async def test_it_waits_until_the_server_has_it(database_url: str) -> None:
    async with RunnerHarness(database_url) as harness:
        ident = await notify(harness, "hello")
        await eventually(lambda: len(harness.messages) == 1)
        assert (await find(harness, ident)).state == NotificationState.WAITING
        harness.messages[0].acknowledge()
        await wait_for_state(harness, ident, NotificationState.SENT)


async def test_one_that_the_server_does_not_have_is_sent_again_after_a_restart_with_the_same_ids(database_url: str) -> None:
    harness = RunnerHarness(database_url)
    async with harness:
        ident = await notify(harness, "hello")
        await eventually(lambda: len(harness.sent) == 1)
    async with harness:
        await eventually(lambda: len(harness.sent) == 2)
        assert harness.sent[0] == harness.sent[1]
        assert (fromstring(harness.sent[0]).get("id") or "").startswith(ident)
        harness.messages[1].acknowledge()
        await wait_for_state(harness, ident, NotificationState.SENT)
    async with harness:
        await harness.receive_and_wait("hello")
        assert sum(ident in stanza for stanza in harness.sent) == 2
    assert len(read_rows(database_url, "interactions")) == 2  # its own, and that of the request


async def test_one_that_waits_for_a_turn_when_the_platform_stops_comes_after_that_turn(database_url: str) -> None:
    release = asyncio.Event()
    agent = RememberingAgent(release=release)
    harness = RunnerHarness(database_url, agent)
    async with harness:
        await harness.receive("go")
        async with asyncio.timeout(TIMEOUT_S):
            await agent.started.wait()
        ident = await notify(harness, "hello")
        await notify(harness, "to another person", BOB)
        await eventually(lambda: any("to another person" in stanza for stanza in harness.sent))
        assert "messages" not in (await find(harness, ident)).values
    release.set()
    async with harness:
        await eventually(lambda: any(ident in stanza for stanza in harness.sent))
        to_alice = [stanza for stanza in harness.sent if ALICE in stanza and "<body>" in stanza]
        assert ident in to_alice[-1]
        assert len(to_alice) == 2


@pytest.mark.parametrize("is_temporary", [False, True])
async def test_one_that_comes_back_before_the_acknowledgement_is_not_sent(database_url: str, *, is_temporary: bool) -> None:
    expected = NotificationState.WAITING if is_temporary else NotificationState.BOUNCED
    async with RunnerHarness(database_url) as harness:
        ident = await notify(harness, "hello")
        await eventually(lambda: len(harness.messages) == 1)
        stanza_id = fromstring(harness.sent[0]).get("id") or ""
        harness.runner.notifier.receive_bounce(Bounce(ALICE, stanza_id, "item-not-found", "", is_temporary))

        async def has_reason() -> bool:
            return bool((await find(harness, ident)).reason)

        await wait_for(has_reason)
        harness.messages[0].acknowledge()  # the server acknowledges what it has sent back
        await notify(harness, "another")
        await eventually(lambda: len(harness.messages) == 2)
        stored = await find(harness, ident)
        assert (stored.state, stored.attempts) == (expected, 1)
        assert (stored.due_at > stored.created_at) == is_temporary


async def test_an_acknowledgement_while_the_bounce_is_stored_changes_nothing(database_url: str) -> None:
    async with RunnerHarness(database_url) as harness:
        ident = await notify(harness, "hello")
        await eventually(lambda: len(harness.messages) == 1)
        stanza_id = fromstring(harness.sent[0]).get("id") or ""
        with harness.writes.hold_batches() as batches:
            harness.runner.notifier.receive_bounce(Bounce(ALICE, stanza_id, "resource-constraint", "", True))
            await eventually(lambda: bool(batches))
            harness.messages[0].acknowledge()
        await harness.runner.task_clock.catch_up()
        assert (await find(harness, ident)).state == NotificationState.WAITING


async def test_a_state_that_is_being_stored_is_not_read_as_due(database_url: str) -> None:
    async with RunnerHarness(database_url) as harness:
        for number in range(30):  # each ends while the clock looks for the others
            await notify(harness, str(number), f"person{number}@localhost")
            for message in harness.messages:
                message.acknowledge()
        await eventually(lambda: len(harness.messages) >= 30)
        for message in harness.messages:
            message.acknowledge()
        await harness.runner.task_clock.catch_up()
        await harness.runner.mailboxes.wait_until_idle()
        assert len(harness.sent) == len(set(harness.sent)) == 30


async def test_a_database_that_fails_delays_a_notification_and_leaves_no_gap(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expect_failing_database(expected_errors, database_url, "cannot store a notification")
    failing = FailingRows(ADD_INTERACTION, 2)
    async with RunnerHarness(database_url, policy=QUICK) as harness:
        await harness.receive_and_wait("before")
        harness.writes.on_batch = failing
        ident = await notify(harness, "hello")
        await eventually(lambda: any(ident in stanza for stanza in harness.sent))
        assert failing.failures == 2
        await harness.receive_and_wait("after")
        numbers = [row["number"] for row in read_rows(database_url, "interactions")]
        assert sorted(numbers) == [1, 2, 3]
        assert sum(ident in stanza for stanza in harness.sent) == 1


async def test_a_database_that_fails_after_the_acknowledgement_sends_nothing_twice(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expect_failing_database(expected_errors, database_url, "cannot store a notification")
    failing = FailingRows(UPDATE_TASK, 1)
    async with RunnerHarness(database_url, policy=QUICK) as harness:
        ident = await notify(harness, "hello")
        await eventually(lambda: len(harness.messages) == 1)
        harness.writes.on_batch = failing
        harness.messages[0].acknowledge()
        await wait_for_state(harness, ident, NotificationState.SENT)
        await harness.runner.task_clock.catch_up()
        assert (failing.failures, len(harness.sent)) == (1, 1)


async def test_a_room_is_notified_without_a_name_before_the_text(database_url: str) -> None:
    async with RunnerHarness(database_url) as harness:
        harness.rooms.add(ROOM)
        await notify(harness, "The gate is open.", ROOM)
        await eventually(lambda: bool(harness.sent))
        stanza = fromstring(harness.sent[0])
        assert (stanza.get("to"), stanza.get("type")) == (ROOM, "groupchat")
        assert next(child.text for child in stanza if child.tag.endswith("body")) == "The gate is open."
