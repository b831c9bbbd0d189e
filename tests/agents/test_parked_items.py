"""An item whose handler asks a person: one request, one approval and one run, however often and whenever it is delivered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from agents.topics import TopicBroker
from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, Session, subscribe
from spade_coreason.domain.topics import dead_letter_topic, derive_delivery_id
from spade_coreason.exceptions import PeerFailedError, PeerParkedError
from spade_coreason.testing import Policy, Question
from tests.support.databases import on_both_databases
from tests.support.errors import ExpectedErrors
from tests.support.long_forms import seeded_random, short_and_long_in_release
from tests.support.wait import TIMEOUT_S

READER, BROKER, BOSS, PRESS = "agent@localhost", "topics@localhost", "boss@localhost", "press@localhost"


class Refunder:
    """Refunds each order once it is approved. `fails` lets it fail then; `starts` are the titles of its runs."""

    def __init__(self, manifest: AgentDefinition) -> None:
        self.manifest = manifest
        self.starts: list[str] = []
        self.refunded: list[str] = []
        self.fails: Exception | None = None

    @subscribe("orders/#")
    async def on_order(self, request: AgentRequest, session: Session, response: Response) -> None:
        title = request.payload["title"]
        self.starts.append(title)
        if title.startswith("plain"):
            return
        await session.run_approved("refund", self.refund, title)
        if self.fails is not None:
            raise self.fails

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown("I refund.")

    def refund(self, title: str) -> str:
        self.refunded.append(title)
        return title


def run_refunds(database_url: str | None = None, **options: Any) -> AgentTester:
    broker = partial(TopicBroker, **{"retry_s": 0.01, **options})
    policy = Policy(operators=frozenset({BOSS}))
    return AgentTester(Refunder, peers={"topics": broker}, topics="topics", user=PRESS, policy=policy, database=database_url)


def refunder(t: AgentTester) -> Refunder:
    assert isinstance(t.agent, Refunder)
    return t.agent


async def publish(t: AgentTester, *titles: str, topic: str = "orders/1") -> list[str]:
    """Publish items, and return their ids."""
    ids = []
    for title in titles:
        item = {"topic": topic, "payload": {"title": title}}
        answer = await t.ask(AgentRequest(session_id=uuid4(), payload=item, metadata={"capability": "publish"}), to=BROKER)
        ids.append(answer.data[0]["data"]["item_id"])
    return ids


async def load_waiting(t: AgentTester) -> int:
    """Return the number of items that the broker has not finished."""
    return sum(each.waiting for each in await t.runners[BROKER].repository.topics.list_subscribers())


async def wait_until(t: AgentTester, is_reached: Callable[[], bool]) -> None:
    """Let time pass until a condition holds, and every delivery has ended."""
    async with asyncio.timeout(TIMEOUT_S):
        while not is_reached() or await load_waiting(t):
            await t.advance(timedelta(minutes=1))


async def approvals(t: AgentTester) -> list[Question]:
    """Return all approvals that were asked for, of any state."""
    return await t.questions(BOSS, state=None)


@on_both_databases
async def test_an_item_waits_for_its_approval_under_one_id_and_the_next_ones_follow(database_url: str) -> None:
    async with run_refunds(database_url) as t:
        await publish(t, "a", "plain", "b")
        await t.settled()
        assert refunder(t).starts == ["a", "plain", "b"]
        first, second = await approvals(t)
        assert await load_waiting(t) == 2
        await t.approve(second, user=BOSS)
        await t.approve(first, user=BOSS)
        await wait_until(t, lambda: len(refunder(t).refunded) == 2)
        assert refunder(t).refunded == ["b", "a"]
        assert len(await approvals(t)) == 2
        assert await t.runners[BROKER].repository.topics.load_newest(dead_letter_topic("orders/1"), 5) == []


async def test_every_way_in_which_an_item_is_delivered_again_asks_once_and_runs_once() -> None:
    async with run_refunds() as t:
        [item_id] = await publish(t, "a")
        await t.settled()
        for _ in range(3):  # the platform starts again, and the broker sends what has not ended
            await t.restart()
            await t.settled()
        broker, subscriber = t.runtimes[BROKER].parts, READER
        [delivery] = await broker.repository.topics.load_deliveries(subscriber, 9)
        for _ in range(3):  # it is sent again by hand
            with pytest.raises(PeerParkedError):
                await broker.topic_store._deliver(delivery, TIMEOUT_S)
        broker.topic_store.note_presence(READER)  # the subscriber has just come online
        await t.settled()
        [question] = await approvals(t)
        await t.approve(question, user=BOSS)
        await wait_until(t, lambda: refunder(t).refunded == ["a"])
        await broker.topic_store._deliver(delivery, TIMEOUT_S)  # a copy that comes late gets the stored reply
        await t.restart()
        await t.settled()
        assert len(await approvals(t)) == 1
        assert refunder(t).refunded == []  # of the new instance
        assert [item.item_id for item in await t.runners[BROKER].repository.topics.load_newest("orders/1", 5)] == [item_id]


@pytest.mark.parametrize("is_heard", [True, False])
async def test_a_handler_that_fails_after_its_approval_makes_a_dead_letter_and_asks_nobody_again(
    is_heard: bool, expected_errors: ExpectedErrors
) -> None:
    expected_errors("incident")
    async with run_refunds() as t:
        refunder(t).fails = RuntimeError("the till is closed")
        [item_id] = await publish(t, "a")
        await t.settled()
        topics = t.runners[BROKER].repository.topics
        if not is_heard:  # as if the broker had died before it stored that the request was parked
            write = t.runners[BROKER].repository.database.write
            await write(lambda connection: connection.exec_driver_sql("UPDATE topic_deliveries SET parked = NULL"))
            await topics.begin(t.now)
        await t.approve(user=BOSS)
        await wait_until(t, lambda: True)
        assert refunder(t).refunded == ["a"]
        assert len(await approvals(t)) == 1
        [letter] = await topics.load_newest(dead_letter_topic("orders/1"), 5)
        assert letter.dead_letter is not None
        assert letter.dead_letter["item_id"] == item_id
        await t.restart()
        await t.settled()
        assert len(await approvals(t)) == 1


@pytest.mark.parametrize("decision", ["deny", "expire"])
async def test_an_item_that_is_not_approved_ends_too(decision: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("incident")
    async with run_refunds() as t:
        await publish(t, "a", "b")
        await t.settled()
        questions = await approvals(t)
        if decision == "deny":
            for question in questions:
                await t.deny(question, user=BOSS)
        else:
            await t.advance(timedelta(days=2))
        await wait_until(t, lambda: True)
        assert (refunder(t).refunded, len(await approvals(t))) == ([], 2)
        letters = await t.runners[BROKER].repository.topics.load_newest(dead_letter_topic("orders/1"), 5)
        assert len(letters) == 2


async def test_a_request_that_is_cancelled_while_it_waits_ends_the_delivery() -> None:
    async with run_refunds() as t:
        [item_id] = await publish(t, "a")
        await t.settled()
        key = derive_delivery_id(item_id, READER, 0)
        commit = t.gateways[READER].cancel_request(BROKER, key)
        assert commit is not None
        await commit
        await wait_until(t, lambda: True)
        assert (refunder(t).refunded, refunder(t).starts) == ([], ["a"])


async def test_a_caller_hears_that_a_request_failed_after_its_question(expected_errors: ExpectedErrors) -> None:
    expected_errors("incident")

    class Asks:
        manifest = AgentDefinition.simple("asks")

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            if request.payload["query"] == "pay":
                await session.run_approved("pay", str, 5)
            raise RuntimeError("no")

    async with AgentTester(Asks, policy=Policy(operators=frozenset({BOSS}))) as t:
        request = AgentRequest(session_id=uuid4(), payload={"query": "pay"})
        with pytest.raises(PeerParkedError):
            await t.ask(request)
        await t.approve(user=BOSS)
        await t.settled()
        for _ in range(2):
            with pytest.raises(PeerFailedError) as failed:
                await t.ask(request)
            assert failed.value.has_asked
        with pytest.raises(PeerFailedError) as failed:
            await t.ask("fail")
        assert not failed.value.has_asked


@short_and_long_in_release("APPROVAL_ATTACKS", 3, 30)
async def test_items_are_asked_and_run_once_whatever_comes_between_at_random(count: int) -> None:
    rng = seeded_random()
    async with run_refunds() as t:
        titles, runs = list[str](), Counter[str]()
        for number in range(count):
            new = [f"{number}-{index}" for index in range(rng.randrange(1, 4))]
            titles += new
            await publish(t, *new, topic=f"orders/{rng.randrange(2)}")
            for _ in range(rng.randrange(4)):
                match rng.choice(["restart", "time", "presence", "decide"]):
                    case "restart":
                        runs.update(refunder(t).refunded)
                        await t.restart()
                    case "time":
                        await t.advance(timedelta(seconds=rng.randrange(200)))  # not up to the end of an approval
                    case "presence":
                        t.runtimes[BROKER].parts.topic_store.note_presence(READER)
                    case "decide":
                        await t.settled()
                        if waiting := await t.questions(BOSS):
                            await t.approve(rng.choice(waiting), user=BOSS)
        await t.settled()
        while questions := await t.questions(BOSS):  # some of them waited for a place
            for question in questions:
                await t.approve(question, user=BOSS)
            await t.settled()
        await wait_until(t, lambda: len(runs) + len(refunder(t).refunded) >= len(titles))
        runs.update(refunder(t).refunded)
        assert runs == Counter(titles)
        assert len(await approvals(t)) == len(titles)
