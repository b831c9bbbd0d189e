"""Questions to people and approvals in `AgentTester`: who is asked, who answers, and what the test's author sees."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.exceptions import ApprovalDeniedError, ApprovalExpiredError, PeerParkedError
from spade_coreason.runtime import to_request
from spade_coreason.testing import AgentTester, ApprovalPolicy, Policy, QuestionState

BOSS, OTHER_BOSS, TESTER = "boss@localhost", "other@localhost", "tester@localhost"


async def refund(number: int) -> str:
    """Refund an order."""
    return f"refunded {number}"


class Desk:
    """Refund ("refund 7"), with an approval of the operators or of a group ("refund 7 team"); or ask for a drink."""

    manifest = AgentDefinition.simple("desk")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        command, *words = request.payload["query"].split()
        if command != "refund":
            answer = await response.ask_person("Tea or coffee?", choices=["Tea", "Coffee"], to=words[0] if words else None)
            await response.markdown(f"{answer.text} for {answer.person}")
            return
        await response.markdown("One moment.")
        try:
            done = await session.run_approved("refund", refund, int(words[0]), approvers=words[1] if words[1:] else None)
        except ApprovalDeniedError as error:
            done = f"No: {error.reason}"
        except ApprovalExpiredError:
            done = "Nobody decided."
        await response.markdown(done)


def desk() -> AgentTester:
    approvals = ApprovalPolicy(groups={"team": (BOSS, OTHER_BOSS)})
    return AgentTester(Desk, policy=Policy(operators=frozenset({BOSS}), approvals=approvals))


async def test_an_approval_runs_the_call_and_a_denial_does_not() -> None:
    async with desk() as t:
        assert (await t.say("refund 7"))[0] == "One moment."
        [question] = await t.questions()
        assert (question.kind, question.text, question.people) == ("approval", "refund\nnumber:\n7", (BOSS,))
        assert (question.requester, question.state, question.choices) == (TESTER, QuestionState.OPEN, ())
        assert await t.approve() == ["Approved. It runs now."]
        assert t.unread() == ["refunded 7"]
        await t.say("refund 8")
        assert await t.deny(reason="too late") == ["Denied. It does not run."]
        assert t.unread() == ["No: too late"]
        assert await t.questions() == []
        states = [(each.state, each.decided_by) for each in await t.questions(state=None)]
        assert states == [(QuestionState.APPROVED, BOSS), (QuestionState.DENIED, BOSS)]


async def test_one_of_several_approvals_is_named_and_one_of_several_people_decides() -> None:
    async with desk() as t:
        with pytest.raises(ValueError, match="0 approvals are open"):
            await t.approve()
        await t.say("refund 7 team")
        await t.say("refund 8 team", thread="other")
        with pytest.raises(ValueError, match="2 approvals are open"):
            await t.deny()
        first, second = await t.questions(OTHER_BOSS)
        await t.deny(first, "no", user=OTHER_BOSS)
        await t.approve(second, user=BOSS)
        assert t.unread() == ["No: no", "refunded 8"]
        assert await t.approve(first, user=BOSS) == [f"{OTHER_BOSS} was first. Your answer changes nothing."]


async def test_another_user_cannot_approve() -> None:
    async with desk() as t:
        await t.say("refund 7")
        for user in ("eve@localhost", TESTER):
            assert await t.approve(user=user) == ["I have asked you nothing with this code. Please check it."]
        assert [each.state for each in await t.questions()] == [QuestionState.OPEN]


async def test_a_person_answers_in_their_chat() -> None:
    async with desk() as t:
        assert "1. Tea" in (await t.say("drink"))[0]
        assert [each.choices for each in await t.questions(TESTER)] == [("Tea", "Coffee")]
        assert await t.say("2") == [f"Coffee for {TESTER}"]


async def test_a_second_person_is_asked_and_answers() -> None:
    async with desk() as t:
        assert await t.say(f"drink {BOSS}") == [f"I have asked {BOSS}, and go on when they have answered."]
        [question] = await t.questions(BOSS)
        await t.settled()
        assert question.code in (await t.message(BOSS)).text  # type: ignore[operator]
        assert await t.say("tea", user=BOSS) == ["Thank you. I go on with it."]
        await t.settled()
        assert t.unread() == [f"Tea for {BOSS}"]


async def test_a_program_is_told_that_its_request_waits_and_gets_the_reply_by_asking_again() -> None:
    async with desk() as t:
        request = to_request("refund 7")
        for _ in range(2):
            with pytest.raises(PeerParkedError) as parked:
                await t.ask(request)
            assert parked.value.request_id == str(request.request_id)
        await t.approve()
        assert (await t.ask(request)).text.endswith("refunded 7")


async def test_time_passes_until_nobody_has_answered() -> None:
    async with desk() as t:
        await t.say("refund 7")
        await t.advance(timedelta(hours=12))
        assert sum("refund\nnumber:\n7\n" in text for text in t.unread(BOSS)) == 2
        await t.advance(timedelta(hours=12))
        assert [each.state for each in await t.questions(state=None)] == [QuestionState.EXPIRED]
        assert t.unread()[-1] == "Nobody decided."
