"""Messages that say something about others: corrections and retractions of questions, reactions to answers."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentDefinition, AgentTester, Interaction
from tests.waiting import eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"


class Slow:
    """Answers what it is asked when it may, and keeps what it was asked and how that was liked."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("slow")
        self.may = asyncio.Event()
        self.asked: list[str] = []
        self.feedback_on: list[tuple[Any, tuple[str, ...]]] = []

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        self.asked.append(request.payload["query"])
        await self.may.wait()
        await response.markdown(f"answer to {request.payload['query']}")

    async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
        assert isinstance(interaction.input, dict)
        self.feedback_on.append((interaction.input["query"], reactions))


def question(text: str, id: str, extra: str = "") -> str:
    return f"<message to='{AGENT}' type='chat' id='{id}'><body>{text}</body>{extra}</message>"


def correction(of: str) -> str:
    return f"<replace xmlns='urn:xmpp:message-correct:0' id='{of}'/>"


RETRACTIONS = {
    "new": "<retract xmlns='urn:xmpp:message-retract:1' id='{}'/>",
    "old": "<apply-to xmlns='urn:xmpp:fasten:0' id='{}'><retract xmlns='urn:xmpp:message-retract:0'/></apply-to>",
}


def retraction(of: str, how: str = "new") -> str:
    # Clients put a text beside it for those that do not know what it is.
    return question("This person took a message back", uuid4().hex, RETRACTIONS[how].format(of))


def reactions(of: str, *emojis: str) -> str:
    said = "".join(f"<reaction>{emoji}</reaction>" for emoji in emojis)
    felt = f"<reactions xmlns='urn:xmpp:reactions:0' id='{of}'>{said}</reactions>"
    return f"<message to='{AGENT}' type='chat' id='{uuid4().hex}'>{felt}</message>"


@pytest.mark.parametrize("how", ["running", "waiting"])
async def test_a_correction_of_a_question_that_is_not_answered_replaces_it(how: str) -> None:
    slow = Slow()
    async with AgentTester(slow, user=ALICE) as t:
        if how == "waiting":
            t.send_stanza(question("first", "0"))
        t.send_stanza(question("whta", "1"))
        await eventually(lambda: bool(slow.asked))
        t.send_stanza(question("what", "2", correction("1")))
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
        t.send_stanza(question("whta", "1"))
        await t.settled()
        t.send_stanza(question("what", "2", correction("1")))
        await t.settled()
        assert t.unread() == ["answer to whta", "answer to what"]


@pytest.mark.parametrize("how", list(RETRACTIONS))
@pytest.mark.parametrize("when", ["running", "waiting"])
async def test_a_retraction_stops_the_work_on_a_question(how: str, when: str) -> None:
    slow = Slow()
    async with AgentTester(slow, user=ALICE) as t:
        first = "0" if when == "waiting" else "1"
        for ident in dict.fromkeys((first, "1")):
            t.send_stanza(question(f"question {ident}", ident))
        await eventually(lambda: bool(slow.asked))
        t.send_stanza(retraction("1", how))
        t.send_stanza(question("another", "2"))
        slow.may.set()
        await t.settled()
        assert t.unread() == (["answer to question 0"] if when == "waiting" else []) + ["answer to another"]
        await t.restart()
        await t.settled()
        assert t.unread() == []


async def test_a_question_that_is_taken_back_in_the_same_breath_is_never_begun() -> None:
    slow = Slow()
    async with AgentTester(slow, user=ALICE) as t:
        t.send_stanza(question("x", "1"))
        t.send_stanza(retraction("1"))
        t.send_stanza(question("whta", "2"))
        t.send_stanza(question("what", "3", correction("2")))
        slow.may.set()
        await t.settled()
        assert (slow.asked, t.unread()) == (["what"], ["answer to what"])


