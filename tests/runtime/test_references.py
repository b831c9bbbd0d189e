"""Messages that refer to others: corrections and retractions of questions, reactions to replies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any
from uuid import uuid4
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Interaction, ResponseHandler, SessionHandle
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.quotas import Quotas
from spade_coreason.runtime.intake.received_reactions import ReceivedReactions
from spade_coreason.runtime.mailboxes.gate import TurnGate
from spade_coreason.runtime.mailboxes.limits import QuotaLimit
from spade_coreason.runtime.mailboxes.mailboxes import Mailboxes
from spade_coreason.runtime.replies.program_requests import InFlightRequests
from spade_coreason.storage import AgentRepository
from spade_coreason.storage.schema import CLOSED
from spade_coreason.xmpp.codec import decode
from tests.support.errors import ExpectedErrors
from tests.support.wait import TIMEOUT_S, eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"


class SlowAgent:
    """Reply when the test allows it, and record the questions and the feedback."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("slow")
        self.release = asyncio.Event()
        self.asked: list[str] = []
        self.feedback_on: list[tuple[Any, tuple[str, ...]]] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.asked.append(request.payload["query"])
        await self.release.wait()
        await response.markdown(f"answer to {request.payload['query']}")

    async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
        assert isinstance(interaction.input, dict)
        self.feedback_on.append((interaction.input["query"], reactions))


def retract_legacy(t: AgentTester, of: str) -> None:
    """Retract a message as older clients do (XEP-0424, 0.3)."""
    retraction = f"<apply-to xmlns='urn:xmpp:fasten:0' id='{of}'><retract xmlns='urn:xmpp:message-retract:0'/></apply-to>"
    t.send("This person took a message back", extra=retraction)


@pytest.mark.parametrize("how", ["running", "waiting"])
async def test_a_correction_of_a_question_that_is_not_answered_replaces_it(how: str) -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        if how == "waiting":
            t.send("first", id="0")
        t.send("whta", id="1")
        await eventually(lambda: bool(slow.asked))
        t.send("what", id="2", corrects="1")
        slow.release.set()
        await t.settled()
        assert t.unread() == (["answer to first"] if how == "waiting" else []) + ["answer to what"]
        assert slow.asked == (["first", "what"] if how == "waiting" else ["whta", "what"])
        await t.restart()
        await t.settled()
        assert t.unread() == []  # the one that was replaced is over


async def test_a_correction_of_an_answered_question_asks_again() -> None:
    slow = SlowAgent()
    slow.release.set()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("whta", id="1")
        await t.settled()
        t.send("what", id="2", corrects="1")
        await t.settled()
        assert t.unread() == ["answer to whta", "answer to what"]


@pytest.mark.parametrize("retract", [AgentTester.retract, retract_legacy], ids=["new", "old"])
@pytest.mark.parametrize("when", ["running", "waiting"])
async def test_a_retraction_stops_the_work_on_a_question(retract: Callable[[AgentTester, str], None], when: str) -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        first = "0" if when == "waiting" else "1"
        for message_id in dict.fromkeys((first, "1")):
            t.send(f"question {message_id}", id=message_id)
        await eventually(lambda: bool(slow.asked))
        retract(t, "1")
        t.send("another", id="2")
        slow.release.set()
        await t.settled()
        assert t.unread() == (["answer to question 0"] if when == "waiting" else []) + ["answer to another"]
        await t.restart()
        await t.settled()
        assert t.unread() == []


async def test_a_question_retracted_at_once_is_never_started() -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("x", id="1")
        t.retract("1")
        t.send("whta", id="2")
        t.send("what", id="3", corrects="2")
        slow.release.set()
        await t.settled()
        assert (slow.asked, t.unread()) == (["what"], ["answer to what"])


async def test_an_origin_id_names_a_question_too() -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("x", id="1", extra="<origin-id xmlns='urn:xmpp:sid:0' id='o1'/>")
        await eventually(lambda: bool(slow.asked))
        t.retract("o1")
        await t.settled()
        assert t.unread() == []


@pytest.mark.parametrize("how", ["retract", "correct"])
async def test_a_question_can_be_retracted_and_corrected_by_its_sender_only(how: str) -> None:
    slow = SlowAgent()
    async with AgentTester(slow) as t:
        t.send("alices", id="1", user=ALICE)
        await eventually(lambda: bool(slow.asked))
        if how == "retract":
            t.retract("1", user=BOB)
        else:
            t.send("mine", corrects="1", user=BOB)
        slow.release.set()
        await t.settled()
        assert t.unread(ALICE) == ["answer to alices"]
        assert t.unread(BOB) in ([], ["answer to mine"])  # as with an id that nobody knows


