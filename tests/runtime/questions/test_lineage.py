"""Nobody approves what they have asked for themselves, by whatever way it came: topics, jobs, due times, and other agents."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from agents.topics import TopicBroker
from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Peers, Response, Session, subscribe
from spade_coreason.domain.callers import HIDDEN_PERSON
from spade_coreason.domain.channel_kinds import DOOR, PERSON, PROGRAM, ROOM, ChannelKind
from spade_coreason.domain.messages import NO_CONTEXT, InboundRequest, RequestContext, RoomOrigin, find_root
from spade_coreason.domain.topics import read_item_metadata
from spade_coreason.exceptions import ApprovalRefusedError, PeerError, PeerParkedError
from spade_coreason.runtime.intake.scheduler import make_request
from spade_coreason.storage import StoredQuestion
from spade_coreason.testing import Policy
from tests.support.long_forms import seeded_random, short_and_long_in_release
from tests.support.records import NOW
from tests.support.requests import build_incoming

DESK, VAULT, PRESS, BROKER = "desk@localhost", "vault@localhost", "press@localhost", "topics@localhost"
BOSS, OTHER_BOSS, AGENT = "boss@localhost", "other@localhost", "agent@localhost"


class Walker:
    """Goes the steps of the path in its payload, each in a request of its own, up to an approval."""

    def __init__(self, manifest: AgentDefinition, peers: Peers) -> None:
        self.manifest = manifest
        self.peers = peers
        self.paid: list[str] = []
        self.refusals: list[str] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await self._go_on(request, session)

    async def _go_on(self, request: AgentRequest, session: Session) -> None:
        step, *rest = request.payload["path"]
        payload = {"path": rest}
        verb, _, to = step.partition(" ")
        with suppress(PeerError):
            match verb:
                case "later":
                    await session.later(payload)
                case "remind":
                    await session.remind(timedelta(minutes=1), payload)
                case "ask":
                    await self.peers.ask(f"{to}@localhost", payload)
                case "gather":
                    await self.peers.gather([(f"{to}@localhost", payload)])
                case "publish":
                    await self.peers.publish(to, payload)
                case "approve":
                    try:
                        await session.run_approved("pay", self.pay, to)
                    except ApprovalRefusedError as error:
                        self.refusals.append(error.problem)

    def pay(self, amount: str) -> None:
        self.paid.append(amount)


class Desk(Walker):
    @subscribe("orders")
    async def on_order(self, request: AgentRequest, session: Session, response: Response) -> None:
        await self._go_on(request, session)


class Vault(Walker):
    @subscribe("deep/#")
    async def on_item(self, request: AgentRequest, session: Session, response: Response) -> None:
        await self._go_on(request, session)


def run_agents(*approvers: str) -> AgentTester:
    policy = Policy(operators=frozenset(approvers))
    peers = {"vault": Vault, "press": Walker, "topics": partial(TopicBroker, retry_s=0.01)}
    return AgentTester(Desk, peers=peers, topics="topics", user=BOSS, policy=policy, jid=DESK)


async def publish(t: AgentTester, topic: str, payload: Mapping[str, Any]) -> None:
    """Publish an item as a person's program does."""
    item = {"topic": topic, "payload": dict(payload)}
    await t.ask(AgentRequest(session_id=uuid4(), payload=item, metadata={"capability": "publish"}), to=BROKER)


async def begin(t: AgentTester, start: str, path: list[str]) -> None:
    """Let the approver begin what the path says, and wait until it waits for an approval."""
    with suppress(PeerParkedError):
        match start:
            case "asks":
                await t.ask({"path": path})
            case "publishes":
                await publish(t, "orders", {"path": path})
            case "lets publish":
                await t.ask({"path": ["publish orders", *path]}, to=PRESS)
            case "lets publish later":
                await t.ask({"path": ["later", "publish orders", *path]}, to=PRESS)
    for _ in range(len(path)):
        await t.settled()
        await t.advance(timedelta(minutes=1))
    await t.settled()


async def load_questions(t: AgentTester, person: str) -> list[tuple[str, StoredQuestion]]:
    """Return the open questions of a person, each with the agent that asks it."""
    return [
        (jid, question)
        for jid, runner in t.runners.items()
        for question in await runner.repository.questions.load_asked(person)
    ]


