"""Who may answer and approve: others are told as far as they may know, change nothing, and are in the audit trail."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.exceptions import ApprovalDeniedError, ApprovalExpiredError, ApprovalRefusedError
from spade_coreason.testing import AgentTester, Policy, Question, QuestionState

AGENT, BOSS, OTHER_BOSS, EVE = "agent@localhost", "boss@localhost", "other@localhost", "eve@localhost"
TESTER, STRANGER = "tester@localhost", "mallory@example.com"
UNKNOWN = ["I have asked you nothing with this code. Please check it."]


class Desk:
    """Pay an amount when it is approved, or ask the boss."""

    manifest = AgentDefinition.simple("desk")

    def __init__(self) -> None:
        self.paid: list[int] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        command, *words = request.payload["query"].split()
        if command not in ("ask", "pay"):
            return
        if command == "ask":
            answer = await response.ask_person("Is it urgent?", choices=["yes", "no"], to=BOSS)
            await response.markdown(f"{answer.person}: {answer.text}")
            return
        try:
            await response.markdown(await session.run_approved("pay", self.pay, int(words[0])))
        except ApprovalExpiredError:
            await response.markdown("Nobody decided.")
        except ApprovalDeniedError:
            await response.markdown("Denied.")
        except ApprovalRefusedError as error:
            await response.markdown(error.problem)

    def pay(self, amount: int) -> str:
        self.paid.append(amount)
        return f"paid {amount}"


def desk(*approvers: str, user: str = TESTER) -> AgentTester:
    return AgentTester(Desk, user=user, policy=Policy(operators=frozenset(approvers or (BOSS, OTHER_BOSS))))


def paid(t: AgentTester) -> list[int]:
    assert isinstance(t.agent, Desk)
    return t.agent.paid


async def read_trail(t: AgentTester) -> list[tuple[str, str, str]]:
    """Return the actor, the action and the outcome of each entry."""
    records = await t.runners[AGENT].repository.audit_trail.load_newest()
    return [tuple((record.entry or {})[key] for key in ("actor", "action", "outcome")) for record in records]


async def ask_for(t: AgentTester, text: str) -> Question:
    """Send a request, and return the question that it ends with."""
    await t.say(text)
    await t.settled()
    [question] = await t.questions()
    return question


@pytest.mark.parametrize("verb", ["approve", "deny"])
@pytest.mark.parametrize("person", [EVE, TESTER])
async def test_another_person_and_the_requester_do_not_decide_with_the_right_code(person: str, verb: str) -> None:
    async with desk() as t:
        question = await ask_for(t, "pay 7")
        assert await t.say(f"/{verb} {question.code}", user=person) == UNKNOWN
        assert await t.say(f"/{verb} NOCODE", user=person) == UNKNOWN  # the same text: they learn nothing
        assert (await t.questions() == [question], paid(t)) == (True, [])
        assert await read_trail(t) == 2 * [(person, f"approvals.{verb}", "failure")]


async def test_a_stranger_is_refused_as_in_any_message() -> None:
    async with desk() as t:
        question = await ask_for(t, "pay 7")
        told = await t.say(f"/approve {question.code}", user=STRANGER)
        assert "access" in str(told)
        assert (await t.questions() == [question], paid(t)) == (True, [])


async def test_a_requester_who_is_an_approver_too_is_not_asked_and_does_not_decide() -> None:
    async with desk(user=BOSS) as t:
        question = await ask_for(t, "pay 7")
        assert question.people == (OTHER_BOSS,)
        assert await t.say(f"/approve {question.code}") == UNKNOWN
        await t.approve(user=OTHER_BOSS)
        assert (t.unread(), paid(t)) == (["paid 7"], [7])
    async with desk(BOSS, user=BOSS) as t:
        assert "no one but boss@localhost may approve this" in str(await t.say("pay 7"))
        assert paid(t) == []


async def test_a_code_counts_once() -> None:
    async with desk() as t:
        question = await ask_for(t, "pay 7")
        await t.deny(question, user=BOSS)
        assert await t.approve(question, user=OTHER_BOSS) == [f"{BOSS} was first. Your answer changes nothing."]
        assert await t.approve(question, user=BOSS) == ["You have answered this already."]
        second = await ask_for(t, "pay 7")
        assert second.code != question.code
        assert await t.approve(question, user=BOSS) == ["You have answered this already."]
        assert paid(t) == []
        failures = [entry for entry in await read_trail(t) if entry[2] == "failure"]
        assert sorted(failures) == sorted((person, "approvals.approve", "failure") for person in (BOSS, BOSS, OTHER_BOSS))


async def test_a_late_decision_changes_nothing() -> None:
    async with desk() as t:
        question = await ask_for(t, "pay 7")
        await t.advance(timedelta(days=1))
        assert await t.approve(question, user=BOSS) == ["The time for this is over. Your answer changes nothing."]
        second = await ask_for(t, "pay 8")
        await t.say("/cancel")
        assert await t.approve(second, user=BOSS) == ["This was taken back. Your answer changes nothing."]
        assert paid(t) == []
        assert [each.state for each in await t.questions(state=None)] == [QuestionState.EXPIRED, QuestionState.ENDED]
        assert await read_trail(t) == 2 * [(BOSS, "approvals.approve", "failure")]


async def test_of_two_decisions_at_once_one_counts_and_the_other_is_a_failure_in_the_trail() -> None:
    async with desk() as t:
        question = await ask_for(t, "pay 7")
        told = await asyncio.gather(*(t.say(f"/approve {question.code}", user=person) for person in (BOSS, OTHER_BOSS)))
        await t.settled()
        assert sorted("was first" in text for [text] in told) == [False, True]
        assert paid(t) == [7]
        outcomes = {(actor, outcome) for actor, _, outcome in await read_trail(t)}
        [loser] = [actor for actor, outcome in outcomes if outcome == "failure"]
        assert (await t.questions(state=None))[0].decided_by in {BOSS, OTHER_BOSS} - {loser}


async def test_the_decision_of_an_approver_is_in_the_trail_with_their_account() -> None:
    async with desk() as t:
        await ask_for(t, "pay 7")
        await t.approve(user=OTHER_BOSS)
        assert await read_trail(t) == [(OTHER_BOSS, "approvals.approve", "success")]


async def test_another_person_does_not_answer_a_question() -> None:
    async with desk() as t:
        question = await ask_for(t, "ask")
        for person in (EVE, TESTER):
            assert await t.say(f"/answer {question.code} yes", user=person) == UNKNOWN
        assert await t.questions(BOSS) == [question]
        assert await t.say(f"/answer {question.code} perhaps", user=BOSS) == ["This does not answer the question: yes / no"]
        assert await t.say(f"/answer {question.code.lower()} NO", user=BOSS) == ["Thank you. I go on with it."]
        await t.settled()
        assert t.unread() == [f"{BOSS}: no"]
        assert await t.say(f"/answer {question.code} yes", user=BOSS) == ["You have answered this already."]
        failures = [entry[:2] for entry in await read_trail(t) if entry[2] == "failure"]
        assert sorted(failures) == [(person, "questions.answer") for person in (BOSS, EVE, TESTER)]


async def test_an_approval_is_no_answer_without_its_code() -> None:
    async with desk() as t:
        question = await ask_for(t, "pay 7")
        notice = await t.message(BOSS)
        for text in ("yes", "Approve", "1"):
            t.send(text, reply_to=notice.id, user=BOSS)
        await t.say(f"/answer {question.code} yes", user=BOSS)
        await t.settled()
        assert (await t.questions() == [question], paid(t)) == (True, [])
