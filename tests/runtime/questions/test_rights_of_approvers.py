"""The rights of those who decide: they were asked, may decide now, and decide in time. Others are asked by `reassign`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from spade_coreason import AgentRequest, AgentTester, Response, Session
from spade_coreason.contracts import AgentDefinition, QuestionState
from spade_coreason.domain.questions import ApprovalPolicy
from spade_coreason.storage import to_micros
from spade_coreason.storage.schema import questions
from spade_coreason.testing import Policy
from tests.runtime.questions.test_forms import Menu
from tests.support.questions import BOSS, TESTER, asked

FRED, MIA, CAROL = "fred@localhost", "mia@localhost", "carol@far.example"
NO_RIGHT = ["You may not answer this any more. Please ask my operator."]
OVER = ["The time for this is over. Your answer changes nothing."]
UNKNOWN = ["I have asked you nothing with this code. Please check it."]
STUCK = "No one who was asked may decide the approval"


class Desk:
    """Pay what is approved by the group of finance, or ask carol."""

    manifest = AgentDefinition.simple("desk")

    def __init__(self) -> None:
        self.paid: list[str] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = request.payload["query"]
        if query.startswith("ask"):
            answer = await response.ask_person("Is it urgent?", choices=["yes", "no"], to=CAROL)
            await response.markdown(f"{answer.person}: {answer.text}")
        else:
            await response.markdown(f"{await session.run_approved('pay', self.pay, query, approvers='finance')}")

    def pay(self, query: str) -> str:
        self.paid.append(query)
        return f"paid {query}"


class Groups(dict[str, tuple[str, ...]]):
    """The groups of the settings, which change as with another start."""


def desk(groups: Groups) -> AgentTester:
    policy = Policy(operators=frozenset({BOSS}), approvals=ApprovalPolicy(groups=groups, operators=(BOSS,)))
    return AgentTester(Desk, policy=policy)


async def end_time(t: AgentTester) -> None:
    """Let the time of all questions end, while the clock of the agent looks at them later."""
    over = update(questions).values(expires_at=to_micros(datetime.now(UTC) - timedelta(minutes=1)))
    await t.runners[t.jid].repository.database.write(lambda connection: connection.execute(over).rowcount)


async def read_trail(t: AgentTester) -> list[tuple[str, str, str]]:
    """Return the actor, the action and the outcome of each entry."""
    records = await t.runners[t.jid].repository.audit_trail.load_newest()
    return [tuple((record.entry or {})[key] for key in ("actor", "action", "outcome")) for record in records]


async def leave_group(t: AgentTester, groups: Groups) -> None:
    groups["finance"] = (MIA,)


async def lose_group(t: AgentTester, groups: Groups) -> None:
    del groups["finance"]


@pytest.mark.parametrize("verb", ["approve", "deny"])
@pytest.mark.parametrize("change", [leave_group, lose_group])
@pytest.mark.parametrize("restarts", [False, True])
async def test_who_has_left_the_group_does_not_decide(change: Callable[..., object], verb: str, restarts: bool) -> None:
    groups = Groups(finance=(FRED,))
    async with desk(groups) as t:
        await t.say("7")
        await t.settled()
        [question] = await t.questions()
        await change(t, groups)  # type: ignore[misc]
        if restarts:
            await t.restart()
        assert await t.say(f"/{verb} {question.code}", user=FRED) == NO_RIGHT
        assert [each.state for each in await t.questions()] == [QuestionState.OPEN]
        assert await read_trail(t) == [(FRED, f"approvals.{verb}", "failure")]
        groups["finance"] = (FRED,)
        await t.approve(question, user=FRED)
        assert t.unread()[-1] == "paid 7"


async def test_who_has_come_to_the_group_was_not_asked() -> None:
    groups = Groups(finance=(FRED,))
    async with desk(groups) as t:
        await t.say("7")
        [question] = await t.questions()
        groups["finance"] = (FRED, MIA)
        assert await t.say(f"/approve {question.code}", user=MIA) == UNKNOWN
        await t.approve(question, user=FRED)
        assert t.unread()[-1] == "paid 7"


async def test_who_lost_access_after_their_message_came_does_not_decide() -> None:
    groups = Groups(finance=(CAROL,))
    async with desk(groups) as t:
        await t.say(f"/admit {CAROL}", user=BOSS)
        await t.say("7")
        await t.say("ask")
        await t.settled()
        stored = await asked(t, CAROL)
        await t.say(f"/reject {CAROL}", user=BOSS)
        control = t.runners[t.jid].control
        for question, state in zip(stored, (QuestionState.APPROVED, QuestionState.ANSWERED), strict=True):
            settled = await control.questions.settle(question, state, {"approved": True, "text": "yes", "by": CAROL}, CAROL)
            assert (settled is not None and settled.is_first) is False
        assert len(await asked(t, CAROL)) == 2


@pytest.mark.parametrize("restarts", [False, True])
async def test_no_answer_counts_after_its_time_also_if_the_clock_has_not_looked(restarts: bool) -> None:
    groups = Groups(finance=(FRED,))
    async with desk(groups) as t:
        await t.say(f"/admit {CAROL}", user=BOSS)
        await t.say("7")
        await t.say("ask", thread="other")
        await t.settled()
        approval, question = await t.questions()
        await end_time(t)
        if restarts:
            await t.restart()
        assert await t.say(f"/approve {approval.code}", user=FRED) == OVER
        assert await t.say(f"/answer {question.code} yes", user=CAROL) == OVER
        assert isinstance(t.agent, Desk)
        assert t.agent.paid == []


async def test_of_a_decision_and_the_end_of_a_right_at_once_the_call_runs_only_with_the_right() -> None:
    groups = Groups(finance=(FRED,))
    async with desk(groups) as t:
        for number in range(10):
            await t.say(f"{number}", thread=str(number))
        await t.settled()
        codes = [question.code for question in await t.questions()]
        for code in codes[:5]:
            t.send(f"/approve {code}", user=FRED)
        await asyncio.sleep(0)
        groups["finance"] = (MIA,)
        for code in codes[5:]:
            t.send(f"/approve {code}", user=FRED)
        await t.settled()
        assert isinstance(t.agent, Desk)
        assert len(t.agent.paid) == 10 - len(await t.questions()) <= 5


async def test_if_no_one_may_decide_the_requester_and_the_operators_are_told_once_and_others_are_asked() -> None:
    groups = Groups(finance=(FRED,))
    async with desk(groups) as t:
        await t.say("7")
        await t.settled()
        [question] = await t.questions()
        t.unread(FRED)
        groups["finance"] = (MIA,)
        for _ in range(2):
            await t.restart()
            await t.settled()
        for person in (TESTER, BOSS):
            told = [text for text in t.unread(person) if STUCK in text]
            assert told == [f"{STUCK} {question.id[:8]} any more. An operator can ask others with /reassign {question.id[:8]}"]
        assert (t.unread(MIA), t.unread(FRED)) == ([], [])
        assert await t.say(f"/reassign {question.id[:8]}", user=BOSS) == ["I ask those who may decide it now."]
        await t.settled()
        [now] = await t.questions()
        assert (now.id, now.people, now.expires_at) == (question.id, (MIA,), question.expires_at)
        assert now.code != question.code
        [text] = t.unread(MIA)
        assert now.code in text
        for person in (FRED, MIA):
            assert await t.say(f"/approve {question.code}", user=person) == UNKNOWN
        await t.approve(now, user=MIA)
        assert t.unread()[-1] == "paid 7"
        assert (BOSS, "approvals.reassign", "success") in await read_trail(t)
        assert await t.say(f"/reassign {question.id[:8]}", user=BOSS) == [
            "it is decided already, or its time is over; nothing was changed"
        ]


async def test_who_is_asked_again_gets_the_new_code_and_the_old_one_is_worth_nothing() -> None:
    groups = Groups(finance=(FRED,))
    async with desk(groups) as t:
        await t.say("7")
        await t.settled()
        t.unread(FRED)
        [question] = await t.questions()
        replies = await asyncio.gather(*(t.say(f"/reassign {question.id}", user=BOSS, thread=name) for name in "ab"))
        await t.settled()
        [now] = await t.questions()
        assert ["I ask those who may decide it now."] in replies
        assert now.code in t.unread(FRED)[-1]
        assert await t.say(f"/approve {question.code}", user=FRED) == UNKNOWN
        await t.advance(timedelta(hours=13))
        assert [now.code in text for text in t.unread(FRED)] == [True]  # the reminder
        await t.approve(now, user=FRED)
        assert t.unread()[-1] == "paid 7"


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ((), 'the group "finance" names no account that can be asked; add JIDs to access.groups.finance'),
        ((TESTER,), f"no one but {TESTER} may approve this; add an account with access to access.groups.finance"),
    ],
)
async def test_reassign_says_what_to_do_if_the_group_is_empty(members: tuple[str, ...], problem: str) -> None:
    groups = Groups(finance=(FRED,))
    async with desk(groups) as t:
        await t.say("7")
        [question] = await t.questions()
        groups["finance"] = members
        assert await t.say(f"/reassign {question.id}", user=BOSS) == [problem]
        assert await t.say("/reassign 5b", user=BOSS) == ["must have at least 8 characters"]
        [still] = await t.questions()
        assert still == question


async def test_only_operators_ask_anew() -> None:
    groups = Groups(finance=(FRED,))
    async with desk(groups) as t:
        await t.say("7")
        [question] = await t.questions()
        for person in (TESTER, FRED):
            await t.say(f"/reassign {question.id}", user=person)
        assert await t.questions() == [question]


async def test_a_rejection_of_the_only_approver_is_told_at_once() -> None:
    groups = Groups(finance=(CAROL,))
    async with desk(groups) as t:
        await t.say(f"/admit {CAROL}", user=BOSS)
        await t.say("7")
        await t.settled()
        t.unread()
        await t.say(f"/reject {CAROL}", user=BOSS)
        await t.settled()
        [told] = t.unread()
        assert told.startswith(STUCK)


async def test_a_reminder_does_not_go_to_those_who_may_not_decide_any_more() -> None:
    groups = Groups(finance=(FRED, MIA))
    async with desk(groups) as t:
        await t.say("7")
        await t.settled()
        t.unread(FRED), t.unread(MIA)
        groups["finance"] = (MIA,)
        await t.advance(timedelta(hours=13))
        assert (len(t.unread(FRED)), len(t.unread(MIA))) == (0, 1)


async def test_a_form_that_was_opened_with_the_right_decides_nothing_without_it() -> None:
    groups = Groups(finance=(FRED,))
    async with desk(groups) as t:
        await t.say("7")
        await t.settled()
        menu = Menu(t, FRED)
        form = await menu.open("approve")
        groups["finance"] = (MIA,)
        done = await menu.submit(form, sure="true")
        assert NO_RIGHT[0] in str(done)
        assert [each.state for each in await t.questions()] == [QuestionState.OPEN]