STARTS = ["asks", "publishes", "lets publish", "lets publish later"]
STEPS = ["later", "remind", "ask vault", "ask press", "gather vault", "gather press", "publish deep/sea", "publish orders"]
PATHS = [
    "approve 5",
    "later, approve 5",
    "remind, approve 5",
    "ask vault, approve 5",
    "gather vault, approve 5",
    "publish deep/sea, approve 5",
    "later, ask vault, approve 5",
    "remind, later, approve 5",
    "ask vault, later, approve 5",
    "ask vault, remind, approve 5",
    "later, publish deep/sea, approve 5",
    "ask vault, publish orders, remind, approve 5",
    "publish deep/sea, ask press, approve 5",
    "publish deep/sea, later, ask press, later, approve 5",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("start", STARTS)
async def test_an_approver_who_is_behind_a_call_does_not_decide_it(start: str, path: str) -> None:
    async with run_agents(BOSS, OTHER_BOSS) as t:
        await begin(t, start, path.split(", "))
        assert await load_questions(t, BOSS) == []
        [(agent, question)] = await load_questions(t, OTHER_BOSS)
        assert question.requester == BOSS
        await t.say(f"/approve {question.code}", to=agent)
        await t.settled()
        walkers = [walker for walker in t.built_agents.values() if isinstance(walker, Walker)]
        assert [walker.paid for walker in walkers if walker.paid] == []
        await t.say(f"/approve {question.code}", user=OTHER_BOSS, to=agent)
        await t.settled()
        assert [walker.paid for walker in walkers if walker.paid] == [["5"]]


@short_and_long_in_release("APPROVAL_ATTACKS", 5, 50)
async def test_no_path_at_random_leads_an_approver_to_their_own_call(count: int) -> None:
    rng = seeded_random()
    decided = runs = 0
    while runs < count or decided < count // 5:  # others end before, such as an agent that asks itself
        runs += 1
        path = [*(rng.choice(STEPS) for _ in range(rng.randrange(6))), "approve 5"]
        start = rng.choice(STARTS)
        async with run_agents(BOSS, OTHER_BOSS) as t:
            await begin(t, start, path)
            assert await load_questions(t, BOSS) == [], (start, path)
            walkers = [walker for walker in t.built_agents.values() if isinstance(walker, Walker)]
            for agent, question in await load_questions(t, OTHER_BOSS):
                assert question.requester == BOSS, (start, path)
                await t.say(f"/approve {question.code}", to=agent)
                await t.settled()
                assert not any(walker.paid for walker in walkers), (start, path)
                decided += 1


async def test_what_the_only_approver_began_is_refused_with_the_reason() -> None:
    async with run_agents(BOSS) as t:
        await begin(t, "lets publish", ["later", "ask vault", "approve 5"])
        vault = t.built_agents[VAULT]
        assert isinstance(vault, Walker)
        assert "no one but boss@localhost may approve this" in str(vault.refusals)


async def test_an_item_whose_person_was_deleted_is_of_nobody_who_could_be_told_from_its_approver() -> None:
    async with run_agents(BOSS, OTHER_BOSS) as t:
        topics = t.runners[BROKER].repository.topics
        await t.ask({"path": ["publish nowhere", "approve 5"]}, to=PRESS)
        [item] = await topics.load_newest("nowhere", 1)
        assert (item.publisher, item.root) == (PRESS, BOSS)
        await t.say("/forget me yes", to=BROKER)
        [item] = await topics.load_newest("nowhere", 1)
        assert (item.publisher, item.root) == ("", "")
        metadata = read_item_metadata({"topic": "nowhere", "publisher": "", "published_at": "", "item_id": item.item_id})
        assert metadata is not None
        assert find_root({"sender": BROKER, **metadata}) == HIDDEN_PERSON


CALLER, ROOM_JID = "editor@callers.invalid", "garden@rooms.localhost"


def make_incoming(kind: ChannelKind, owner: str, **fields: Any) -> InboundRequest:
    return build_incoming("pay", owner, kind, stanza_id="1", **fields)


REQUESTS = {
    "a person": (make_incoming(PERSON, BOSS), BOSS),
    "a program": (make_incoming(PROGRAM, BOSS), BOSS),
    "a key with an account": (make_incoming(DOOR, CALLER, context=RequestContext(account=BOSS)), BOSS),
    "a key": (make_incoming(DOOR, CALLER), CALLER),
    "an occupant": (
        make_incoming(ROOM, ROOM_JID, room=RoomOrigin(ROOM_JID), metadata={"room": ROOM_JID, "occupant": BOSS}),
        BOSS,
    ),
    "an unknown occupant": (make_incoming(ROOM, ROOM_JID, room=RoomOrigin(ROOM_JID), metadata={"room": ROOM_JID}), ""),
    "an agent": (make_incoming(PROGRAM, PRESS, context=RequestContext(1, BOSS)), BOSS),
    "a publisher": (make_incoming(PROGRAM, BROKER, metadata={"publisher": BOSS}, context=RequestContext(1)), BOSS),
    "a person behind a publisher": (
        make_incoming(PROGRAM, BROKER, metadata={"publisher": PRESS, "root_sender": BOSS}, context=RequestContext(2)),
        BOSS,
    ),
    "a deleted publisher": (make_incoming(PROGRAM, BROKER, metadata={"publisher": ""}, context=RequestContext(1)), ""),
    "an agent that hides them": (make_incoming(PROGRAM, PRESS, context=RequestContext(1, hides_person=True)), ""),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("kind", ["job", "reminder"])
async def test_a_due_time_has_the_person_who_is_behind_the_request_that_made_it(kind: str, name: str) -> None:
    incoming, person = REQUESTS[name]
    async with run_agents(BOSS) as t:
        scheduler = t.runners[DESK].control.schedules
        stored = scheduler.make(str(uuid4()), kind, incoming, "pay", NOW, None, "once")
    due = make_request(stored, NOW)
    assert (incoming.stored_root if incoming.stored_root is not None else incoming.owner) == person
    assert (due.stored_root if due.stored_root is not None else due.owner) == person
    assert InboundRequest.from_json(due.to_json()).stored_root == due.stored_root  # after a restart, too


@pytest.mark.parametrize(
    ("metadata", "person"),
    [
        ({"sender": f"{BOSS}/x"}, BOSS),
        ({"sender": f"{PRESS}/x", "root_sender": BOSS}, BOSS),
        ({"sender": f"{BROKER}/x", "publisher": BOSS}, BOSS),
        ({"sender": f"{BROKER}/x", "publisher": PRESS, "root_sender": BOSS}, BOSS),
        ({"sender": f"{BROKER}/x", "publisher": PRESS, "root_sender": ""}, HIDDEN_PERSON),
        ({"sender": f"{BROKER}/x", "publisher": ""}, HIDDEN_PERSON),
        ({"sender": f"{BROKER}/x", "publisher": BOSS, "hides_person": True}, HIDDEN_PERSON),
        ({"sender": f"{ROOM_JID}/ann", "room": ROOM_JID}, HIDDEN_PERSON),
        ({"sender": f"{ROOM_JID}/ann", "room": ROOM_JID, "occupant": BOSS}, HIDDEN_PERSON),
        ({"sender": CALLER}, HIDDEN_PERSON),
        ({"sender": CALLER, "root_sender": BOSS}, HIDDEN_PERSON),  # a due time of a key with an account
    ],
)
def test_other_agents_learn_the_person_behind_a_request_or_that_they_are_hidden(metadata: dict[str, Any], person: str) -> None:
    assert find_root(metadata) == person


@pytest.mark.parametrize(
    ("metadata", "asked"),
    [
        ({"publisher": BOSS}, [OTHER_BOSS]),
        ({"publisher": PRESS}, [BOSS, OTHER_BOSS]),
        ({"publisher": PRESS, "root_sender": ""}, []),
    ],
)
@pytest.mark.parametrize("path", ["approve 5", "later, approve 5", "ask vault, approve 5"])
async def test_of_an_item_of_another_platform_the_broker_names_the_person_and_no_one_is_asked_if_they_are_hidden(
    path: str, metadata: dict[str, Any], asked: list[str]
) -> None:
    """The broker is configured, so that its word counts here. It is not trusted: agents that are asked learn no name."""
    async with run_agents(BOSS, OTHER_BOSS) as t:
        await t.settled()
        item = make_incoming(PROGRAM, BROKER, metadata={"topic": "orders", **metadata}, request_id=uuid4())
        item = replace(item, payload={"path": path.split(", ")}, context=NO_CONTEXT._replace(hops=1, hides_person=True))
        t.runners[DESK].intake.receive(item)
        await t.settled()
        expected = [] if path.startswith("ask") else asked
        assert [person for person in (BOSS, OTHER_BOSS) if await load_questions(t, person)] == expected
        walkers = [walker for walker in t.built_agents.values() if isinstance(walker, Walker)]
        refusals = [refusal for walker in walkers for refusal in walker.refusals]
        assert bool(expected) != ("it is not known who asks" in str(refusals))


def test_the_name_of_a_caller_or_of_no_person_is_none_in_an_item() -> None:
    description = {"topic": "t", "publisher": PRESS, "published_at": "", "item_id": "1", "metadata": AGENT}
    for root in (CALLER, HIDDEN_PERSON, "", "?"):
        metadata = read_item_metadata({**description, "root_sender": root})
        assert metadata is not None
        assert metadata["root_sender"] == ""
