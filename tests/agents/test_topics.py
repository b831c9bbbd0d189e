"""The topic broker, in a platform without a network: rules, order, repetitions, dead letters, retention and commands."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from agents.topics import TopicBroker
from spade_coreason import AgentDefinition, AgentRequest, AgentTester, ConfigError, Peers, Response, Session, agent, subscribe
from spade_coreason.domain.topics import TOPIC_ITEM, derive_item_id
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError, PeerUnavailableError
from spade_coreason.runtime.access.admission import MAX_HOPS
from spade_coreason.runtime.topics.decorator import subscriptions_of
from spade_coreason.testing import PlatformLimits, Policy, Rules
from tests.support.clock import Clock
from tests.support.errors import ExpectedErrors
from tests.support.wait import TIMEOUT_S, eventually

BROKER = "topics@localhost"
READER = "agent@localhost"
PRESS = "press@localhost"
OPERATOR = "boss@localhost"
QUICK = partial(TopicBroker, retry_s=0.01)
Item = tuple[str, dict[str, Any]]


class Press:
    """Publishes what it is asked to."""

    def __init__(self, manifest: AgentDefinition, peers: Peers) -> None:
        self.manifest = manifest
        self.peers = peers

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        topic, title = request.payload["query"].split(" ", 1)
        await response.markdown(await self.peers.publish(topic, {"title": title}))


def make_reader(*patterns: str, take: Callable[[AgentRequest, Session], Awaitable[None]]) -> type:
    """Return the class of an agent that calls `take` with each item, and answers a request with `none`."""

    class Reader:
        def __init__(self, manifest: AgentDefinition) -> None:
            self.manifest = manifest

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            await response.markdown(f"topic: {request.metadata.get('topic', 'none')}")

        async def on_item(self, request: AgentRequest, session: Session, response: Response) -> None:
            await take(request, session)

    for pattern in reversed(patterns):
        Reader.on_item = subscribe(pattern)(Reader.on_item)  # type: ignore[method-assign]  # patterns of a test
    return Reader


class Shelf:
    """The items that a reader got. `problems` are raised first, one for each item that comes."""

    def __init__(self, *problems: Exception) -> None:
        self.items: list[Item] = []
        self.requests: list[AgentRequest] = []
        self.problems = list(problems)

    async def take(self, request: AgentRequest, session: Session) -> None:
        self.requests.append(request)
        if self.problems:
            raise self.problems.pop(0)
        self.items.append((request.metadata["topic"], request.payload))

    @property
    def titles(self) -> list[str]:
        return [payload["title"] for _, payload in self.items]


def run_topics(reader: Any, broker: Any = QUICK, **options: Any) -> AgentTester:
    peers = {"press": Press, "topics": broker, **options.pop("peers", {})}
    return AgentTester(reader, peers=peers, topics="topics", **options)


async def publish(t: AgentTester, topic: str, title: str) -> str:
    return (await t.ask(f"{topic} {title}", to=PRESS)).text


# The way of an item


async def test_an_item_comes_with_its_topic_its_publisher_its_time_and_its_id() -> None:
    shelf, clock = Shelf(), Clock()
    async with run_topics(make_reader("news/#", take=shelf.take), clock=clock) as t:
        item_id = await publish(t, "news/sport", "We won")
        await publish(t, "weather", "It rains")
        await t.settled()
    assert shelf.items == [("news/sport", {"title": "We won"})]
    [request] = shelf.requests
    metadata = {key: request.metadata[key] for key in ("topic", "publisher", "published_at", "item_id", "channel", "hops")}
    assert metadata == {
        "topic": "news/sport",
        "publisher": PRESS,
        "published_at": "2025-11-20T12:00:00Z",
        "item_id": item_id,
        "channel": "program",
        "hops": 2,
    }
    assert TOPIC_ITEM not in request.metadata
    assert request.metadata["sender"].startswith(f"{BROKER}/")


async def test_the_first_handler_that_matches_gets_the_item() -> None:
    got: list[tuple[str, str]] = []

    class Desk:
        def __init__(self, manifest: AgentDefinition) -> None:
            self.manifest = manifest

        @subscribe("news/sport")
        @subscribe("results")
        async def on_sport(self, request: AgentRequest, session: Session, response: Response) -> None:
            got.append(("sport", request.metadata["topic"]))

        @subscribe("news/#")
        async def on_all(self, request: AgentRequest, session: Session, response: Response) -> None:
            got.append(("all", request.metadata["topic"]))

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            got.append(("assist", ""))

    async with run_topics(Desk) as t:
        assert [subscription.pattern for subscription in subscriptions_of(t.agent)] == ["news/sport", "results", "news/#"]
        for topic in ("news/sport", "news/local", "results"):
            await publish(t, topic, "x")
            await t.settled()
    assert got == [("sport", "news/sport"), ("all", "news/local"), ("sport", "results")]


async def test_a_function_agent_subscribes_with_a_second_decorator() -> None:
    got: list[Any] = []

    @agent(name="listener")
    @subscribe("news/#")
    async def listener(request: AgentRequest, session: Session, response: Response, peers: Peers) -> None:
        got.append(request.metadata.get("topic"))

    async with run_topics(listener) as t:
        await publish(t, "news/sport", "x")
        await t.settled()
        await t.ask("hello")
    assert got == ["news/sport", None]


async def test_items_of_a_topic_come_in_order_in_one_session_however_many_they_are() -> None:
    counts: dict[str, list[int]] = defaultdict(list)

    async def take(request: AgentRequest, session: Session) -> None:
        number = await session.get("count", 0)
        await session.store("count", number + 1, scope="conversation")
        counts[request.metadata["topic"]].append(request.payload["title"] == str(number))

    policy = Policy(rules=Rules(max_interactions=3))
    async with run_topics(make_reader("#", take=take), policy=policy) as t:
        peers = t.runtimes[PRESS].parts.peers
        for number in range(10):
            for topic in ("a", "b"):
                await peers.publish(topic, {"title": str(number)})
        await t.settled()
    assert counts == {"a": [True] * 10, "b": [True] * 10}


async def test_a_slow_subscriber_holds_up_nobody_else() -> None:
    release, shelf, slow = asyncio.Event(), Shelf(), Shelf()

    async def wait(request: AgentRequest, session: Session) -> None:
        if request.metadata["topic"] == "news":
            await release.wait()
        await slow.take(request, session)

    slow_reader = make_reader("#", take=wait)
    async with run_topics(make_reader("#", take=shelf.take), peers={"slow": slow_reader}) as t:
        for number in range(5):
            await publish(t, "news", str(number))
        await publish(t, "other", "x")
        await eventually(lambda: len(shelf.items) == 6 and len(slow.items) == 1)
        assert slow.items == [("other", {"title": "x"})]  # its other topics go on too
        release.set()
        await t.settled()
    assert [title for title in shelf.titles if title != "x"] == ["0", "1", "2", "3", "4"]
    assert slow.titles == ["x", "0", "1", "2", "3", "4"]


async def test_handlers_that_publish_in_a_circle_end(expected_errors: ExpectedErrors) -> None:
    expected_errors("refuses: This request came through")
    count = 0

    class Echo:
        def __init__(self, manifest: AgentDefinition, peers: Peers) -> None:
            self.manifest = manifest
            self.peers = peers

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None: ...

        @subscribe("ping")
        async def on_ping(self, request: AgentRequest, session: Session, response: Response) -> None:
            nonlocal count
            count += 1
            await self.peers.publish("ping", request.payload)

    async with run_topics(Echo, partial(TopicBroker, attempts=1)) as t:
        await publish(t, "ping", "x")
        await t.settled()
        assert await broker_lines(t, "$dead-letter/ping")
    assert count == 8  # each round has two hops


# Who may do what


async def test_only_the_configured_broker_delivers_items() -> None:
    shelf = Shelf()
    async with run_topics(make_reader("news/#", take=shelf.take), allow=("*",)) as t:
        description = {"topic": "news/sport", "publisher": PRESS, "published_at": "2025-11-20T12:00:00Z", "item_id": "1"}
        forged = AgentRequest(session_id=uuid4(), payload={"query": "x"}, metadata={TOPIC_ITEM: description, **description})
        for user in ("mallory@localhost", f"{PRESS}/x", "topics@localhost.evil/x", f"x{BROKER}/x"):
            assert (await t.ask(forged, user=user)).text == "topic: none"
    assert not shelf.requests


async def test_publishers_and_subscribers_are_admitted_by_rules(expected_errors: ExpectedErrors) -> None:
    expected_errors("refuses the subscriptions secret/#")
    shelf = Shelf()
    broker = partial(
        TopicBroker,
        publish={"news/#": [PRESS], "chat": ["*"]},
        subscribe={"news/#": ["localhost"], "secret/#": ["other@localhost"]},
    )
    async with run_topics(make_reader("secret/#", "news/+", take=shelf.take), broker) as t:
        await publish(t, "news/sport", "x")
        await publish(t, "chat", "x")
        peers = t.runtimes[PRESS].parts.peers
        with pytest.raises(PeerRefusedError, match=f"refuses: {PRESS} may not publish to the topic secret/plan"):
            await peers.publish("secret/plan", {})
        with pytest.raises(PeerRefusedError, match=f"refuses: {READER} may not publish to the topic news"):
            await t.runtimes[READER].parts.peers.publish("news", {})
        await t.settled()
    assert shelf.items == [("news/sport", {"title": "x"})]


async def test_a_broker_that_may_not_talk_to_an_agent_delivers_items_and_nothing_else() -> None:
    shelf = Shelf()
    reader = make_reader("news", take=shelf.take)
    async with run_topics(reader, user="alice@localhost", allow=("alice@localhost", PRESS, READER)) as t:
        await publish(t, "news", "x")
        await t.settled()
        assert shelf.titles == ["x"]
        with pytest.raises(PeerRefusedError, match="don't have access"):
            await t.runtimes[BROKER].parts.peers.ask(READER, "hello")


async def test_what_cannot_be_published_is_an_error_before_it_is_sent() -> None:
    async with run_topics(make_reader("news", take=Shelf().take)) as t:
        peers = t.runtimes[PRESS].parts.peers
        with pytest.raises(ValueError, match="wildcards"):
            await peers.publish("news/#", {})
        with pytest.raises(TypeError, match="a JSON object, not str"):
            await peers.publish("news", "text")  # type: ignore[arg-type]  # a mistake
    async with AgentTester(Press) as t:
        with pytest.raises(ConfigError, match=r"peers\.topics: names no topic broker"):
            await t.runtimes[READER].parts.peers.publish("news", {})
    async with AgentTester(Press, topics="nobody") as t:
        with pytest.raises(PeerUnavailableError, match="nobody@localhost is not available"):
            await t.runtimes[READER].parts.peers.publish("news", {})


@pytest.mark.parametrize(
    ("capability", "payload", "problem"),
    [
        ("publish", {"topic": "news"}, "a JSON object"),
        ("publish", {"topic": "$dead-letter/x", "payload": {}}, "the broker itself uses"),
        ("subscribe", {"patterns": "news"}, "a list of at most 1000"),
        ("subscribe", {"patterns": ["news/#/x"]}, "nothing may follow"),
    ],
)
async def test_a_wrong_request_of_another_program_is_an_error(capability: str, payload: dict[str, Any], problem: str) -> None:
    async with AgentTester(TopicBroker) as t:
        with pytest.raises(PeerFailedError, match=problem):
            await t.ask(AgentRequest(session_id=uuid4(), payload=payload, metadata={"capability": capability}))


async def test_a_person_is_told_what_the_broker_is_for() -> None:
    async with AgentTester(TopicBroker) as t:
        assert "peers.publish" in (await t.say("hello"))[0]
    async with AgentTester(partial(TopicBroker, attempts=3)) as t:
        assert (await t.say("/help"))[0].startswith("I am TopicBroker: Passes items")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"publish": {"news/#/x": []}}, "options.publish: 'news/#/x' is no pattern"),
        ({"subscribe": {"news": "*"}}, "options.subscribe: news: write a list"),
        ({"retention": {"hours": 1}}, "options.retention.hours: unknown key"),
        ({"retention": {"days": 0}}, "options.retention.days: must be a number above 0"),
        ({"retention": {"days": math.nan}}, "options.retention.days: must be a number above 0"),
        ({"retention": {"days": math.inf}}, "options.retention.days: must be a number above 0"),
        ({"retention": {"items": 0.5}}, "options.retention.items: must be a whole number above 0"),
        ({"attempts": 0}, "options.attempts: must be a whole number"),
        ({"retry_s": "1"}, "options.retry_s: must be a number of seconds"),
        ({"retry_s": math.nan}, "options.retry_s: must be a number of seconds"),
    ],
)
async def test_a_wrong_option_is_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        async with AgentTester(TopicBroker, options=options):
            pass
    assert problem in str(caught.value)


# What is repeated


async def test_published_twice_with_one_request_id_it_is_one_item() -> None:
    shelf = Shelf()
    async with run_topics(make_reader("news", take=shelf.take)) as t:
        peers, request_id = t.runtimes[PRESS].parts.peers, uuid4()
        first = await peers.publish("news", {"title": "x"}, request_id=request_id)
        assert first == await peers.publish("news", {"title": "x"}, request_id=request_id)
        await t.restart()
        peers = t.runtimes[PRESS].parts.peers
        assert first == await peers.publish("news", {"title": "x"}, request_id=request_id)
        with pytest.raises(PeerRefusedError, match="This request id was used for another request"):
            await peers.publish("news", {"title": "y"}, request_id=request_id)
        await t.settled()
    assert first == derive_item_id(PRESS, UUID(str(request_id)))
    assert shelf.titles == ["x"]


async def test_a_handler_that_fails_gets_the_item_again_and_later_ones_wait(expected_errors: ExpectedErrors) -> None:
    expected_errors("not now")
    shelf = Shelf(RuntimeError("not now"), RuntimeError("not now"))
    async with run_topics(make_reader("#", take=shelf.take)) as t:
        for number in range(3):
            await publish(t, "news", str(number))
        await eventually(lambda: len(shelf.items) == 3)
        await t.settled()
        assert "0 items wait" in await broker_text(t)
    assert shelf.titles == ["0", "1", "2"]
    assert len(shelf.requests) == 5


async def test_after_the_last_attempt_an_item_is_a_dead_letter_for_operators(expected_errors: ExpectedErrors) -> None:
    expected_errors("it is broken")
    expected_errors("refuses the subscriptions $dead-letter/#")
    broken, letters, other = Shelf(*[RuntimeError("it is broken")] * 3), Shelf(), Shelf()
    peers = {
        "boss": make_reader("$dead-letter/#", take=letters.take),
        "other": make_reader("$dead-letter/#", take=other.take),
    }
    policy = Policy(operators=frozenset({OPERATOR}))
    broker = partial(TopicBroker, attempts=3, retry_s=0.01)
    async with run_topics(make_reader("news/#", take=broken.take), broker, peers=peers, policy=policy) as t:
        item_id = await publish(t, "news/sport", "x")
        await eventually(lambda: bool(letters.requests))
        await publish(t, "news/sport", "y")
        await t.settled()
    assert broken.titles == ["y"]
    assert not other.requests
    [letter] = letters.requests
    assert letter.payload == {"title": "x"}
    assert letter.metadata["topic"] == "$dead-letter/news/sport"
    assert letter.metadata["publisher"] == PRESS
    reason = letter.metadata["dead_letter"]
    assert (reason["subscriber"], reason["item_id"], reason["topic"]) == (READER, item_id, "news/sport")
    assert reason["error"].startswith(f"{READER} reports: Something went wrong on my side")


async def test_after_a_restart_the_broker_goes_on_and_counts_on(expected_errors: ExpectedErrors) -> None:
    expected_errors("not yet")
    shelf = Shelf(RuntimeError("not yet"))
    broker = partial(TopicBroker, retry_s=1000)  # the first attempt after the failure comes with the restart
    async with run_topics(make_reader("#", take=shelf.take), broker) as t:
        await publish(t, "news", "0")
        await publish(t, "news", "1")
        await t.settled()
        assert not shelf.items
        assert "2 items wait" in await broker_text(t)
        await t.restart()
        await t.settled()
        assert shelf.titles == ["0", "1"]
        await t.restart()
        await t.settled()
    assert shelf.titles == ["0", "1"]
    assert len({request.request_id for request in shelf.requests}) == 3


async def test_a_subscriber_without_a_network_costs_no_attempt_and_gets_all_when_it_is_back() -> None:
    absent = "away@localhost"
    async with run_topics(make_reader("news", take=Shelf().take), partial(TopicBroker, attempts=1, retry_s=1000)) as t:
        subscribing = AgentRequest(session_id=uuid4(), payload={"patterns": ["news"]}, metadata={"capability": "subscribe"})
        await t.ask(subscribing, to=BROKER, user=f"{absent}/x")
        for number in range(3):
            await publish(t, "news", str(number))
        await t.settled()
        bounced = f"- {absent} ← news: 3 items wait"
        await eventually(lambda: not t.runners[BROKER].task_clock.tasks.is_under_way("delivery", [absent]))
        assert bounced in (await broker_text(t)).splitlines()
        assert "$dead-letter" not in await broker_text(t)


async def test_an_agent_that_subscribes_no_more_gets_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    shelf, patterns = Shelf(), ["news", "weather"]
    async with run_topics(lambda manifest: make_reader(*patterns, take=shelf.take)(manifest)) as t:
        patterns.remove("weather")
        await t.restart()
        await publish(t, "news", "x")
        await publish(t, "weather", "y")
        await t.settled()
        assert shelf.items == [("news", {"title": "x"})]
        patterns.clear()
        await t.restart()
        await publish(t, "news", "z")
        await t.settled()
        assert f"- {READER} ←" not in await broker_text(t)
    assert shelf.titles == ["x"]


async def test_without_a_broker_the_log_says_that_an_agent_gets_no_items(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "spade_coreason"):
        async with AgentTester(make_reader("news", take=Shelf().take)):
            pass
    assert "set peers.topics" in caplog.text


# A right that ends

FAR = "reader@far.example"


async def subscribe_far(t: AgentTester, *patterns: str, user: str = FAR) -> dict[str, Any]:
    """Subscribe a program that is no agent, and return the answer of the broker."""
    request = AgentRequest(session_id=uuid4(), payload={"patterns": list(patterns)}, metadata={"capability": "subscribe"})
    answer: dict[str, Any] = (await t.ask(request, to=BROKER, user=user)).data[0]["data"]
    return answer


async def subscribers_of(t: AgentTester) -> dict[str, tuple[tuple[str, ...], int]]:
    """Return the patterns of each subscriber, and the number of items that wait for it."""
    summaries = await t.runtimes[BROKER].parts.topic_store.list_subscribers()
    return {each.subscriber: (each.patterns, each.waiting) for each in summaries}


def count_items(t: AgentTester, user: str) -> int:
    """Count the items that were sent to a program."""
    return sum(TOPIC_ITEM in "".join(message.xml.itertext()) for message in t.messages(user))


async def test_a_subscription_ends_with_its_rule_and_so_do_the_items_that_wait(caplog: pytest.LogCaptureFixture) -> None:
    shelf, rules = Shelf(), {"#": ["localhost"]}
    build_broker = lambda manifest, topic_store: QUICK(manifest, topic_store, subscribe=rules)  # noqa: E731  # for peers
    async with run_topics(make_reader("free/#", take=shelf.take), build_broker) as t:
        await subscribe_far(t, "news/#", "free/#", user="away@localhost/x")
        for topic in ("news/sport", "free/jazz"):
            await publish(t, topic, "before")
        await t.settled()
        assert (await subscribers_of(t))["away@localhost"] == (("free/#", "news/#"), 2)
        rules["free/#"] = rules.pop("#")
        with caplog.at_level(logging.WARNING, "spade_coreason"):
            await t.restart()
        assert (await subscribers_of(t))["away@localhost"] == (("free/#",), 1)
        await publish(t, "news/sport", "after")
        await publish(t, "free/jazz", "after")
        await t.settled()
        assert (await subscribers_of(t))["away@localhost"] == (("free/#",), 2)
        assert (await subscribe_far(t, "news/#", user="away@localhost/x"))["refused"] == ["news/#"]
        assert "$dead-letter" not in await broker_text(t)
    assert shelf.titles == ["before", "after"]
    text = "removed the subscription of away@localhost to news/# (waiting items: 1): no rule allows it"
    assert f"{BROKER}: {text} (options.subscribe)" in caplog.messages


async def test_an_operator_who_is_one_no_more_gets_no_dead_letters() -> None:
    policy = Policy(operators=frozenset({OPERATOR}))
    async with run_topics(make_reader("news", take=Shelf().take), policy=policy) as t:
        assert (await subscribe_far(t, "$dead-letter/#", user=OPERATOR))["refused"] == []
        await t.restart(policy=Policy())
        assert OPERATOR not in await subscribers_of(t)


async def test_whoever_loses_access_to_the_broker_gets_no_further_item(caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(operators=frozenset({OPERATOR}))
    shelf = Shelf()
    async with run_topics(make_reader("news", take=shelf.take), policy=policy) as t:
        await t.say(f"/admit {FAR}", to=BROKER, user=OPERATOR)
        assert await subscribe_far(t, "news") == {"patterns": ["news"], "refused": []}
        await publish(t, "news", "before")
        await eventually(lambda: count_items(t, FAR) == 1)
        assert (await subscribers_of(t))[FAR] == (("news",), 1)  # its answer is awaited
        await t.say(f"/reject {FAR}", to=BROKER, user=OPERATOR)
        await publish(t, "news", "after")
        await t.settled()
        assert FAR not in await subscribers_of(t)
        assert count_items(t, FAR) == 1
        with pytest.raises(PeerRefusedError, match="don't have access"):
            await subscribe_far(t, "news")
        assert "$dead-letter" not in await broker_text(t)
    assert shelf.titles == ["before", "after"]
    assert any(f"removed the subscription of {FAR} to news" in line and "no access" in line for line in caplog.messages)


async def test_a_rejection_alone_removes_the_subscription_and_what_waits() -> None:
    policy = Policy(operators=frozenset({OPERATOR}))
    async with run_topics(make_reader("other", take=Shelf().take), policy=policy) as t:
        await t.say(f"/admit {FAR}", to=BROKER, user=OPERATOR)
        await subscribe_far(t, "news")
        await publish(t, "news", "before")
        await t.say(f"/reject {FAR}", to=BROKER, user=OPERATOR)
        async with asyncio.timeout(TIMEOUT_S):
            while FAR in await subscribers_of(t):  # the review runs in a task
                await t.settled()


async def test_subscribers_whom_the_roster_may_admit_lose_nothing_before_it_is_known() -> None:
    policy = Policy(operators=frozenset({OPERATOR}))
    async with run_topics(make_reader("other", take=Shelf().take), policy=policy) as t:
        await t.say(f"/admit {FAR}", to=BROKER, user=OPERATOR)
        await subscribe_far(t, "news")
        access_requests = t.gateways[BROKER].access_requests
        access = access_requests.access
        access.approved.discard(FAR)
        access.is_known = False
        await publish(t, "news", "x")
        await eventually(lambda: not t.runners[BROKER].task_clock.tasks.is_under_way("delivery", [FAR]))
        assert count_items(t, FAR) == 0
        assert (await subscribers_of(t))[FAR] == (("news",), 1)
        access.approved.add(FAR)  # as the roster would
        access.is_known = True
        access_requests.contacts_changed.emit()
        await eventually(lambda: count_items(t, FAR) == 1)


# What is too long


def make_long_request(characters: int) -> AgentRequest:
    payload = {"topic": "news", "payload": {"title": "<" * characters}}
    return AgentRequest(session_id=uuid4(), payload=payload, metadata={"capability": "publish"})


async def test_an_item_that_nobody_could_get_is_refused_at_publication() -> None:
    shelf = Shelf()
    async with run_topics(make_reader("news", take=shelf.take), policy=Policy(limits=PlatformLimits(stanza_bytes=20_000))) as t:
        problem = r"too long: ([\d,]+) bytes .* \(limit: 20,000, limits\.stanza_bytes of the broker\)"
        with pytest.raises(PeerFailedError, match=problem) as caught:
            await t.ask(make_long_request(10_000), to=BROKER)
        found = re.search(problem, str(caught.value))
        assert found is not None
        assert int(found[1].replace(",", "")) > 40_000  # as XML, each of its characters has four
        assert await broker_text(t) == f"- {READER} ← news: 0 items wait"
    assert not shelf.requests


async def test_the_longest_item_that_is_accepted_arrives_and_so_does_its_dead_letter(expected_errors: ExpectedErrors) -> None:
    expected_errors("agent@localhost: incident")
    policy = Policy(limits=PlatformLimits(stanza_bytes=20_000), operators=frozenset({"undertaker@localhost"}))
    shelf, letters = Shelf(ValueError("\x01" * 2000)), Shelf()
    undertaker = make_reader("$dead-letter/#", take=letters.take)
    broker = partial(TopicBroker, attempts=1)
    async with run_topics(make_reader("news", take=shelf.take), broker, policy=policy, peers={"undertaker": undertaker}) as t:
        low, high = 0, 20_000  # accepted, refused
        while high - low > 1:
            middle = (low + high) // 2
            try:
                await t.ask(make_long_request(middle), to=BROKER)
                low = middle
            except PeerFailedError:
                high = middle
        await t.settled()
        shelf.problems.append(ValueError("no"))
        await t.ask(make_long_request(low), to=BROKER)
        await t.settled()
    assert low > 2000
    assert len(shelf.requests[-1].payload["title"]) == low
    assert len(letters.items[-1][1]["title"]) == low


async def test_the_dead_letter_about_an_item_of_the_last_hop_reaches_its_reader(expected_errors: ExpectedErrors) -> None:
    expected_errors("refuses: This request came through")
    letters, count = Shelf(), 0

    class Circle:
        def __init__(self, manifest: AgentDefinition, peers: Peers) -> None:
            self.manifest = manifest
            self.peers = peers

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None: ...

        @subscribe("ping")
        @subscribe("$dead-letter/#")
        async def on_ping(self, request: AgentRequest, session: Session, response: Response) -> None:
            nonlocal count
            count += 1
            assert count < 100, "a circle without an end"
            await letters.take(request, session)
            await self.peers.publish("ping", request.payload)

    policy = Policy(operators=frozenset({READER}))
    async with run_topics(Circle, partial(TopicBroker, attempts=1), policy=policy) as t:
        publishing = {"topic": "ping", "payload": {"title": "x"}}
        await t.ask(AgentRequest(session_id=uuid4(), payload=publishing, metadata={"capability": "publish"}), to=BROKER)
        await t.settled()
    assert letters.requests[-1].metadata["hops"] == MAX_HOPS
    assert letters.items[-1] == ("$dead-letter/ping", {"title": "x"})


# What is stored


async def broker_text(t: AgentTester, topic: str = "") -> str:
    broker = t.built_agents[BROKER]
    assert isinstance(broker, TopicBroker)
    return await broker.topics(None, topic)  # type: ignore[arg-type]  # it needs no session


async def broker_lines(t: AgentTester, topic: str) -> list[str]:
    return (await broker_text(t, topic)).splitlines()


async def test_retention_deletes_old_items_and_makes_dead_letters_of_what_waits_too_long() -> None:
    clock = Clock()
    broker = partial(TopicBroker, retention={"days": 2, "items": 3})
    async with run_topics(make_reader("news", take=Shelf().take), broker, clock=clock) as t:
        subscribing = AgentRequest(session_id=uuid4(), payload={"patterns": ["late"]}, metadata={"capability": "subscribe"})
        await t.ask(subscribing, to=BROKER, user="away@localhost/x")
        for number in range(5):
            await publish(t, "news", str(number))
        await publish(t, "late", "x")
        await t.settled()
        store = t.runtimes[BROKER].parts.topic_store
        assert await store.purge() == 2
        assert (await broker_text(t)).splitlines()[:2] == ["- late: 1 item", "- news: 3 items"]
        clock.advance(days=2, seconds=1)
        await store.purge()  # or the broker has, since its clock is later
        found = (await broker_text(t)).splitlines()
        assert found[:2] == ["- $dead-letter/late: 1 item", "- agent@localhost ← news: 0 items wait"]
        [line] = await broker_lines(t, "$dead-letter/late")
        assert line.endswith("→ away@localhost: the subscriber was unreachable for 2 days")


async def test_operators_list_topics_and_nobody_else() -> None:
    policy = Policy(operators=frozenset({OPERATOR}))
    async with run_topics(make_reader("news/#", take=Shelf().take), policy=policy) as t:
        assert await t.say("/topics", to=BROKER, user=OPERATOR) == [f"- {READER} ← news/#: 0 items wait"]
        await publish(t, "news/sport", "We won")
        await t.settled()
        [text] = await t.say("/topics", to=BROKER, user=OPERATOR)
        assert text.splitlines() == ["- news/sport: 1 item", f"- {READER} ← news/#: 0 items wait"]
        [line] = await t.say("/topics news/sport", to=BROKER, user=OPERATOR)
        assert line.endswith(f'{PRESS} {{"title": "We won"}}')
        assert await t.say("/topics nothing", to=BROKER, user=OPERATOR) == ["There are no items of the topic nothing."]
        assert await t.say("/topics", to=BROKER) == ["/topics is for my operators only."]
        assert "/topics" not in (await t.say("/help", to=BROKER))[0]
        assert "/topics" in (await t.say("/help", to=BROKER, user=OPERATOR))[0]


async def test_an_agent_can_export_and_delete_what_the_broker_has_of_it() -> None:
    async with run_topics(make_reader("news", take=Shelf().take)) as t:
        await publish(t, "news", "x")
        await t.settled()
        export = json.loads((await command(t, "/export", PRESS)).partition("```")[2].strip("`\n"))
        assert [item["payload"] for item in export["topics"]["published"]] == [{"title": "x"}]
        assert "the name at 1 published item" in await command(t, "/forget me yes", PRESS)
        assert "1 subscription" in await command(t, "/forget me yes", READER)
        assert PRESS not in (await broker_text(t, "news"))
        assert await broker_text(t) == "- news: 1 item"


async def command(t: AgentTester, text: str, user: str) -> str:
    request = AgentRequest(session_id=uuid4(), payload={"query": text}, metadata={"command": True})
    return (await t.ask(request, to=BROKER, user=f"{user}/program")).text


# The decorator


def test_a_function_that_cannot_be_a_handler_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing may follow"):
        subscribe("news/#/x")
    with pytest.raises(TypeError, match="async def"):
        subscribe("news")(lambda request, session, response: None)  # type: ignore[type-var]  # a mistake
    with pytest.raises(TypeError, match="the method takes"):

        @subscribe("news")
        async def short(request: AgentRequest) -> None: ...

    with pytest.raises(TypeError, match="below @agent"):

        @subscribe("news")  # type: ignore[type-var]  # a mistake
        @agent
        async def above(request: AgentRequest, session: Session, response: Response) -> None: ...
