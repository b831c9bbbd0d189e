"""The places of people: no requester takes all questions, or all notifications of a day, that another person may get."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spade_coreason import AgentRequest, AgentTester, People, Response, Session
from spade_coreason.contracts import AgentDefinition, QuestionState
from spade_coreason.domain.initiative.notifications import NotificationPolicy
from spade_coreason.domain.questions import MAX_OPEN_QUESTIONS, ApprovalPolicy
from spade_coreason.exceptions import ApprovalError
from spade_coreason.testing import Policy
from tests.support.long_forms import seeded_random, short_and_long_in_release
from tests.support.questions import BOSS, asked
from tests.support.wait import eventually

EVE, ALICE, SECOND = "eve@localhost", "alice@localhost", "second@localhost"
LATER = "This needs the approval of an operator. I will ask for it later."
NOW = "This needs the approval of an operator. I go on when it is decided."
POLICY = Policy(approvals=ApprovalPolicy(operators=(BOSS,)))


class Desk:
    """Pay what is approved, or write to the boss."""

    manifest = AgentDefinition.simple("desk")

    def __init__(self, people: People) -> None:
        self.people = people
        self.paid: list[str] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = request.payload["query"]
        if query.startswith("tell "):
            notification = await self.people.notify(query.split()[1], query)
            await response.markdown(notification.state)
            return
        try:
            await session.run_approved("pay", self.paid.append, query)
        except ApprovalError:
            await response.markdown("not paid")
        else:
            await response.markdown(f"paid {query}")


async def ask(t: AgentTester, user: str, *queries: str) -> list[str]:
    """Send requests of a person, each in a conversation of its own, and return the replies."""
    t.unread(user)
    for query in queries:
        t.send(query, user=user, thread=query)
        await t.settled()
    return [text for text in t.unread(user) if text in (NOW, LATER, "waiting", "refused")]


def call_of(item: str) -> str:
    """Return the text of a call."""
    return f'pay\nobject:\n"{item}"'


async def asked_calls(t: AgentTester, person: str = BOSS) -> list[str]:
    """Return the calls about which a person was asked, in order."""
    return [question.text for question in await asked(t, person)]


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_sixth_approval_of_one_requester_waits_for_a_place_while_others_ask(restarts: bool) -> None:
    async with AgentTester(Desk, policy=POLICY) as t:
        assert await ask(t, ALICE, "a1") == [NOW]
        told = await ask(t, EVE, *(f"e{number}" for number in range(8)))
        assert told == 5 * [NOW] + 3 * [LATER]
        assert await asked_calls(t) == [call_of("a1"), *(call_of(f"e{number}") for number in range(5))]
        assert len(t.unread(BOSS)) == 6
        assert not any(word in text for text in told for word in (ALICE, BOSS, "20", "5"))  # neither load nor names
        if restarts:
            await t.restart()
        [first] = [question for question in await t.questions() if "e3" in question.text]
        await t.approve(first, user=BOSS)
        await t.settled()
        assert (await asked_calls(t))[-1] == call_of("e5")  # in order
        [text] = [text for text in t.unread(BOSS) if EVE in text.partition("\n")[0]]
        assert call_of("e5") in text
        assert t.unread(EVE) == ["paid e3"]


async def test_a_requester_alone_gets_all_places_and_others_still_get_theirs() -> None:
    async with AgentTester(Desk, policy=POLICY) as t:
        told = await ask(t, EVE, *(f"e{number}" for number in range(MAX_OPEN_QUESTIONS + 2)))
        assert told == MAX_OPEN_QUESTIONS * [NOW] + 2 * [LATER]
        assert await ask(t, ALICE, *(f"a{number}" for number in range(6))) == 5 * [NOW] + [LATER]
        assert len(await asked(t, BOSS)) == MAX_OPEN_QUESTIONS + 5


async def test_who_has_asked_within_a_week_keeps_places() -> None:
    async with AgentTester(Desk, policy=POLICY) as t:
        await ask(t, ALICE, "a1")
        await t.deny(user=BOSS)
        await t.advance(timedelta(days=6))
        assert await ask(t, EVE, *(f"e{number}" for number in range(6))) == 5 * [NOW] + [LATER]
        await t.advance(timedelta(days=2))  # the approvals are over, and alice has asked nothing for a week
        t.unread()
        assert await ask(t, EVE, *(f"f{number}" for number in range(6))) == 6 * [NOW]


async def test_a_question_that_waits_cannot_be_decided_and_ends_with_its_request() -> None:
    async with AgentTester(Desk, policy=POLICY) as t:
        await ask(t, ALICE, "a1")
        await ask(t, EVE, *(f"e{number}" for number in range(6)))
        t.unread(BOSS)
        [held] = [question for question in await t.questions() if "e5" in question.text]
        assert held.people == ()
        assert await t.say(f"/approve {held.code}", user=BOSS) == ["I have asked you nothing with this code. Please check it."]
        t.send("/new", user=EVE, thread="e5")
        await t.settled()
        assert t.unread(BOSS) == []  # they were not asked, so they need not know
        assert not [question for question in await t.questions() if "e5" in question.text]


async def test_a_group_is_asked_as_soon_as_one_of_them_has_a_place() -> None:
    async with AgentTester(Desk, policy=Policy(approvals=ApprovalPolicy(operators=(BOSS, SECOND), per_requester=1))) as t:
        await ask(t, ALICE, "a1")
        assert await ask(t, BOSS, "b1", "b2") == [NOW, LATER]  # only the second may decide
        assert await ask(t, EVE, "e1", "e2") == [NOW, LATER]
        assert (await asked_calls(t), len(await asked_calls(t, SECOND))) == ([call_of("a1"), call_of("e1")], 3)
        [first] = [question for question in await t.questions() if "b1" in question.text]
        await t.approve(first, user=SECOND)
        await t.settled()
        assert call_of("b2") in await asked_calls(t, SECOND)


async def test_a_setting_changes_the_number_of_places() -> None:
    async with AgentTester(Desk, policy=Policy(approvals=ApprovalPolicy(operators=(BOSS,), per_requester=2))) as t:
        await ask(t, ALICE, "a1")
        assert await ask(t, EVE, "e1", "e2", "e3") == [NOW, NOW, LATER]


async def test_what_others_cause_takes_at_most_half_of_the_notifications_of_a_day() -> None:
    async with AgentTester(Desk, policy=Policy(notifications=NotificationPolicy(per_day=6))) as t:
        assert await ask(t, EVE, *(f"tell {BOSS} {number}" for number in range(5))) == 3 * ["waiting"] + 2 * ["refused"]
        assert await ask(t, ALICE, f"tell {BOSS} alice") == ["refused"]
        await ask(t, BOSS, *(f"tell {BOSS} own {number}" for number in range(4)))
        own = [each for each in await t.notifications(BOSS) if each.state != "refused"]
        assert len(own) == 6
        await t.advance(timedelta(days=1))
        assert await ask(t, ALICE, f"tell {BOSS} tomorrow") == ["waiting"]


async def test_others_cause_at_least_one_notification_of_a_day() -> None:
    async with AgentTester(Desk, policy=Policy(notifications=NotificationPolicy(per_day=1))) as t:
        assert await ask(t, EVE, f"tell {BOSS} one", f"tell {BOSS} two") == ["waiting", "refused"]


async def test_questions_of_others_take_no_more_than_their_half_from_the_notifications_of_a_day() -> None:
    policy = Policy(approvals=ApprovalPolicy(operators=(BOSS,)), notifications=NotificationPolicy(per_day=4))
    async with AgentTester(Desk, policy=policy) as t:
        await ask(t, EVE, *(f"e{number}" for number in range(10)))
        assert len(t.unread(BOSS)) == 10
        told = await ask(t, BOSS, *(f"tell {BOSS} own {number}" for number in range(3)))
        assert told == ["waiting", "waiting", "refused"]


async def test_places_that_are_free_at_a_kill_are_given_at_the_next_start() -> None:
    async with AgentTester(Desk, policy=POLICY) as t:
        await ask(t, ALICE, "a1")
        await ask(t, EVE, *(f"e{number}" for number in range(6)))
        repository = t.runners[t.jid].repository.questions
        [first] = [each for each in await asked(t, BOSS) if "e0" in each.text]
        answer = '{"approved": false, "by": "user root", "reason": ""}'
        assert await repository.settle(first.id, QuestionState.DENIED, answer, "user root", datetime.now(UTC))
        t.unread(BOSS)
        await t.restart()
        await eventually(lambda: any("e5" in text for text in t.unread(BOSS)))


@short_and_long_in_release("APPROVAL_ATTACKS", 3, 30)
async def test_a_flood_at_random_lets_nobody_else_wait_and_all_are_asked_once_in_order(count: int) -> None:
    rng = seeded_random()
    policy = Policy(approvals=ApprovalPolicy(operators=(BOSS,), timeout=timedelta(days=7)))
    async with AgentTester(Desk, policy=policy) as t:
        sent: dict[str, list[str]] = {EVE: [], ALICE: [], SECOND: []}
        await ask(t, ALICE, "alice-0")
        sent[ALICE].append("alice-0")
        decided = set[str]()
        for _ in range(count):
            for _ in range(rng.randrange(8)):
                await ask(t, EVE, query := f"eve-{len(sent[EVE])}")
                sent[EVE].append(query)
            person = rng.choice([ALICE, SECOND])
            query = f"{person.partition('@')[0]}-{len(sent[person])}"
            is_alone = len([each for each in sent[person] if each not in decided]) < 5
            assert not is_alone or await ask(t, person, query) == [NOW]
            sent[person] += [query] * is_alone
            for _ in range(rng.randrange(6)):
                if questions := await asked(t, BOSS):
                    question = rng.choice(questions)
                    decided.add(question.text.splitlines()[-1].strip('"'))
                    await t.say(f"/deny {question.code}", user=BOSS)
                    await t.settled()
            if rng.random() < 0.1:
                await t.restart()
                await t.settled()
        while questions := await asked(t, BOSS):
            await t.say(f"/deny {questions[0].code}", user=BOSS)
            await t.settled()
        calls = [each.text.splitlines()[-1].strip('"') for each in await asked(t, BOSS, only_open=False)]
        for person, queries in sent.items():
            assert [call for call in calls if call in queries] == queries, person