async def test_a_question_corrected_again_and_again_is_answered_once() -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("0", id="0")
        for number in range(1, 50):
            t.send(str(number), id=str(number), corrects=str(number - 1))
        await eventually(lambda: slow.asked[-1:] == ["49"])
        slow.release.set()
        await t.settled()
        assert t.unread() == ["answer to 49"]


FIRST = ("1", "1", "1")
LAST = ("1", "2", "3")
MIXED = ("1", "2", "1")


@pytest.mark.parametrize("named", [FIRST, LAST, MIXED], ids=["the first version", "the last version", "both"])
@pytest.mark.parametrize("when", ["in a burst", "while its turn runs", "while it waits"])
async def test_of_all_versions_of_a_question_only_the_latest_is_answered(when: str, named: tuple[str, ...]) -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        if when == "while it waits":
            t.send("first", id="0")
        t.send("version 1", id="1")
        for number, corrected in enumerate(named, start=2):
            if when == "while its turn runs":
                await eventually(lambda said=f"version {number - 1}": slow.asked[-1:] == [said])  # type: ignore[misc]  # a lambda with a default has no type
            t.send(f"version {number}", id=str(number), corrects=corrected)
        slow.release.set()
        await t.settled()
        assert t.unread() == (["answer to first"] if when == "while it waits" else []) + ["answer to version 4"]
        await t.restart()
        await t.settled()
        assert t.unread() == []


async def test_after_an_answer_only_the_latest_correction_asks_again() -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        slow.release.set()
        t.send("version 1", id="1")
        await t.settled()
        slow.release.clear()
        for number in (2, 3, 4):
            t.send(f"version {number}", id=str(number), corrects="1")
            await eventually(lambda said=f"version {number}": slow.asked[-1] == said)  # type: ignore[misc]  # a lambda with a default has no type
        slow.release.set()
        await t.settled()
        assert t.unread() == ["answer to version 1", "answer to version 4"]


@pytest.mark.parametrize("named", ["1", "o1", "2", "3"])
async def test_a_retraction_by_the_id_of_the_first_or_a_recent_version_drops_the_latest_one(named: str) -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("version 1", id="1", extra="<origin-id xmlns='urn:xmpp:sid:0' id='o1'/>")
        t.send("version 2", id="2", corrects="1")
        t.send("version 3", id="3", corrects="2")
        t.retract(named)
        t.send("another", id="4")
        slow.release.set()
        await t.settled()
        assert t.unread() == ["answer to another"]


async def test_a_correction_without_text_is_a_retraction() -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("a question", id="1")
        await eventually(lambda: bool(slow.asked))
        t.send(" ", id="2", corrects="1")
        await t.settled()
        assert t.unread() == []


@pytest.mark.parametrize("named", ["1", "o1"])
async def test_a_correction_that_comes_twice_does_not_drop_itself(named: str) -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        stamp = "<delay xmlns='urn:xmpp:delay' stamp='2026-01-01T00:00:00Z'/>"
        t.send("version 1", id="1", extra="<origin-id xmlns='urn:xmpp:sid:0' id='o1'/>")
        for number in ("2", "2", "3", "2", "3"):
            t.send(f"version {number}", id=number, corrects=named, extra=stamp)
            await eventually(lambda: bool(slow.asked))
        slow.release.set()
        await t.settled()
        assert t.unread()[-1:] == ["answer to version 3"]
        await t.restart()
        assert t.unread() == []


async def test_a_correction_without_a_thread_stays_in_that_of_the_question() -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("version 1", id="1", thread="tea")
        t.send("version 2", id="2", corrects="1")
        slow.release.set()
        await t.settled()
        [answer] = [message for message in t.messages() if message.text is not None]
        assert (answer.text, answer.thread) == ("answer to version 2", "tea")


