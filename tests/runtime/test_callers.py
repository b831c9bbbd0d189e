"""A caller of a door is nobody's root, is named to no other agent, and gets nothing but replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from pydantic_core import from_json

from agents.topics import TopicBroker
from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Peers, People, Response, Session, agent
from spade_coreason.contracts import NotificationState
from spade_coreason.domain.callers import HIDDEN_PERSON
from spade_coreason.domain.cards import load_card
from spade_coreason.domain.messages import RequestContext
from spade_coreason.domain.topics import TopicRules, read_item_metadata
from spade_coreason.exceptions import PeerError
from spade_coreason.runtime.initiative.notifications import dump_blocks
from spade_coreason.testing import Policy
from spade_coreason.xmpp.codec import decode
from spade_coreason.xmpp.codec.cloud_events import RequestMessage
from spade_coreason.xmpp.transport import parse_stanza
from tests.support.callers import SHOP, USER, WEBSITE, admit_everywhere
from tests.support.records import ALICE

NEXT, LAST = "next@localhost", "last@localhost"


@agent
async def favourite(request: AgentRequest, session: Session, response: Response) -> None:
    """Remember the city of a person. "?" asks for it, and shows how the person is named."""
    query = request.payload["query"]
    city = await session.get("city", "nothing") if query == "?" else query
    await session.store("city", city)
    await response.markdown(f"{city} {request.metadata.get('root_sender')} {request.metadata.get('hides_person')}")


def passing_on(to: str) -> Any:
    @agent
    async def passing(request: AgentRequest, session: Session, response: Response, peers: Peers) -> None:
        await response.markdown((await peers.ask(to, request.payload["query"], separate=True)).text)

    return passing


async def ask(t: AgentTester, query: str, user: str, to: str | None = None) -> str:
    """Ask in a new conversation, as a program does."""
    return (await t.ask(query, user=user, thread=str(uuid4()), to=to)).text


# Lineage


@pytest.mark.parametrize("sender", [NEXT, "stranger@elsewhere.example"])
@pytest.mark.parametrize("root", [WEBSITE, USER, "website@CALLERS.invalid.", "a@xn--callers-.invalid", HIDDEN_PERSON, "?", 5])
async def test_a_root_that_is_no_address_of_a_person_is_not_known(root: Any, sender: str) -> None:
    async with AgentTester(favourite, peers={NEXT: favourite}, allow=("*",)) as t:
        admit_everywhere(t)
        assert await ask(t, "Paris", WEBSITE) == "Paris None None"
        for query in ("Berlin", "?"):
            request = AgentRequest(session_id=uuid4(), payload={"query": query})
            message = RequestMessage(
                t.jid,
                request.dump(),
                source="x",
                thread=query,
                stanza_id=str(request.request_id),
                context=RequestContext(hops=1, root_sender=root),
            )
            t.gateways[t.jid].receive(decode(parse_stanza(message, f"{sender}/x")))
            await t.settled()
        repository = t.runners[t.jid].repository
        [first, second] = [
            from_json(body)
            for conversation in await repository.list_conversations(sender)
            for body in await repository.turns.load_history(conversation.id, 5)
        ]
        assert {turn["output"]["text"] for turn in (first, second)} == {"Berlin None True", "nothing None True"}
        assert first["meta"].get("root_sender", "") == ""
        assert await repository.load_variables("person", sender) == {}
        assert await repository.load_variables("person", WEBSITE) == {"city": '"Paris"'}


async def test_two_callers_behind_an_agent_share_no_variables_at_the_next_ones_and_are_not_named() -> None:
    async with AgentTester(passing_on(NEXT), peers={NEXT: passing_on(LAST), LAST: favourite}) as t:
        admit_everywhere(t)
        for caller in (WEBSITE, SHOP, USER):
            assert await ask(t, "Berlin", caller) == "Berlin None True"
            assert await ask(t, "?", caller) == "nothing None True"
        for jid in (t.jid, NEXT, LAST, WEBSITE):
            assert await t.runners[LAST].repository.load_variables("person", jid) == {}
        assert await ask(t, "Rome", ALICE) == f"Rome {ALICE} None"
        assert await ask(t, "?", ALICE) == f"Rome {ALICE} None"


async def test_the_address_of_a_caller_leaves_in_no_request_to_another_agent() -> None:
    async with AgentTester(passing_on(NEXT), peers={NEXT: passing_on(LAST), LAST: favourite}) as t:
        admit_everywhere(t)
        sent: list[Any] = []
        deliver = t._network.send

        def send(sender: str, to: str, item: Any) -> None:
            sent.append((sender, to, item))
            deliver(sender, to, item)

        t._network.send = send  # type: ignore[method-assign, assignment]
        assert await ask(t, "Berlin", WEBSITE) == "Berlin None True"
        between = [str(item) for sender, to, item in sent if "callers" not in sender and "callers" not in to]
        assert len(between) >= 4
        assert not [text for text in between if "callers" in text]


# What an agent begins by itself


Work = Callable[[Peers, People, Session, Response], Awaitable[object]]
ATTEMPTS: dict[str, tuple[Work, str]] = {
    "a notification": (lambda peers, people, session, response: people.notify(SHOP, "hello"), "is a caller of a door"),
    "a notification in another spelling": (
        lambda peers, people, session, response: people.notify("website@CALLERS.Invalid.", "hello"),
        "is a caller of a door, which fetches replies and gets nothing else; name a person, with their JID",
    ),
    "a question to another caller": (
        lambda peers, people, session, response: response.ask_person("Which?", to=SHOP),
        "is a caller of a door, who can only be asked in their own reply; pass to=JID of a person",
    ),
    "a reminder": (
        lambda peers, people, session, response: session.remind(timedelta(hours=1), "tea"),
        "session.remind: a caller of a door fetches replies, and nothing is sent to it later; answer it now, or write",
    ),
    "a repeated reminder": (
        lambda peers, people, session, response: session.remind("0 9 * * *", "tea"),
        "session.remind: a caller of a door fetches replies",
    ),
    "a job": (
        lambda peers, people, session, response: session.later("tea"),
        "session.later: a caller of a door fetches replies",
    ),
    "a request": (
        lambda peers, people, session, response: peers.ask(WEBSITE, "hello"),
        "@callers.invalid was not asked: this is the address of a caller of a door, which is no agent; name another agent",
    ),
    "a request without a reply": (
        lambda peers, people, session, response: peers.tell("shop@callers。invalid", "hello"),
        "was not asked: this is the address of a caller of a door",
    ),
}


class Attempting:
    """An agent that attempts something in each turn, and answers with the error."""

    manifest = AgentDefinition.simple("attempting")

    def __init__(self, peers: Peers, people: People, work: Work) -> None:
        self.peers, self.people, self.work = peers, people, work

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        with pytest.raises((ValueError, PeerError)) as caught:
            await self.work(self.peers, self.people, session, response)
        await response.markdown(str(caught.value))


@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_what_a_caller_could_not_get_is_refused_with_the_remedy(attempt: str) -> None:
    work, problem = ATTEMPTS[attempt]
    async with AgentTester(Attempting, options={"work": work}) as t:
        admit_everywhere(t)
        assert problem in await ask(t, "go", WEBSITE)
        assert await t.schedules() == []
        assert await t.questions(state=None) == []
        assert await t.notifications() == []


async def test_a_caller_is_asked_in_its_own_reply() -> None:
    @agent
    async def asking(request: AgentRequest, session: Session, response: Response) -> None:
        answer = await response.ask_person("Which?", choices=["red", "blue"])
        await response.markdown(f"you took {answer.text}")

    async with AgentTester(asking) as t:
        admit_everywhere(t)
        [shown] = await t.say("go", user=WEBSITE)
        assert "Which?" in shown
        assert await t.say("red", user=WEBSITE) == ["you took red"]


async def test_a_person_still_is_reminded_and_notified_in_the_turn_of_a_caller() -> None:
    @agent
    async def telling(request: AgentRequest, session: Session, response: Response, people: People) -> None:
        await response.markdown((await people.notify(ALICE, "somebody asked")).state)

    async with AgentTester(telling) as t:
        admit_everywhere(t)
        assert await ask(t, "go", WEBSITE) == NotificationState.WAITING
        await t.settled()
        assert t.unread(ALICE) == ["somebody asked"]


async def test_a_notification_to_a_caller_that_is_stored_is_refused_and_not_sent() -> None:
    async with AgentTester(favourite) as t:
        admit_everywhere(t)
        notifications = t.runners[t.jid].control.notifications
        [stored] = [await notifications.notify(str(uuid4()), WEBSITE, None, dump_blocks("hello"), "")]
        assert stored.state is NotificationState.REFUSED
        await t.settled()
        assert t.messages(WEBSITE) == []


# Topics, cards and access


async def test_no_topic_has_a_caller_as_publisher_or_subscriber() -> None:
    async with AgentTester(favourite, peers={"topics@localhost": TopicBroker}, topics="topics@localhost") as t:
        admit_everywhere(t)
        broker: Any = t.built_agents["topics@localhost"]
        store = broker._store
        with pytest.raises(ValueError, match="callers of doors get access by a key"):
            await store.publish("news", {}, publisher=WEBSITE, request_id=uuid4())
        with pytest.raises(ValueError, match="callers of doors get access by a key"):
            await store.subscribe(WEBSITE, ["news"])
        for capability, payload in (("publish", {"topic": "news", "payload": {}}), ("subscribe", {"patterns": ["news"]})):
            request = AgentRequest(session_id=uuid4(), payload=payload, metadata={"capability": capability})
            answer = await t.ask(request, user=WEBSITE, to="topics@localhost")
            assert answer.data[0]["data"].get("refused"), answer
        assert await store.list_topics() == []
        assert await store.list_subscribers() == []


def test_a_rule_of_topics_admits_no_caller() -> None:
    assert not TopicRules().is_allowed(WEBSITE, "news")
    assert TopicRules().is_allowed(ALICE, "news")
    with pytest.raises(ValueError, match="callers of doors get access by a key"):
        TopicRules({"#": ["callers.invalid"]})


def test_the_publisher_that_a_broker_names_is_not_known_if_it_is_a_caller() -> None:
    item = {"topic": "news", "publisher": USER, "published_at": "2030-01-01T00:00:00Z", "item_id": "1"}
    assert read_item_metadata(item) == item | {"publisher": ""}


def test_a_card_that_names_a_caller_as_an_agent_is_left_out() -> None:
    card = {"jid": ALICE, "name": "a", "description": "", "version": "1", "capabilities": [], "is_online": True}
    card["turns_in_flight"] = 0
    assert load_card(card) is not None
    assert load_card(card | {"jid": WEBSITE}) is None


async def test_operators_are_not_asked_to_admit_a_caller() -> None:
    async with AgentTester(favourite, policy=Policy(operators=frozenset({ALICE}))) as t:
        requests = t.gateways[t.jid].access_requests
        requests.access.asks_operators = True
        assert t.messages(ALICE) == []
        assert not requests.ask_operators(WEBSITE)
        assert requests.ask_operators("stranger@elsewhere.example")
        await t.settled()
        [question] = t.messages(ALICE)
        assert "stranger@elsewhere.example wants to talk" in str(question.text)


async def test_an_operator_cannot_admit_a_caller() -> None:
    async with AgentTester(favourite, policy=Policy(operators=frozenset({ALICE}))) as t:
        [answer] = await t.say("/admit website@CALLERS.invalid", user=ALICE)
        assert "callers of doors get access by a key: spade-coreason keys create" in answer
        assert not t.gateways[t.jid].access.approved
