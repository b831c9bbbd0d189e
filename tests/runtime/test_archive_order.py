"""Requests that come by themselves in a new session wait for older ones of the archive."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from spade_coreason.domain.channel_kinds import PERSON, PROGRAM, ChannelKind
from spade_coreason.domain.duplicates import Evidence
from spade_coreason.domain.messages import InboundRequest
from spade_coreason.runtime.mailboxes.mailbox import LARGE_CHARACTERS, MAX_LARGE_REQUESTS
from spade_coreason.testing import PlatformLimits, Policy
from tests.support.hosting import Echo
from tests.support.records import ALICE
from tests.support.requests import build_incoming
from tests.support.runner import RunnerHarness
from tests.support.wait import eventually

LONG_S = 600.0


def request(text: str, server_id: str = "", kind: ChannelKind = PERSON, stored_at: int | None = None) -> InboundRequest:
    return build_incoming(text, ALICE, kind, stanza_id=text, thread=None, evidence=Evidence(server_id, stored_at=stored_at))


def queries(harness: RunnerHarness) -> list[str]:
    return [asked.payload["query"] for asked in harness.agent.requests]


async def test_the_order_of_the_archive_counts(database_url: str) -> None:
    async with RunnerHarness(database_url, Echo()) as harness:
        runner = harness.runner
        runner.hold(LONG_S)
        for text in ("2", "4", "5"):
            runner.intake.receive(request(text, text))
        for text in ("1", "2", "3"):  # the second one is here already
            runner.intake.receive(request(text, text), is_archived=True)
        await runner.mailboxes.wait_until_idle()
        assert queries(harness) == ["1", "2", "3"]
        runner.release()
        await runner.mailboxes.wait_until_idle()
        assert queries(harness) == ["1", "2", "3", "4", "5"]


async def test_what_the_server_has_stored_earlier_goes_before_what_the_archive_has_of_later(database_url: str) -> None:
    """A server delivers again what it has stored, and not always in the order of the archive."""
    async with RunnerHarness(database_url, Echo()) as harness:
        runner = harness.runner
        runner.hold(LONG_S)
        runner.intake.receive(request("again", "2", stored_at=2))
        runner.intake.receive(request("live", "4"))
        for text, number in (("first", 1), ("third", 3)):
            runner.intake.receive(request(text, str(number), stored_at=number), is_archived=True)
        await runner.mailboxes.wait_until_idle()
        assert queries(harness) == ["first", "again", "third"]
        runner.release()
        await runner.mailboxes.wait_until_idle()
        assert queries(harness) == ["first", "again", "third", "live"]


async def test_what_is_in_no_archive_waits_for_none(database_url: str) -> None:
    async with RunnerHarness(database_url, Echo()) as harness:
        harness.runner.hold(LONG_S)
        harness.runner.intake.receive(request("of a program", kind=PROGRAM))
        await harness.runner.mailboxes.wait_until_idle()
        assert queries(harness) == ["of a program"]


async def test_an_archive_that_is_not_read_in_time_holds_up_nobody(database_url: str) -> None:
    async with RunnerHarness(database_url, Echo()) as harness:
        harness.runner.hold(0.0)
        harness.runner.intake.receive(request("live"))
        await eventually(lambda: queries(harness) == ["live"])


async def test_live_requests_that_fill_the_queue_leave_it_when_the_archive_needs_room(database_url: str) -> None:
    async with RunnerHarness(database_url, Echo(), Policy(limits=PlatformLimits(queue=2))) as harness:
        harness.runner.hold(LONG_S)
        for text in ("3", "4"):
            harness.runner.intake.receive(request(text, text))
        await harness.gateway.capacity.wait(request("1", "1"))
        harness.runner.intake.receive(request("1", "1"), is_archived=True)
        await harness.runner.mailboxes.wait_until_idle()
        assert queries(harness) == ["3", "4", "1"]


async def test_requests_that_wait_for_the_archive_leave_room_for_further_ones(database_url: str) -> None:
    async with RunnerHarness(database_url, Echo(), Policy(limits=PlatformLimits(queue=4))) as harness:
        harness.runner.hold(LONG_S)
        texts = ["1", "2", "3", "4", "5"]
        for text in texts:
            harness.runner.intake.receive(request(text, text))
            await harness.runner.mailboxes.wait_until_idle()
        assert queries(harness) == texts


async def test_long_requests_that_wait_for_the_archive_leave_room_for_further_ones(database_url: str) -> None:
    async with RunnerHarness(database_url, Echo()) as harness:
        harness.runner.hold(LONG_S)
        texts = [str(number) * (LARGE_CHARACTERS + 1) for number in range(MAX_LARGE_REQUESTS)]
        for text in texts:
            harness.runner.intake.receive(request(text, text[0]))
        await harness.runner.mailboxes.wait_until_idle()
        assert queries(harness) == texts


async def test_sessions_that_follow_each_other_do_not_prolong_the_wait(database_url: str) -> None:
    async with RunnerHarness(database_url, Echo()) as harness:
        harness.runner.hold(0.0)
        harness.runner.intake.receive(request("live"))
        harness.runner.hold(LONG_S)
        await eventually(lambda: queries(harness) == ["live"])


async def test_a_reply_whose_thread_is_searched_waits_for_the_archive_too(database_url: str) -> None:
    async with RunnerHarness(database_url, Echo()) as harness:
        runner = harness.runner
        runner.hold(LONG_S)
        runner.intake.receive(replace(request("2", "2"), metadata={"reply_to": str(uuid4())}))
        runner.intake.receive(request("1", "1"), is_archived=True)
        runner.release()
        await runner.mailboxes.wait_until_idle()
        assert queries(harness) == ["1", "2"]


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
async def test_a_question_that_waits_for_the_archive_can_be_cancelled(database_url: str, is_known: bool) -> None:
    async with RunnerHarness(database_url, Echo()) as harness:
        runner = harness.runner
        cancel = replace(request("/cancel"), stanza_id="1")
        if is_known:  # by its id, which is that of an earlier one
            runner.intake.receive(cancel)
            await runner.mailboxes.wait_until_idle()
        runner.hold(LONG_S)
        for held in (request("1", "1"), request("2", "2"), cancel):
            stored = runner.intake.receive(held)
            assert stored is not None
            await stored
        runner.release()
        await runner.mailboxes.wait_until_idle()
        assert queries(harness) == ["2"]