@pytest.mark.parametrize("restarts", ["after the first version", "before the last version", "after the last version"])
@pytest.mark.parametrize("named", ["1", "2"])
async def test_the_latest_version_is_known_after_a_restart(restarts: str, named: str) -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        for number, corrected in (("1", None), ("2", "1"), ("3", named)):
            t.send(f"version {number}", id=number, corrects=corrected)
            await eventually(lambda said=f"version {number}": slow.asked[-1:] == [said])  # type: ignore[misc]  # a lambda with a default has no type
            if (
                restarts
                == {"1": "after the first version", "2": "before the last version", "3": "after the last version"}[number]
            ):
                await t.restart(grace_s=0)
                await eventually(lambda said=f"version {number}": slow.asked[-2:] == [said, said])  # type: ignore[misc]  # as above
        slow.release.set()
        await t.settled()
        assert t.unread() == ["answer to version 3"]


@pytest.mark.parametrize("how", ["corrected", "retracted"])
@pytest.mark.parametrize("which", ["running", "waiting"])
async def test_a_question_corrected_or_retracted_while_the_platform_stops_is_over(how: str, which: str) -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("question 1", id="1")
        t.send("question 2", id="2")
        await eventually(lambda: bool(slow.asked))
        stopping = asyncio.create_task(t.runners[AGENT].drain(TIMEOUT_S))
        await asyncio.sleep(0)
        old = "1" if which == "running" else "2"
        if how == "corrected":
            t.send("better", id="3", corrects=old)
            t.send("best", id="4", corrects=old)
        else:
            t.retract(old)
        slow.release.set()
        await stopping
        await t.restart()
        await t.settled()
        kept = ["answer to question 2"] if which == "running" else ["answer to question 1"]
        assert t.unread() == kept + (["answer to best"] if how == "corrected" else [])


async def test_a_correction_that_comes_before_the_start_is_over_replaces_what_the_last_run_left() -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("version 1", id="1")
        await eventually(lambda: bool(slow.asked))
        await t.runners[AGENT].drain(0)
        t.send("version 2", id="2", corrects="1")
        t.send("version 3", id="3", corrects="1")
        slow.release.set()
        await t.restart()
        await t.settled()
        assert t.unread() == ["answer to version 3"]


async def test_a_question_that_the_archive_delivers_after_its_correction_is_not_answered() -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("version 2", id="2", corrects="1")
        await eventually(lambda: slow.asked == ["version 2"])
        delay = "<delay xmlns='urn:xmpp:delay' stamp='2026-01-01T00:00:00Z'/>"
        for number, replaced in (("1", ""), ("2", "<replace xmlns='urn:xmpp:message-correct:0' id='1'/>")):
            body = f"<body>version {number}</body>{replaced}{delay}"
            stanza = f"<message xmlns='jabber:client' from='{ALICE}/x' type='chat' id='{number}'>{body}</message>"
            stored = await t.gateways[AGENT].receive_archived(decode(fromstring(stanza)))
            assert stored is not None
            assert await stored == (number == "1")
        slow.release.set()
        await t.settled()
        assert t.unread() == ["answer to version 2"]


async def test_a_retraction_is_stored_before_it_is_acknowledged() -> None:
    slow = SlowAgent()
    async with AgentTester(slow, user=ALICE) as t:
        t.send("a question", id="1")
        await eventually(lambda: bool(slow.asked))
        runner = t.runners[AGENT]
        stored = runner.intake.cancel_request(ALICE, "1")
        assert stored is not None
        await stored
        assert await runner.repository.inbox.load_pending() == []
        [row] = await runner.repository.inbox.load_received_from(ALICE)
        assert (row.state, row.request) == (CLOSED, None)


async def test_an_agent_that_goes_on_after_its_question_was_retracted_is_not_heard() -> None:
    class Stubborn(SlowAgent):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await super().assist(request, session, response)
            await response.markdown("I go on")

    stubborn = Stubborn()
    async with AgentTester(stubborn, user=ALICE) as t:
        t.send("version 1", id="1")
        await eventually(lambda: bool(stubborn.asked))
        t.send("version 2", id="2", corrects="1")
        await eventually(lambda: stubborn.asked[-1] == "version 2")
        t.retract("1")
        await t.settled()
        assert t.unread() == []


# Reactions


async def ask_for_reply_id(t: AgentTester, slow: SlowAgent, user: str = ALICE) -> str:
    """Ask, and return the id of the reply's message."""
    slow.release.set()
    t.send("what?", user=user)
    await t.settled()
    [answer] = [message for message in t.messages(user) if message.text is not None]
    assert t.unread(user) == ["answer to what?"]
    return answer.id