async def test_an_origin_id_names_a_question_too() -> None:
    slow = Slow()
    async with AgentTester(slow, user=ALICE) as t:
        t.send_stanza(question("x", "1", "<origin-id xmlns='urn:xmpp:sid:0' id='o1'/>"))
        await eventually(lambda: bool(slow.asked))
        t.send_stanza(retraction("o1"))
        await t.settled()
        assert t.unread() == []


@pytest.mark.parametrize("refers", [lambda: retraction("1"), lambda: question("mine", "9", correction("1"))])
async def test_nobody_takes_back_or_corrects_the_question_of_somebody_else(refers: Any) -> None:
    slow = Slow()
    async with AgentTester(slow) as t:
        t.send_stanza(question("alices", "1"), user=ALICE)
        await eventually(lambda: bool(slow.asked))
        t.send_stanza(refers(), user=BOB)
        slow.may.set()
        await t.settled()
        assert t.unread(ALICE) == ["answer to alices"]
        assert t.unread(BOB) in ([], ["answer to mine"])  # as with an id that nobody knows


async def test_a_question_corrected_again_and_again_is_answered_once() -> None:
    slow = Slow()
    async with AgentTester(slow, user=ALICE) as t:
        t.send_stanza(question("0", "0"))
        for number in range(1, 50):
            t.send_stanza(question(str(number), str(number), correction(str(number - 1))))
        await eventually(lambda: slow.asked[-1:] == ["49"])
        slow.may.set()
        await t.settled()
        assert t.unread() == ["answer to 49"]


# Reactions


async def answered(t: AgentTester, slow: Slow, user: str = ALICE) -> str:
    """Asks, and gives the id of the answer's message."""
    heard: list[str] = []
    person = t._as(user)
    receive = person._receive

    def keep(stanza: Any) -> None:
        heard.append(stanza.get("id"))
        receive(stanza)

    t._network.attach(user, keep)
    slow.may.set()
    assert await t.say("what?", user=user) == ["answer to what?"]
    t._network.attach(user, receive)
    return heard[0]


async def history(t: AgentTester, user: str) -> list[Interaction]:
    [row] = [row for row in await t.runners[AGENT].store.conversations() if row.owner == user]
    return [Interaction.model_validate_json(text) for text in await t.runners[AGENT].store.history(row.id, 10)]


async def test_a_reaction_is_recorded_with_its_turn_and_given_to_the_agent() -> None:
    slow = Slow()
    async with AgentTester(slow) as t:
        ident = await answered(t, slow)
        for emojis in (("👍", "🎉"), ("👎",), ()):
            t.send_stanza(reactions(ident, *emojis), user=ALICE)
            await eventually(lambda said=("what?", emojis): slow.feedback_on[-1:] == [said])  # type: ignore[misc]
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
        t.send_stanza(reactions(target, "👍"), user=BOB)
        assert await t.say("what?", user=BOB) == ["answer to what?"]
        [turn] = await history(t, ALICE)
        assert "feedback" not in turn.meta
        assert (slow.feedback_on, t.unread(BOB)) == ([], [])


async def test_an_agent_whose_feedback_fails_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Touchy(Slow):
        async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
            raise SystemExit(1)

    slow = Touchy()
    async with AgentTester(slow) as t:
        t.send_stanza(reactions(await answered(t, slow), "👎"), user=ALICE)
        await eventually(lambda: "feedback failed" in caplog.text)
        assert await t.say("what?", user=ALICE) == ["answer to what?"]


async def test_feedback_that_never_ends_does_not_keep_the_platform_from_stopping(caplog: pytest.LogCaptureFixture) -> None:
    class Pensive(Slow):
        async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
            await super().feedback(interaction, reactions)
            await asyncio.Event().wait()

    pensive = Pensive()
    async with AgentTester(pensive) as t:
        t.send_stanza(reactions(await answered(t, pensive), "👍"), user=ALICE)
        await eventually(lambda: bool(pensive.feedback_on))
        async with asyncio.timeout(4):
            await t.restart()
    assert "feedback failed" in caplog.text
