"""Messages that say something about others: corrections and retractions of questions, reactions to answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Interaction, ResponseHandler, SessionHandle
from tests.support.errors import ExpectedErrors
from tests.support.wait import PATIENCE_S, eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"


class Slow:
    """Answers what it is asked when it may, and keeps what it was asked and how that was liked."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("slow")
        self.may = asyncio.Event()
        self.asked: list[str] = []
        self.feedback_on: list[tuple[Any, tuple[str, ...]]] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.asked.append(request.payload["query"])
        await self.may.wait()
        await response.markdown(f"answer to {request.payload['query']}")

    async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
        assert isinstance(interaction.input, dict)
        self.feedback_on.append((interaction.input["query"], reactions))


def retract_as_before(t: AgentTester, of: str) -> None:
    """As older clients do it (XEP-0424, 0.3)."""
    retraction = f"<apply-to xmlns='urn:xmpp:fasten:0' id='{of}'><retract xmlns='urn:xmpp:message-retract:0'/></apply-to>"
    t.send("This person took a message back", extra=retraction)


@pytest.mark.parametrize("how", ["running", "waiting"])
async def test_a_correction_of_a_question_that_is_not_answered_replaces_it(how: str) -> None:
    slow = Slow()
    async with AgentTester(slow, user=ALICE) as t:
        if how == "waiting":
            t.send("first", id="0")
        t.send("whta", id="1")
        await eventually(lambda: bool(slow.asked))
        t.send("what", id="2", corrects="1")
        slow.may.set()
        await t.settled()
        assert t.unread() == (["answer to first"] if how == "waiting" else []) + ["answer to what"]
        assert slow.asked == (["first", "what"] if how == "waiting" else ["whta", "what"])
        await t.restart()
        await t.settled()
        assert t.unread() == []  # the one that was replaced is over


async def test_a_correction_of_an_answered_question_asks_again() -> None:
    slow = Slow()
    slow.may.set()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("whta", id="1")
        await t.settled()
        t.send("what", id="2", corrects="1")
        await t.settled()
        assert t.unread() == ["answer to whta", "answer to what"]


@pytest.mark.parametrize("retract", [AgentTester.retract, retract_as_before], ids=["new", "old"])
@pytest.mark.parametrize("when", ["running", "waiting"])
async def test_a_retraction_stops_the_work_on_a_question(retract: Callable[[AgentTester, str], None], when: str) -> None:
    slow = Slow()
    async with AgentTester(slow, user=ALICE) as t:
        first = "0" if when == "waiting" else "1"
        for ident in dict.fromkeys((first, "1")):
            t.send(f"question {ident}", id=ident)
        await eventually(lambda: bool(slow.asked))
        retract(t, "1")
        t.send("another", id="2")
        slow.may.set()
        await t.settled()
        assert t.unread() == (["answer to question 0"] if when == "waiting" else []) + ["answer to another"]
        await t.restart()
        await t.settled()
        assert t.unread() == []


async def test_a_question_that_is_taken_back_in_the_same_breath_is_never_begun() -> None:
    slow = Slow()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("x", id="1")
        t.retract("1")
        t.send("whta", id="2")
        t.send("what", id="3", corrects="2")
        slow.may.set()
        await t.settled()
        assert (slow.asked, t.unread()) == (["what"], ["answer to what"])


async def test_an_origin_id_names_a_question_too() -> None:
    slow = Slow()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("x", id="1", extra="<origin-id xmlns='urn:xmpp:sid:0' id='o1'/>")
        await eventually(lambda: bool(slow.asked))
        t.retract("o1")
        await t.settled()
        assert t.unread() == []


@pytest.mark.parametrize("how", ["retract", "correct"])
async def test_nobody_takes_back_or_corrects_the_question_of_somebody_else(how: str) -> None:
    slow = Slow()
    async with AgentTester(slow) as t:
        t.send("alices", id="1", user=ALICE)
        await eventually(lambda: bool(slow.asked))
        if how == "retract":
            t.retract("1", user=BOB)
        else:
            t.send("mine", corrects="1", user=BOB)
        slow.may.set()
        await t.settled()
        assert t.unread(ALICE) == ["answer to alices"]
        assert t.unread(BOB) in ([], ["answer to mine"])  # as with an id that nobody knows


async def test_a_question_corrected_again_and_again_is_answered_once() -> None:
    slow = Slow()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("0", id="0")
        for number in range(1, 50):
            t.send(str(number), id=str(number), corrects=str(number - 1))
        await eventually(lambda: slow.asked[-1:] == ["49"])
        slow.may.set()
        await t.settled()
        assert t.unread() == ["answer to 49"]


# Reactions


async def answered(t: AgentTester, slow: Slow, user: str = ALICE) -> str:
    """Asks, and gives the id of the answer's message."""
    slow.may.set()
    t.send("what?", user=user)
    await t.settled()
    [answer] = [message for message in t.messages(user) if message.text is not None]
    assert t.unread(user) == ["answer to what?"]
    return answer.id


async def history(t: AgentTester, user: str) -> list[Interaction]:
    [row] = [row for row in await t.runners[AGENT].repository.list_conversations() if row.owner == user]
    return [Interaction.model_validate_json(text) for text in await t.runners[AGENT].repository.load_history(row.id, 10)]


async def test_a_reaction_is_recorded_with_its_turn_and_given_to_the_agent() -> None:
    slow = Slow()
    async with AgentTester(slow) as t:
        ident = await answered(t, slow)
        for emojis in (("👍", "🎉"), ("👎",), ()):
            t.react(ident, *emojis, user=ALICE)
            await eventually(lambda said=("what?", emojis): slow.feedback_on[-1:] == [said])  # type: ignore[misc]  # a lambda with a default has no type
            [turn] = await history(t, ALICE)
            assert turn.meta["feedback"] == list(emojis)
        assert t.unread(ALICE) == []
        assert await t.say("what?", user=ALICE) == ["answer to what?"]


@pytest.mark.parametrize("of", ["another's", "unknown", "no id", ""])
async def test_a_reaction_to_what_is_not_theirs_changes_nothing_and_is_silent(of: str) -> None:
    slow = Slow()
    async with AgentTester(slow) as t:
        ident = await answered(t, slow)
        target = {"another's": ident, "unknown": f"{uuid4()}-0-00000000"}.get(of, of)
        t.react(target, "👍", user=BOB)
        assert await t.say("what?", user=BOB) == ["answer to what?"]
        [turn] = await history(t, ALICE)
        assert "feedback" not in turn.meta
        assert (slow.feedback_on, t.unread(BOB)) == ([], [])


async def test_an_agent_whose_feedback_fails_goes_on(caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors) -> None:
    expected_errors("feedback failed: SystemExit: 1")

    class Touchy(Slow):
        async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
            raise SystemExit(1)

    slow = Touchy()
    async with AgentTester(slow) as t:
        t.react(await answered(t, slow), "👎", user=ALICE)
        await eventually(lambda: "feedback failed" in caplog.text)
        assert await t.say("what?", user=ALICE) == ["answer to what?"]


async def test_feedback_that_never_ends_does_not_keep_the_platform_from_stopping(
    caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("feedback failed: CancelledError")

    class Pensive(Slow):
        async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
            await super().feedback(interaction, reactions)
            await asyncio.Event().wait()

    pensive = Pensive()
    async with AgentTester(pensive) as t:
        t.react(await answered(t, pensive), "👍", user=ALICE)
        await eventually(lambda: bool(pensive.feedback_on))
        async with asyncio.timeout(PATIENCE_S):
            await t.restart()
    assert "feedback failed" in caplog.text