async def history(t: AgentTester, user: str) -> list[Interaction]:
    [row] = [row for row in await t.runners[AGENT].repository.list_conversations() if row.owner == user]
    return [Interaction.model_validate_json(text) for text in await t.runners[AGENT].repository.turns.load_history(row.id, 10)]


async def test_a_reaction_is_recorded_with_its_turn_and_given_to_the_agent() -> None:
    slow = SlowAgent()
    async with AgentTester(slow) as t:
        message_id = await ask_for_reply_id(t, slow)
        for emojis in (("👍", "🎉"), ("👎",), ()):
            t.react(message_id, *emojis, user=ALICE)
            await eventually(lambda said=("what?", emojis): slow.feedback_on[-1:] == [said])  # type: ignore[misc]  # a lambda with a default has no type
            [turn] = await history(t, ALICE)
            assert turn.meta["feedback"] == list(emojis)
        assert t.unread(ALICE) == []
        assert await t.say("what?", user=ALICE) == ["answer to what?"]


@pytest.mark.parametrize("of", ["another's", "unknown", "no id", ""])
async def test_a_reaction_to_a_foreign_or_unknown_message_is_ignored(of: str) -> None:
    slow = SlowAgent()
    async with AgentTester(slow) as t:
        message_id = await ask_for_reply_id(t, slow)
        target = {"another's": message_id, "unknown": f"{uuid4()}-0-00000000"}.get(of, of)
        t.react(target, "👍", user=BOB)
        assert await t.say("what?", user=BOB) == ["answer to what?"]
        [turn] = await history(t, ALICE)
        assert "feedback" not in turn.meta
        assert (slow.feedback_on, t.unread(BOB)) == ([], [])


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_an_agent_whose_feedback_fails_goes_on(
    error: type[BaseException], caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors(f"feedback failed: {error.__name__}: 1")

    class FailingFeedbackAgent(SlowAgent):
        async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
            raise error(1)

    slow = FailingFeedbackAgent()
    async with AgentTester(slow) as t:
        t.react(await ask_for_reply_id(t, slow), "👎", user=ALICE)
        await eventually(lambda: "feedback failed" in caplog.text)
        assert await t.say("what?", user=ALICE) == ["answer to what?"]


async def test_feedback_that_never_ends_does_not_keep_the_platform_from_stopping(
    caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("feedback failed: CancelledError")

    class HangingFeedbackAgent(SlowAgent):
        async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
            await super().feedback(interaction, reactions)
            await asyncio.Event().wait()

    hanging = HangingFeedbackAgent()
    async with AgentTester(hanging) as t:
        t.react(await ask_for_reply_id(t, hanging), "👍", user=ALICE)
        await eventually(lambda: bool(hanging.feedback_on))
        async with asyncio.timeout(TIMEOUT_S):
            await t.restart()
    assert "feedback failed" in caplog.text


# Many reactions


async def test_of_the_reactions_that_wait_the_latest_to_each_message_counts() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    class SlowToHear(SlowAgent):
        async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
            started.set()
            await release.wait()
            await super().feedback(interaction, reactions)

    slow = SlowToHear()
    async with AgentTester(slow, user=ALICE) as t:
        reply_id = await ask_for_reply_id(t, slow)
        t.react(reply_id, "👍", user=ALICE)
        await started.wait()
        for emoji in ("👎", "🎉", "❤"):
            t.react(reply_id, emoji, user=ALICE)
        release.set()
        await eventually(lambda: len(slow.feedback_on) == 2)
        assert [reactions for _, reactions in slow.feedback_on] == [("👍",), ("❤",)]


async def test_the_waiting_reactions_of_one_sender_are_limited(repository: AgentRepository) -> None:
    quotas, requests, stop = QuotaLimit(repository, Quotas(), 8, utc_now), InFlightRequests(), asyncio.Event()
    mailboxes = Mailboxes(repository, quotas, TurnGate(), requests, stop, max_queued=8, remembered_turns=8)
    received = ReceivedReactions(SlowAgent(), repository, mailboxes, timeout_s=1.0)
    accepted = [received.receive_reaction(ALICE, str(uuid4()), ("👍",), "") for _ in range(1000)]
    assert accepted == [True] * 100 + [False] * 900
    assert received.receive_reaction(BOB, str(uuid4()), ("👍",), "")
    await received.wait_until_idle()
    assert received.receive_reaction(ALICE, str(uuid4()), ("👍",), "")
    await received.wait_until_idle()
