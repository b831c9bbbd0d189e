"""The deliveries of a broker to subscribers that are unreachable, that fail, or that come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spade_coreason.contracts import ErrorCode
from spade_coreason.contracts.times import utc_now
from spade_coreason.exceptions import (
    PeerError,
    PeerFailedError,
    PeerParkedError,
    PeerRefusedError,
    PeerTimeoutError,
    PeerUnavailableError,
    RequestTooLongError,
    StoreError,
)
from spade_coreason.runtime.tasks import AgentTasks, TaskClock
from spade_coreason.runtime.topics.deliveries import DeliveryPolicy, TopicDeliveries
from spade_coreason.storage import DELIVERY, Commit, TaskQueue, TopicDelivery, TopicItem, TopicRepository, from_micros
from spade_coreason.storage.backends.database import Database
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, ALICE, BOB, NOW
from tests.support.wait import TIMEOUT_S, eventually

LONG_S = 1000.0
"""A delay that no test waits for."""


class Network:
    """Subscribers that accept items, or raise the next of the `problems` of an item."""

    def __init__(self, **problems: list[PeerError]) -> None:
        self.problems = problems
        self.attempts: list[tuple[str, int]] = []
        self.accepted: list[str] = []
        self.unreachable: PeerError | None = None
        self.on_attempt: Callable[[], None] = lambda: None
        self.on_accepted: Callable[[], None] = lambda: None
        self.refused: set[str] = set()
        """The patterns that nobody may have any more."""

    def find_refusal(self, subscriber: str, pattern: str) -> str | None:
        """Refuse the topics that are refused now."""
        return "no rule allows it" if pattern in self.refused else None

    async def deliver(self, delivery: TopicDelivery, timeout_s: float) -> None:
        item_id = delivery.item.item_id
        self.attempts.append((item_id, delivery.failures))
        self.on_attempt()
        if self.unreachable is not None:
            raise self.unreachable
        if problems := self.problems.get(item_id):
            raise problems.pop(0)
        self.accepted.append(item_id)
        self.on_accepted()


@asynccontextmanager
async def run_deliveries(database: Database, network: Network, **policy: Any) -> AsyncIterator[TopicDeliveries]:
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["#"])
    tasks = AgentTasks(TaskQueue(database, AGENT), AGENT, utc_now, 0.01)
    clock = TaskClock(tasks)
    full_policy = DeliveryPolicy(**{"retry_s": LONG_S, "days": None, **policy})
    deliveries = TopicDeliveries(AGENT, topics, tasks, network.deliver, full_policy, network.find_refusal)
    await deliveries.open()
    clock.open()
    try:
        yield deliveries
    finally:
        deliveries.close()
        await clock.close()


async def publish(deliveries: TopicDeliveries, item_id: str, topic: str = "news") -> None:
    deliveries.on_published(await deliveries.repository.publish(TopicItem(item_id, topic, ALICE, NOW, {})))


async def wait_until_quiet(deliveries: TopicDeliveries) -> None:
    tasks = deliveries.tasks
    while tasks.is_busy or tasks.is_under_way(DELIVERY, [BOB]):
        await tasks.wait_for_progress()


async def has_waiting(deliveries: TopicDeliveries) -> bool:
    return bool(await deliveries.repository.load_deliveries(BOB, 1))


UNREACHABLE = [
    PeerUnavailableError(BOB, "is not available"),
    PeerTimeoutError(BOB, 1),
    PeerTimeoutError(BOB, 1, has_started=True),
]


@pytest.mark.parametrize("problem", UNREACHABLE, ids=str)
async def test_an_unreachable_subscriber_is_tried_with_one_item_and_loses_none(database: Database, problem: PeerError) -> None:
    network = Network()
    network.unreachable = problem
    async with run_deliveries(database, network, attempts=1) as deliveries:
        for number in range(3):
            await publish(deliveries, f"item {number}")
            await publish(deliveries, f"other {number}", "other")
            await wait_until_quiet(deliveries)
        first = len(network.attempts)
        assert first <= 2  # of two topics, before the first one found it unreachable
        network.unreachable = None
        deliveries.tasks.wake()
        await wait_until_quiet(deliveries)
        assert len(network.attempts) == first
        deliveries.note_presence(BOB)
        await wait_until_quiet(deliveries)
    assert [item for item in network.accepted if item.startswith("item")] == ["item 0", "item 1", "item 2"]
    assert len(network.accepted) == 6
    assert all(failures == 0 for _, failures in network.attempts)


async def test_an_unreachable_subscriber_is_tried_again_by_itself(database: Database) -> None:
    network = Network()
    network.unreachable = PeerUnavailableError(BOB, "is not available")
    async with run_deliveries(database, network, attempts=1, retry_s=0.001) as deliveries:
        await publish(deliveries, "item")
        await eventually(lambda: len(network.attempts) >= 3)
        network.unreachable = None
        await eventually(lambda: network.accepted == ["item"])


FAILURES = [PeerFailedError(BOB, "it broke", 500), PeerRefusedError(BOB, "refuses: never"), PeerError(BOB, "is odd")]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
async def test_a_failure_is_counted_and_tried_again(database: Database, failure: PeerError) -> None:
    network = Network(item=[failure, failure])
    async with run_deliveries(database, network, attempts=3, retry_s=0.001) as deliveries:
        await publish(deliveries, "item")
        await eventually(lambda: network.accepted == ["item"])
    assert network.attempts == [("item", 0), ("item", 1), ("item", 2)]


async def test_a_refusal_for_a_time_does_not_count_and_keeps_the_id_of_the_request(database: Database) -> None:
    network = Network(item=[PeerRefusedError(BOB, "refuses: too many", 0.001)] * 5)
    async with run_deliveries(database, network, attempts=2, retry_s=0.001) as deliveries:
        await publish(deliveries, "item")
        await eventually(lambda: network.accepted == ["item"])
    assert network.attempts == [("item", 0)] * 6


# A subscriber that asks a person

PARKED = PeerParkedError(BOB, "1")
ASKED_AND_FAILED = PeerFailedError(BOB, "it broke", 500, has_asked=True)


async def test_a_parked_delivery_lets_the_next_item_follow_and_ends_with_the_answer(database: Database) -> None:
    network = Network(item=[PARKED] * 3)
    async with run_deliveries(database, network, attempts=1, retry_s=0.001) as deliveries:
        for item in ("item", "next", "last"):
            await publish(deliveries, item)
        await eventually(lambda: len(network.accepted) == 3)
        async with asyncio.timeout(TIMEOUT_S):
            while await has_waiting(deliveries):  # noqa: ASYNC110 - its end is stored after it
                await asyncio.sleep(0.01)
    assert network.accepted == ["next", "last", "item"]
    assert {failures for _, failures in network.attempts} == {0}


async def test_parked_deliveries_hold_up_nothing_however_many_they_are(database: Database) -> None:
    problems: dict[str, list[PeerError]] = {f"parked {number}": [PARKED] * 2 for number in range(150)}  # more than two pages
    network = Network(**problems)
    async with run_deliveries(database, network, retry_s=0.01) as deliveries:
        for number in range(150):
            await publish(deliveries, f"parked {number}")
        await publish(deliveries, "next")
        await eventually(lambda: network.accepted[:1] == ["next"])
        await eventually(lambda: len(network.accepted) == 151)
    assert {failures for _, failures in network.attempts} == {0}


LATER_FAILURES = [UNREACHABLE[0], UNREACHABLE[1], UNREACHABLE[2], PeerRefusedError(BOB, "refuses: too many", 0.001)]


@pytest.mark.parametrize("failure", LATER_FAILURES, ids=str)
async def test_no_failure_of_the_way_changes_the_id_of_a_parked_request(database: Database, failure: PeerError) -> None:
    network = Network(item=[PARKED, failure, PARKED, failure, failure, PARKED])
    async with run_deliveries(database, network, attempts=2, retry_s=0.001) as deliveries:
        await publish(deliveries, "item")
        await eventually(lambda: network.accepted == ["item"])
        assert await deliveries.repository.load_newest("$dead-letter/news", 10) == []
    assert network.attempts == [("item", 0)] * 7


@pytest.mark.parametrize("problems", [[ASKED_AND_FAILED], [PARKED, ASKED_AND_FAILED]], ids=["unheard", "heard"])
async def test_a_failure_after_the_answer_makes_a_dead_letter_at_once(database: Database, problems: list[PeerError]) -> None:
    """Also if the broker never heard that the request was parked: another id would ask the person again."""
    network = Network(item=[*problems])
    async with run_deliveries(database, network, attempts=10, retry_s=0.001) as deliveries:
        await publish(deliveries, "item")
        await eventually(lambda: not network.problems["item"])
        while await has_waiting(deliveries):
            await deliveries.tasks.wait_for_progress()
        [letter] = await deliveries.repository.load_newest("$dead-letter/news", 10)
    assert letter.dead_letter is not None
    assert letter.dead_letter["error"] == f"{BOB} reports: it broke"
    assert {failures for _, failures in network.attempts} == {0}


async def test_a_broker_that_starts_again_sends_a_parked_request_under_its_id(database: Database) -> None:
    for round_number in range(3):
        network = Network(item=[PARKED])
        async with run_deliveries(database, network) as deliveries:
            if not round_number:
                await publish(deliveries, "item")
            await publish(deliveries, f"next {round_number}")
            await eventually(lambda: bool(network.accepted))  # noqa: B023 - it is awaited in this round
            await wait_until_quiet(deliveries)
            assert await deliveries.purge() == 0
        assert sorted(network.attempts) == [("item", 0), (f"next {round_number}", 0)]
        assert network.accepted == [f"next {round_number}"]


async def test_an_item_that_waits_for_a_person_is_not_too_old(database: Database) -> None:
    network = Network(item=[PARKED], lost=[UNREACHABLE[0]])
    async with run_deliveries(database, network) as deliveries:
        await publish(deliveries, "item")
        await wait_until_quiet(deliveries)
        await publish(deliveries, "lost", "other")
        await wait_until_quiet(deliveries)
        deliveries.policy = replace(deliveries.policy, days=0.5)
        deliveries.tasks.now = lambda: NOW + timedelta(days=1)
        await deliveries.purge()
        assert await deliveries.repository.load_newest("$dead-letter/news", 10) == []
        assert len(await deliveries.repository.load_newest("$dead-letter/other", 10)) == 1
        assert len(await deliveries.repository.load_newest("news", 10)) == 1


async def test_the_last_failure_makes_a_dead_letter_and_the_next_item_follows(database: Database) -> None:
    network = Network(item=[FAILURES[0], FAILURES[0]])
    async with run_deliveries(database, network, attempts=2, retry_s=0.001) as deliveries:
        await publish(deliveries, "item")
        await publish(deliveries, "next")
        await eventually(lambda: network.accepted == ["next"])
        await wait_until_quiet(deliveries)
        [letter] = await deliveries.repository.load_newest("$dead-letter/news", 10)
    assert letter.dead_letter is not None
    assert letter.dead_letter["error"] == f"{BOB} reports: it broke"


async def test_an_item_that_is_too_long_to_deliver_is_a_dead_letter_at_once(database: Database) -> None:
    network = Network(item=[RequestTooLongError(BOB, 2, 1)])
    async with run_deliveries(database, network) as deliveries:
        await publish(deliveries, "item")
        await wait_until_quiet(deliveries)
        assert len(await deliveries.repository.load_newest("$dead-letter/news", 10)) == 1


async def test_an_item_whose_answer_the_subscriber_has_deleted_was_accepted(database: Database) -> None:
    network = Network(item=[PeerFailedError(BOB, "not stored any more", ErrorCode.NOT_FOUND)])
    async with run_deliveries(database, network, attempts=1) as deliveries:
        await publish(deliveries, "item")
        await wait_until_quiet(deliveries)
        assert await deliveries.repository.load_newest("$dead-letter/news", 10) == []
        assert not await has_waiting(deliveries)


async def test_a_failing_topic_does_not_hold_up_the_others_of_its_subscriber(database: Database) -> None:
    network = Network(bad=[FAILURES[0]])
    async with run_deliveries(database, network) as deliveries:
        await publish(deliveries, "bad", "bad")
        for number in range(70):  # more than a page
            await publish(deliveries, f"behind {number}", "bad")
        await publish(deliveries, "good", "good")
        await wait_until_quiet(deliveries)
    assert network.accepted == ["good"]


async def test_a_dead_letter_that_nobody_takes_is_dropped(database: Database) -> None:
    network = Network()
    async with run_deliveries(database, network, attempts=1) as deliveries:
        await deliveries.repository.subscribe(BOB, ["$dead-letter/#"])
        network.problems = {"letter": [FAILURES[0]]}
        await publish(deliveries, "letter", "$dead-letter/x")
        await wait_until_quiet(deliveries)
        assert not await has_waiting(deliveries)
        assert len(await deliveries.repository.list_topics()) == 1


# Rights that end


async def test_what_is_refused_in_the_middle_of_a_topic_is_not_delivered_any_further(database: Database) -> None:
    network = Network()
    async with run_deliveries(database, network) as deliveries:
        network.unreachable = UNREACHABLE[0]
        for number in range(5):
            await publish(deliveries, f"item {number}")
        await wait_until_quiet(deliveries)
        network.unreachable = None
        network.on_accepted = lambda: network.refused.update({"#", "news"})
        deliveries.note_presence(BOB)
        await wait_until_quiet(deliveries)
        assert await deliveries.repository.list_subscribers() == []
        assert await deliveries.repository.load_newest("$dead-letter/news", 10) == []
    assert network.accepted == ["item 0"]


async def test_a_topic_that_is_refused_is_not_delivered_though_its_pattern_is_allowed(database: Database) -> None:
    network = Network()
    async with run_deliveries(database, network) as deliveries:
        network.refused = {"news"}
        for topic in ("news", "weather", "news"):
            await publish(deliveries, f"{topic} {len(network.accepted)}", topic)
            await wait_until_quiet(deliveries)
        assert not await has_waiting(deliveries)
        [(subscriber, pattern)] = await deliveries.repository.load_subscriptions()
    assert (network.accepted, subscriber, pattern) == (["weather 0"], BOB, "#")


async def test_a_failed_delivery_that_is_refused_before_its_repetition_ends(database: Database) -> None:
    network = Network(item=[FAILURES[0]] * 3)
    async with run_deliveries(database, network, attempts=3, retry_s=0.001) as deliveries:
        network.on_attempt = lambda: network.refused.update({"#", "news"})
        await publish(deliveries, "item")
        while await has_waiting(deliveries):
            await deliveries.tasks.wait_for_progress()
        assert await deliveries.repository.load_newest("$dead-letter/news", 10) == []
    assert network.attempts == [("item", 0)]


async def test_what_waits_for_a_pattern_that_is_refused_at_the_start_is_removed_before_anything_is_sent(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network()
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["#"])
    await topics.publish(TopicItem("item", "news", ALICE, NOW, {}))
    network.refused = {"#", "news"}
    tasks = AgentTasks(TaskQueue(database, AGENT), AGENT, lambda: NOW, 1)
    await TopicDeliveries(AGENT, topics, tasks, network.deliver, DeliveryPolicy(), network.find_refusal).open()
    assert await topics.list_subscribers() == []
    assert network.attempts == []
    assert f"{AGENT}: removed the subscription of {BOB} to # (waiting items: 1): no rule allows it" in caplog.messages


@pytest.mark.parametrize("topic", ["news ", " ", " news"])
async def test_spaces_in_a_topic_do_not_hold_up_its_items(database: Database, topic: str) -> None:
    network = Network()
    async with run_deliveries(database, network) as deliveries:
        for number in range(70):  # more than a page
            await publish(deliveries, str(number), topic)
        await eventually(lambda: len(network.accepted) == 70)
    assert network.accepted == [str(number) for number in range(70)]


async def test_topics_that_do_not_reach_a_subscriber_at_the_same_time_are_one_attempt(database: Database) -> None:
    network, held = Network(), asyncio.Event()

    async with run_deliveries(database, network) as deliveries:

        async def time_out_together(delivery: TopicDelivery, timeout_s: float) -> None:
            network.attempts.append((delivery.item.item_id, delivery.failures))
            await held.wait()
            raise UNREACHABLE[1]

        deliveries.deliver = time_out_together
        for number in range(10):
            await publish(deliveries, f"item {number}", f"topic {number}")
        await eventually(lambda: len(network.attempts) == 10)
        held.set()
        await wait_until_quiet(deliveries)
        last = max(task.wake_at for task in await deliveries.repository.tasks.load(owner=BOB))
        assert from_micros(last) < utc_now() + timedelta(seconds=LONG_S + 2 * deliveries.policy.timeout_s)


async def test_a_subscriber_that_is_back_is_not_forgotten_while_the_database_fails(
    database: Database, expected_errors: ExpectedErrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected_errors("the disk is full")
    network = Network()
    network.unreachable = UNREACHABLE[0]
    async with run_deliveries(database, network) as deliveries:
        await publish(deliveries, "item")
        await wait_until_quiet(deliveries)
        network.unreachable = None
        with monkeypatch.context() as patched:
            failed = Commit[bool].failed(StoreError("the disk is full"))
            patched.setattr(deliveries.repository, "move_tasks", lambda *_, **__: failed)
            deliveries.note_presence(BOB)
            await asyncio.sleep(0.05)
        await eventually(lambda: network.accepted == ["item"])


async def test_a_subscriber_that_comes_back_while_its_failure_is_stored_is_tried_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network()
    network.unreachable = UNREACHABLE[0]
    async with run_deliveries(database, network) as deliveries:
        move = deliveries.repository.move_tasks

        def come_back(*args: Any, **values: Any) -> Commit[bool]:
            monkeypatch.setattr(deliveries.repository, "move_tasks", move)
            commit, network.unreachable = move(*args, **values), None
            deliveries.note_presence(BOB)
            return commit

        monkeypatch.setattr(deliveries.repository, "move_tasks", come_back)
        await publish(deliveries, "item")
        await eventually(lambda: network.accepted == ["item"])
