"""A plain text answers a question only if that was handed to the stream before the text came."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, time, timedelta

import pytest
from sqlalchemy import update

from spade_coreason import AgentRequest, AgentTester, Response, Session
from spade_coreason.domain.initiative.notifications import NotificationPolicy, QuietHours
from spade_coreason.domain.questions import ApprovalPolicy
from spade_coreason.exceptions import ApprovalDeniedError
from spade_coreason.storage.schema import questions
from spade_coreason.testing import Policy, Rules
from tests.support.deleting_agent import UNCLEAR, DeletingAgent
from tests.support.initiative import START
from tests.support.questions import BOB, BOSS, TESTER, ChangingAgent, asked, code_of, nothing_is_left
from tests.support.runner import RunnerHarness
from tests.support.wait import TIMEOUT_S

DELAY = "<delay xmlns='urn:xmpp:delay' stamp='{stamp}'/>"


def stamp(age_s: float) -> str:
    """Return a mark of a text that waited on its way, since so many seconds ago."""
    return DELAY.format(stamp=(datetime.now(UTC) - timedelta(seconds=age_s)).isoformat())


async def texts(t: AgentTester, user: str | None = None) -> list[str]:
    await t.settled()
    return t.unread(user)


async def wait_until_received(t: AgentTester, count: int) -> None:
    """Wait until so many requests are stored and not answered."""
    inbox = t.runners[t.jid].repository.inbox
    async with asyncio.timeout(TIMEOUT_S):
        while len(await inbox.load_pending()) < count:
            await inbox.flush()


async def forget_showing(t: AgentTester) -> None:
    """Let it be unknown when questions were shown, as after a kill in the moment in which they were."""
    await t.runners[t.jid].repository.database.write(
        lambda connection: connection.execute(update(questions).values(shown_at=None))
    )


async def test_a_text_that_queued_before_the_question_is_a_request() -> None:
    release = asyncio.Event()

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] != "go":
            await response.markdown(f"request: {request.payload['query']}")
            return
        await release.wait()
        await response.markdown((await response.ask_person("Delete it?", choices=["yes", "no"])).text)

    async with AgentTester(ChangingAgent(assist)) as t:
        t.send("go")
        t.send("yes")
        await wait_until_received(t, 2)
        release.set()
        question, reply = await texts(t)
        assert question.startswith("Delete it?")
        assert reply == "request: yes"
        assert len(await asked(t)) == 1
        assert await t.say("yes") == ["yes"]


async def test_the_same_answer_twice_answers_one_question() -> None:
    async with AgentTester(DeletingAgent()) as t:
        await t.say("delete")
        [question] = await t.say("yes")
        assert question.startswith("Delete B?")
        t.send(" YES.", user=f"{TESTER}/phone")
        [unclear] = await texts(t)
        code = code_of([question])
        assert unclear == f"{UNCLEAR} “Delete B?”. If you do, write: /answer {code} yes"
        [open_one] = await asked(t)
        assert open_one.text == "Delete B?"
        assert await t.say(f"/answer {code} no") == ["deleted: ['yes', 'no']"]
        assert await nothing_is_left(t)


async def test_another_answer_may_follow_at_once() -> None:
    async with AgentTester(DeletingAgent()) as t:
        await t.say("delete")
        await t.say("yes")
        assert await t.say("no") == ["deleted: ['yes', 'no']"]


async def test_a_button_counts_for_its_question_only_and_at_any_time() -> None:
    async with AgentTester(DeletingAgent()) as t:
        t.send("delete")
        first = await t.message()
        await t.settled()
        pressed, _ = first.choices[0]
        assert await t.say("no") != []
        assert await t.say(pressed) == [f"request: {pressed}"]  # the question has its answer
        [question] = await asked(t)
        assert question.text == "Delete B?"
        assert await t.say(f"answer {question.code} yes") == ["deleted: ['no', 'yes']"]


@pytest.mark.parametrize("commands", [True, False])
async def test_a_button_works_without_commands(commands: bool) -> None:
    async with AgentTester(DeletingAgent(), policy=Policy(rules=Rules(commands=commands))) as t:
        for answer in ("yes", "no"):
            t.send("delete") if answer == "yes" else None
            await t.settled()
            message = next(message for message in reversed(t.messages()) if message.choices)
            t.send(next(value for value, label in message.choices if label == answer))
            await t.settled()
        assert t.unread()[-1] == "deleted: ['yes', 'no']"


async def test_a_reply_counts_also_for_an_older_question() -> None:
    async with AgentTester(DeletingAgent(), client_features={"replies"}) as t:
        t.send("delete")
        question = await t.message()
        await t.settled()
        await forget_showing(t)
        t.send("yes", reply_to=question.id, extra=stamp(0))
        assert str((await t.message()).text).startswith("Delete B?")


@pytest.mark.parametrize(("age_s", "outcome"), [(120, "request: yes"), (30, UNCLEAR), (-120, "Delete B?")])
async def test_a_text_that_waited_on_its_way_counts_by_its_stamp(age_s: float, outcome: str) -> None:
    """The clocks of servers differ, so a text of the same minute is neither before nor after the question."""
    async with AgentTester(DeletingAgent()) as t:
        await t.say("delete")
        t.send("yes", extra=stamp(age_s))
        [text] = await texts(t)
        assert text.startswith(outcome)
        assert [question.text for question in await asked(t)] == ["Delete B?" if outcome == "Delete B?" else "Delete A?"]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_text_after_a_restart_counts_if_it_is_stored_that_the_question_was_shown(is_known: bool) -> None:
    async with AgentTester(DeletingAgent()) as t:
        code = code_of(await t.say("delete"))
        if not is_known:
            await forget_showing(t)
        await t.restart()
        [text] = await t.say("yes")
        if not is_known:
            assert text == f"{UNCLEAR} “Delete A?”. If you do, write: /answer {code} yes"
            assert [question.text for question in await asked(t)] == ["Delete A?"]
            [text] = await t.say(f"/answer {code} yes")
        assert text.startswith("Delete B?")


async def test_a_text_that_is_stored_and_runs_after_a_restart_asks_for_the_code() -> None:
    async with AgentTester(DeletingAgent()) as t:
        code = code_of(await t.say("delete"))
        t.runners[t.jid].control.set_paused(True)
        t.send("yes")
        await wait_until_received(t, 1)
        await t.restart()
        t.unread()
        t.runners[t.jid].control.set_paused(False)
        [text] = await texts(t)
        assert text == f"{UNCLEAR} “Delete A?”. If you do, write: /answer {code} yes"
        assert [question.text for question in await asked(t)] == ["Delete A?"]


async def test_a_correction_asks_for_the_code() -> None:
    async with AgentTester(DeletingAgent()) as t:
        await t.say("delete")
        first = t.send("yse")
        assert await texts(t) == ["request: yse"]
        t.send("yes", corrects=first)
        assert (await texts(t))[-1].startswith(UNCLEAR)
        assert [question.text for question in await asked(t)] == ["Delete A?"]


async def test_a_text_in_quiet_hours_is_no_answer_to_what_waits_for_their_end() -> None:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] != "go":
            await response.markdown(f"request: {request.payload['query']}")
            return
        await response.markdown((await response.ask_person("Delete it?", choices=["yes", "no"], to=BOB)).text)

    policy = Policy(notifications=NotificationPolicy(quiet=QuietHours(time(22), time(7))))
    night = datetime(2030, 1, 1, 23, tzinfo=START.tzinfo)
    async with AgentTester(ChangingAgent(assist), policy=policy, clock=lambda: night) as t:
        await t.say("go")
        assert await t.say("yes", user=BOB) == ["request: yes"]
        await t.restart()
        assert await t.say("yes", user=BOB) == ["request: yes"]
        await t.advance(timedelta(hours=9))
        assert len(await texts(t, BOB)) == 1
        assert await t.say("yes", user=BOB) == ["Thank you. I go on with it."]


@pytest.mark.parametrize(
    "text", ["Yes.", '"Yes"', "\uff39\uff25\uff33", "1️⃣", "(1)", "\u0661", "\u200fyes\u200f", "`yes`", "yes\n"]
)
async def test_an_answer_with_marks_is_one(text: str) -> None:
    async with AgentTester(DeletingAgent()) as t:
        await t.say("delete")
        [question] = await t.say(text)
        assert question.startswith("Delete B?")
        code = code_of([question])
        assert await t.say(f"/answer `{code.lower()}`.\n{text}") == ["deleted: ['yes', 'yes']"]


async def pay(request: AgentRequest, session: Session, response: Response) -> None:
    """Pay when it is approved, and repeat all else."""
    if request.payload["query"] == "pay":
        try:
            await response.markdown(str(await session.run_approved("pay", lambda: "paid")))
        except ApprovalDeniedError as error:
            await response.markdown(str(error))
    else:
        await response.markdown(f"request: {request.payload['query']}")


@pytest.mark.parametrize(
    ("line", "told", "outcome"),
    [
        ("/approve CODE.", "Approved. It runs now.", "paid"),
        ("/approve `CODE`", "Approved. It runs now.", "paid"),
        ("/approve\nCODE\n", "Approved. It runs now.", "paid"),
        ("approve CODE", "Approved. It runs now.", "paid"),
        ("Approve: “code”.", "Approved. It runs now.", "paid"),
        ("deny CODE too much", "Denied. It does not run.", "too much"),
        ("/deny (CODE)\ntoo much", "Denied. It does not run.", "too much"),
    ],
)
async def test_a_code_with_marks_or_without_a_slash_decides(line: str, told: str, outcome: str) -> None:
    policy = Policy(operators=frozenset({BOSS}), approvals=ApprovalPolicy(operators=(BOSS,)))
    async with AgentTester(ChangingAgent(pay), policy=policy) as t:
        await t.say("pay")
        code = code_of(await texts(t, BOSS))
        for given in (
            "yes",
            "1",
            "approve",
            "Yes.",
            f"approve {code}?",
            f"approve {code} if you like",
            f"//approve {code}",
            code,
        ):
            reply = await t.say(given, user=BOSS)
            assert reply == [f"request: {given.replace('//', '/')}"]
        assert await t.say(f"approve {code}") == [f"request: approve {code}"]  # the requester was not asked
        assert await t.say(line.replace("CODE", code).replace("code", code.lower()), user=BOSS) == [told]
        assert outcome in "".join(await texts(t))
        # What has its decision is no open question, so this is a request.
        assert await t.say(f"approve {code}", user=BOSS) == [f"request: approve {code}"]


async def test_what_is_sent_again_after_a_restart_is_shown_then(database_url: str) -> None:
    harness = RunnerHarness(database_url, DeletingAgent())
    async with harness:
        await harness.receive_and_wait("delete")
        assert await load_times(harness) == [None]  # the process ends before it is handed to the stream
    harness.messages.clear()
    async with harness:
        assert "Delete A?" in harness.messages[-1].content
        harness.messages[-1].on_written()
        [shown_at] = await load_times(harness)
        assert shown_at is not None
        harness.messages[-1].on_written()  # again, after a cut
        assert await load_times(harness) == [shown_at]
        await harness.receive_and_wait("yes")
        assert "Delete B?" in harness.messages[-1].content


async def load_times(harness: RunnerHarness) -> list[int | None]:
    """Return when the questions were shown."""
    await harness.repository.inbox.flush()
    return [question.shown_at for question in await harness.repository.questions.load()]
