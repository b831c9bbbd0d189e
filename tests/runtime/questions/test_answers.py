"""What counts as an answer to a question, and whose, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, time, timedelta
from typing import Any

import pytest

from spade_coreason import AgentRequest, AgentTester, Response, Session
from spade_coreason.contracts import PersonAnswer
from spade_coreason.domain.initiative.notifications import NotificationPolicy, QuietHours
from spade_coreason.domain.questions import MAX_OPEN_QUESTIONS, ApprovalPolicy
from spade_coreason.exceptions import QuestionExpiredError
from spade_coreason.testing import Policy
from tests.support.initiative import START
from tests.support.questions import BOB, BOSS, TESTER, ChangingAgent, asked, code_of, nothing_is_left, parked

Assist = Callable[[AgentRequest, Session, Response], Any]


def asking(**keywords: Any) -> Assist:
    """Return an `assist` that asks for `go`, sends the answer, and repeats all else."""

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        query = request.payload["query"]
        if query != "go":
            await response.markdown(f"request: {query}")
            return
        try:
            answer = await response.ask_person("Which?", **keywords)
        except QuestionExpiredError as error:
            await response.markdown(f"expired: {error}")
        else:
            await response.markdown(f"answer: {answer.text!r} {answer.value!r} of {answer.person}")

    return assist


async def texts(t: AgentTester, user: str | None = None) -> list[str]:
    await t.settled()
    return t.unread(user)


COLOURS = asking(choices=["red", "Dark Blue"])


@pytest.mark.parametrize("text", ["Dark Blue", "dark blue", " DARK BLUE ", "2", "2.", "2)", " 2 "])
async def test_a_choice_or_its_number_is_the_answer(text: str) -> None:
    async with AgentTester(ChangingAgent(COLOURS)) as t:
        await t.say("go")
        assert await t.say(text) == ["answer: 'Dark Blue' None of tester@localhost"]
        assert await nothing_is_left(t)


@pytest.mark.parametrize("text", ["blue", "3", "0", "-1", "2nd", "red or Dark Blue", "rot", "red?", "2%", "#2", "@red"])
async def test_all_else_is_a_new_request(text: str) -> None:
    async with AgentTester(ChangingAgent(COLOURS)) as t:
        await t.say("go")
        assert await t.say(text) == [f"request: {text}"]
        assert len(await asked(t)) == 1


async def test_the_choices_are_offered_and_the_offered_value_is_the_answer() -> None:
    async with AgentTester(ChangingAgent(COLOURS)) as t:
        await t.say("go")
        question = next(message for message in t.messages() if message.text)
        code = code_of([str(question.text)])
        assert question.choices == ((f"answer {code} red", "red"), (f"answer {code} Dark Blue", "Dark Blue"))
        assert await t.say(question.choices[1][0]) == ["answer: 'Dark Blue' None of tester@localhost"]


async def test_a_choice_in_another_thread_is_a_request() -> None:
    async with AgentTester(ChangingAgent(COLOURS)) as t:
        await t.say("go", thread="one")
        assert await t.say("red", thread="two") == ["request: red"]
        assert await t.say("red") == ["request: red"]
        assert await t.say("red", thread="one") == ["answer: 'red' None of tester@localhost"]


async def test_a_question_without_choices_takes_a_reply_or_the_command_only() -> None:
    async with AgentTester(ChangingAgent(asking())) as t:
        [question] = await t.say("go")
        assert await t.say("red") == ["request: red"]
        assert await t.say(f"/answer {code_of([question])} quite  red") == ["answer: 'quite  red' None of tester@localhost"]


@pytest.mark.parametrize("thread", [None, "travel"])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("replies_in_thread", [False, True])
async def test_a_reply_to_the_question_is_the_answer(thread: str | None, restarts: bool, replies_in_thread: bool) -> None:
    async with AgentTester(ChangingAgent(asking()), client_features={"replies"}) as t:
        t.send("go", thread=thread)
        question = await t.message()
        await t.settled()
        if restarts:
            await t.restart()
        t.send("whatever I like", reply_to=question.id, thread=thread if replies_in_thread else None)
        answer = await t.message()
        assert answer.text == "answer: 'whatever I like' None of tester@localhost"
        assert answer.thread == thread
        assert await nothing_is_left(t)


async def test_a_reply_to_another_message_is_a_request() -> None:
    async with AgentTester(ChangingAgent(asking()), client_features={"replies"}) as t:
        t.send("hello")
        hello = await t.message()
        t.send("go")
        await t.message()
        await t.settled()
        for message_id in (hello.id, "unknown", "", "x" * 36, f"{hello.id[:36]}"):
            t.send("what?", reply_to=message_id)
            assert (await t.message()).text == "request: what?"
        assert len(await asked(t)) == 1


@pytest.mark.parametrize("to_reminder", [False, True])
@pytest.mark.parametrize("thread", [None, "elsewhere"])
async def test_another_person_replies_to_the_message_that_asks_them(to_reminder: bool, thread: str | None) -> None:
    async with AgentTester(ChangingAgent(asking(to=BOB)), clock=lambda: START, client_features={"replies"}) as t:
        await t.say("go")
        await t.settled()
        message = await t.message(BOB)
        if to_reminder:
            await t.advance(timedelta(days=4))
            message = await t.message(BOB)
            assert str(message.text).startswith("A reminder: this still waits for you.")
        t.send("why not", reply_to=message.id, user=BOB, thread=thread)
        assert (await t.message(BOB)).text == "Thank you. I go on with it."
        assert await texts(t) == ["answer: 'why not' None of bob@localhost"]
        assert await nothing_is_left(t)


async def test_another_person_answers_with_a_choice_where_they_were_asked() -> None:
    async with AgentTester(ChangingAgent(asking(to=BOB, choices=["red", "blue"]))) as t:
        await t.say("go", thread="mine")
        await texts(t, BOB)
        assert await t.say("red", user=BOB, thread="theirs") == ["request: red"]
        assert await t.say("red", user=BOSS) == ["request: red"]
        assert await t.say("red", thread="mine") == ["request: red"]
        assert await t.say("1", user=BOB) == ["Thank you. I go on with it."]
        assert await texts(t) == ["answer: 'red' None of bob@localhost"]


async def test_a_reply_that_is_no_choice_hears_the_choices() -> None:
    async with AgentTester(ChangingAgent(COLOURS), client_features={"replies"}) as t:
        t.send("go")
        question = await t.message()
        await t.settled()
        t.send("green", reply_to=question.id)
        assert (await t.message()).text == "This does not answer the question: red / Dark Blue"
        t.send("2", reply_to=question.id)
        assert (await t.message()).text == "answer: 'Dark Blue' None of tester@localhost"


@pytest.mark.parametrize("user", [BOB, BOSS])
async def test_nobody_else_answers(user: str) -> None:
    async with AgentTester(ChangingAgent(COLOURS), policy=Policy(operators=frozenset({BOSS}))) as t:
        code = code_of(await t.say("go"))
        refusal = "I have asked you nothing with this code. Please check it."
        assert await t.say(f"/answer {code} red", user=user) == [refusal]
        assert await t.say("/answer ZZZZ red", user=user) == [refusal]
        assert await t.say(f"/answer {code.lower()} red") == ["answer: 'red' None of tester@localhost"]
        assert await t.say(f"/answer {code} red", user=user) == [refusal]


async def test_late_answers_hear_who_has_decided() -> None:
    async with AgentTester(ChangingAgent(asking(to=BOB, choices=["red", "blue"]))) as t:
        await t.say("go")
        question = await t.message(BOB)
        code = code_of([str(question.text)])
        await t.say("red", user=BOB)
        for text in (f"/answer {code} blue", f"/answer {code} green"):
            assert await t.say(text, user=BOB) == ["You have answered this already."]
        await t.restart()
        assert await t.say(f"/answer {code} blue", user=BOB) == ["You have answered this already."]
        assert await texts(t) == ["answer: 'red' None of bob@localhost"]


async def test_two_devices_answer_at_once() -> None:
    async with AgentTester(ChangingAgent(COLOURS)) as t:
        code = code_of(await t.say("go"))
        for number in range(4):
            t.send(f"/answer {code} {'red' if number % 2 else 'Dark Blue'}", user=f"{TESTER}/device{number}")
        await t.settled()
        heard = await texts(t)
        assert sum(text.startswith("answer: ") for text in heard) == 1
        assert sum(text == "You have answered this already." for text in heard) == 3
        assert await nothing_is_left(t)


async def test_two_people_decide_at_once() -> None:
    calls: list[str] = []

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        try:
            await session.run_approved("pay", calls.append, "pay")
        except Exception as error:
            await response.markdown(str(error))
            raise
        await response.markdown("paid")

    approvers = [f"approver{number}@localhost" for number in range(6)]
    async with AgentTester(ChangingAgent(assist), policy=approval_policy(*approvers)) as t:
        await t.say("go")
        await t.settled()
        code = code_of(t.unread(approvers[0]))
        for person in approvers:
            t.unread(person)
            t.send(f"/approve {code}", user=person)
        decided = [text for person in approvers for text in await texts(t, person)]
        assert sum(text == "Approved. It runs now." for text in decided) == 1
        assert sum("was first" in text for text in decided) == len(approvers) - 1
        assert await texts(t) == ["paid"]
        assert calls == ["pay"]
        assert await nothing_is_left(t)


def approval_policy(*operators: str) -> Policy:
    return Policy(operators=frozenset(operators), approvals=ApprovalPolicy(operators=operators))


async def test_a_person_is_asked_at_most_twenty_questions_at_once_and_further_ones_in_order() -> None:
    async with AgentTester(ChangingAgent(ask_or_say_why)) as t:
        for number in range(MAX_OPEN_QUESTIONS):
            t.send("go", thread=str(number % 3))
        await t.settled()
        assert len(await asked(t, BOB)) == MAX_OPEN_QUESTIONS
        t.unread()
        assert await t.say("go") == ["I will ask bob@localhost later, and go on when they have answered."]
        code = code_of(t.unread(BOB)[:1])
        assert len(await asked(t, BOB)) == MAX_OPEN_QUESTIONS
        await t.say(f"/answer {code} red", user=BOB)
        await t.settled()
        assert len(await asked(t, BOB)) == MAX_OPEN_QUESTIONS
        [late] = t.unread(BOB)
        assert late.startswith("Which?")


async def test_of_many_questions_at_once_twenty_are_asked_and_the_others_later() -> None:
    async with AgentTester(ChangingAgent(ask_or_say_why)) as t:
        for number in range(30):
            t.send("go", thread=str(number))
        later = [text for text in await texts(t) if text.startswith("I will ask")]
        assert len(await asked(t, BOB)) == MAX_OPEN_QUESTIONS
        assert len(later) == 10


async def ask_or_say_why(request: AgentRequest, session: Session, response: Response) -> None:
    try:
        await response.ask_person("Which?", choices=["red", "blue"], to=BOB)
    except ValueError as error:
        await response.markdown(str(error))


# Values

AGE = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "42", 42),
        ({"type": "number"}, "4.2", 4.2),
        ({"type": "string", "minLength": 2}, "42", "42"),
        ({"type": "boolean"}, "yes", True),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        (AGE, "7", {"age": 7}),
        (AGE, '{"age": 8}', {"age": 8}),
        ({"enum": ["a", 1]}, "1", 1),
        ({}, "anything", "anything"),
    ],
)
async def test_an_answer_that_fits_the_schema_has_its_value(schema: dict[str, Any], text: str, value: Any) -> None:
    async with AgentTester(ChangingAgent(asking(schema=schema))) as t:
        code = code_of(await t.say("go"))
        assert await t.say(f"/answer {code} {text}") == [f"answer: {text!r} {value!r} of tester@localhost"]


@pytest.mark.parametrize(
    ("schema", "text"),
    [({"type": "integer"}, "many"), ({"type": "integer", "maximum": 5}, "6"), (AGE, "-1"), (AGE, "{}"), (AGE, '{"age": ')],
)
async def test_an_answer_that_does_not_fit_hears_why_and_may_answer_again(schema: dict[str, Any], text: str) -> None:
    async with AgentTester(ChangingAgent(asking(schema=schema))) as t:
        code = code_of(await t.say("go"))
        [problem] = await t.say(f"/answer {code} {text}")
        assert problem.startswith("This does not answer the question: ")
        [answer] = await t.say(f"/answer {code} 5")
        assert answer.startswith("answer: '5'")


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"pattern": "("}, {"$ref": "https://example.org/schema"}])
async def test_a_schema_that_is_none_is_a_value_error(schema: dict[str, Any]) -> None:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        try:
            await response.ask_person("Which?", schema=schema)
        except ValueError as error:
            await response.markdown(f"unsuitable: {error}")

    async with AgentTester(ChangingAgent(assist)) as t:
        [text] = await t.say("go")
        assert text.startswith("unsuitable: ")
        assert await nothing_is_left(t)


async def test_the_answer_says_who_and_when() -> None:
    answers: list[PersonAnswer] = []

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        answers.append(await response.ask_person("Which?", choices=["red"]))
        answers.append(await response.ask_person("Which?", choices=["red"]))

    async with AgentTester(ChangingAgent(assist), clock=lambda: START) as t:
        await t.say("go")
        await t.advance(timedelta(hours=3))
        await t.say("red")
        await t.advance(timedelta(hours=3))
        await t.say("1")
        first, again, second = answers
        assert first == again
        assert first.answered_at == START + timedelta(hours=3)
        assert second.answered_at == START + timedelta(hours=6)
        assert first.person == TESTER


# Time


@pytest.mark.parametrize("down", [False, True])
async def test_a_question_ends_at_its_time_after_one_reminder(down: bool) -> None:
    assist = asking(to=BOB, timeout=timedelta(days=2))
    async with AgentTester(ChangingAgent(assist), clock=lambda: START) as t:
        await t.say("go")
        assert len(await texts(t, BOB)) == 1
        await t.advance(timedelta(hours=23))
        assert await texts(t, BOB) == []
        if down:
            await t.restart(down_for=timedelta(hours=2))
        await t.advance(timedelta(hours=2))
        [reminder] = await texts(t, BOB)
        assert reminder.startswith("A reminder: this still waits for you.\n\nWhich?")
        await t.restart()
        await t.advance(timedelta(hours=20))
        assert (await texts(t, BOB), await texts(t)) == ([], [])
        await t.advance(timedelta(hours=4))
        [expired] = await texts(t)
        assert expired.startswith("expired: no one answered the question ")
        assert await texts(t, BOB) == []
        code = code_of([reminder])
        assert await t.say(f"/answer {code} red", user=BOB) == ["The time for this is over. Your answer changes nothing."]
        assert await nothing_is_left(t)


async def test_a_question_that_ends_while_the_platform_is_down_ends_at_the_start() -> None:
    async with AgentTester(ChangingAgent(asking(timeout=timedelta(hours=1))), clock=lambda: START) as t:
        await t.say("go")
        await t.restart(down_for=timedelta(days=9))
        await t.settled()
        [expired] = await texts(t)
        assert expired.startswith("expired: ")
        assert await nothing_is_left(t)


async def test_the_person_who_asks_is_reminded_where_they_were_asked() -> None:
    async with AgentTester(ChangingAgent(COLOURS), clock=lambda: START) as t:
        await t.say("go", thread="mine")
        await t.advance(timedelta(days=4))
        reminder = await t.message()
        assert str(reminder.text).startswith("A reminder: ")
        assert reminder.thread == "mine"
        assert [label for _, label in reminder.choices] == ["red", "Dark Blue"]
        assert await t.say("red", thread="mine") == ["answer: 'red' None of tester@localhost"]


async def test_quiet_hours_delay_a_question() -> None:
    policy = Policy(notifications=NotificationPolicy(quiet=QuietHours(time(22), time(7))))
    night = datetime(2030, 1, 1, 23, tzinfo=START.tzinfo)
    async with AgentTester(ChangingAgent(asking(to=BOB)), policy=policy, clock=lambda: night) as t:
        await t.say("go")
        assert await texts(t, BOB) == []
        await t.advance(timedelta(hours=7, minutes=59))
        assert await texts(t, BOB) == []
        await t.advance(timedelta(minutes=2))
        [question] = await texts(t, BOB)
        assert await t.say(f"/answer {code_of([question])} red", user=BOB) == ["Thank you. I go on with it."]


async def test_a_question_that_was_answered_or_ended_in_quiet_hours_is_not_sent() -> None:
    policy = Policy(notifications=NotificationPolicy(quiet=QuietHours(time(22), time(7))))
    night = datetime(2030, 1, 1, 23, tzinfo=START.tzinfo)
    async with AgentTester(ChangingAgent(asking(to=BOB, choices=["red"])), policy=policy, clock=lambda: night) as t:
        await t.say("go")
        [question] = await asked(t, BOB)
        assert await t.say("1", user=BOB) == ["request: 1"]  # nothing was shown yet
        await t.say(f"/answer {question.code} 1", user=BOB)
        await t.advance(timedelta(days=5))
        assert not any("Which?" in text for text in await texts(t, BOB))


async def test_questions_come_also_to_a_person_without_notifications() -> None:
    async with AgentTester(ChangingAgent(asking(to=BOB, choices=["red"]))) as t:
        await t.say("/settings notifications off", user=BOB)
        await t.say("go")
        [question] = await texts(t, BOB)
        assert question.startswith("Which?")
        assert await t.say("red", user=BOB) == ["Thank you. I go on with it."]


@pytest.mark.parametrize("count", [2])
async def test_questions_of_several_threads_are_answered_in_any_order(count: int) -> None:
    async with AgentTester(ChangingAgent(COLOURS)) as t:
        codes = [code_of(await t.say("go", thread=str(number))) for number in range(count)]
        for number, code in reversed(list(enumerate(codes))):
            assert await t.say(f"/answer {code} red", thread="elsewhere") == []
            await t.settled()
            [answer] = t.unread()
            assert answer.startswith("answer: 'red'"), number
        assert await parked(t) == []
        async with asyncio.timeout(10):
            assert await nothing_is_left(t)
