"""Deletion while the agent runs: nothing that is at work stores again what was deleted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, People, Response, Session
from spade_coreason.agents.echo import EchoAgent
from spade_coreason.exceptions import QuestionExpiredError
from spade_coreason.testing import Policy, Rules
from tests.support.clock import Clock
from tests.support.databases import SQLITE
from tests.support.wait import eventually

AGENT = "agent@localhost"
PEOPLE = [f"person{number}@localhost" for number in range(30)]


async def test_an_expiry_does_not_store_a_person_again_who_is_deleted_meanwhile() -> None:
    clock = Clock()
    async with AgentTester(EchoAgent, clock=clock, policy=Policy(rules=Rules(timeout_s=3600))) as t:
        for person in PEOPLE:
            await t.say("hello", user=person)
        await t.restart()  # none of the conversations is in memory
        clock.advance(hours=2)
        last = PEOPLE[-1]
        await asyncio.gather(
            t.runners[AGENT].conversations.expiry.expire_idle(), t.runners[AGENT].control.erasure.erase_person(last)
        )
        repository = t.runners[AGENT].repository
        assert last not in await repository.list_people()
        [record] = await repository.list_conversations(owner=PEOPLE[0])
        assert record.status.state == "timeout"


async def test_a_request_that_waits_for_a_start_does_not_run_after_its_person_was_deleted() -> None:
    async with AgentTester(EchoAgent) as t:
        person, runner = PEOPLE[0], t.runners[AGENT]
        await runner.drain(0)
        t.send("a secret", user=person)
        await t.delivered()
        await runner.control.erasure.erase_person(person)
        await runner.open()
        await t.settled()
        assert t.unread(user=person) == []
        assert await runner.repository.list_people() == []


BEGUN: list[WritingFirst] = []


class WritingFirst:
    """Notifies the sender, reminds it in an hour, and begins a job that does not end."""

    manifest = AgentDefinition.simple("writing-first")

    def __init__(self, people: People) -> None:
        self.people = people
        self.due: list[str] = []
        BEGUN.append(self)

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        secret = request.payload["query"]
        if "due_at" in request.metadata:
            self.due.append(secret)
            await asyncio.Event().wait()
        await self.people.notify(request.metadata["sender"].partition("/")[0], f"notified {secret}")
        await session.remind(timedelta(hours=1), f"remind {secret}")
        await session.later(f"job {secret}")
        await response.markdown("begun")


async def test_nothing_that_was_due_for_a_deleted_person_is_left_or_comes(tmp_path: Path) -> None:
    clock, (deleted, other) = Clock(), PEOPLE[:2]
    async with AgentTester(WritingFirst, clock=clock, database=f"{SQLITE}{tmp_path}/platform.db") as t:
        repository = t.runners[AGENT].repository
        for person in (deleted, other):
            await t.say(f"secret-of-{person}", user=person)
            while not any("notified" in str(message.text) for message in t.messages(person)):
                await t.message(person)
        agent = BEGUN[-1]
        await eventually(lambda: len(agent.due) == 2)
        report = await t.runners[AGENT].control.erasure.erase_person(deleted)
        assert report.notifications == 1
        assert report.schedules >= 1
        before = len(t.messages(deleted))
        clock.advance(hours=2)
        t.runners[AGENT].task_clock.check()
        await eventually(lambda: len(agent.due) == 3)
        assert agent.due[-1] == f"remind secret-of-{other}"
        assert len(t.messages(deleted)) == before
        assert await repository.schedules.load(owner=deleted) == []
        assert await repository.notifications.load(owner=deleted) == []
        assert len(await repository.notifications.load(owner=other)) == 1
    stored = read_files(tmp_path)
    assert f"secret-of-{other}".encode() in stored
    assert f"secret-of-{deleted}".encode() not in stored


class AskingFirst:
    """Asks the person whom a request names, in a step before and after it."""

    manifest = AgentDefinition.simple("asking-first")
    ran: ClassVar[list[str]] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        person = request.payload["query"]
        await session.run_once("before", self.ran.append, f"before {person}")
        try:
            answer = (await response.ask_person("Which?", to=person)).text
        except QuestionExpiredError:
            answer = "nobody answered"
        self.ran.append(f"after {person}")
        await response.markdown(answer)


@pytest.mark.parametrize("command", ["/forget me yes", "/forget yes"])
async def test_a_request_that_waits_for_an_answer_is_deleted_with_its_person_or_its_conversation(command: str) -> None:
    AskingFirst.ran.clear()
    deleted, other = PEOPLE[:2]
    async with AgentTester(AskingFirst, user=deleted) as t:
        await t.say(other)
        [question] = await t.questions()
        await t.say(other, thread="elsewhere")
        left = 0 if "me" in command else 1
        assert f"{2 - left} question" in (await t.say(command))[0]
        assert len(await t.questions(other)) == left
        texts = await t.say(f"/answer {question.code} red", user=other)
        assert any("I have asked you nothing with this code" in text for text in texts)
        assert AskingFirst.ran == [f"before {other}"] * 2
        assert t.unread(deleted) == []


async def test_an_answer_while_its_person_is_deleted_lets_nothing_run() -> None:
    AskingFirst.ran.clear()
    deleted, other = PEOPLE[:2]
    async with AgentTester(AskingFirst, user=deleted) as t:
        await t.say(other)
        [question] = await t.questions()
        control = t.runners[AGENT].control
        assert await control.erasure.refuse_person(deleted)
        await t.say(f"/answer {question.code} red", user=other)
        assert await t.questions() == []
        await control.erasure.erase_person(deleted)
        await control.erasure.admit_person(deleted)
        await t.settled()
        await t.restart()
        await t.settled()
        assert AskingFirst.ran == [f"before {other}"]
        assert deleted not in await t.runners[AGENT].repository.list_people()


async def test_a_request_goes_on_with_its_answer_after_retention_has_deleted_its_conversation() -> None:
    AskingFirst.ran.clear()
    asking, other = PEOPLE[:2]
    async with AgentTester(AskingFirst, user=asking) as t:
        await t.say(other)
        [question] = await t.questions()
        await t.restart()  # the conversation is not in memory
        repository = t.runners[AGENT].repository
        [record] = await repository.list_conversations(owner=asking)
        await repository.delete_conversation(record)
        t.unread()
        await t.say(f"/answer {question.code} red", user=other)
        await t.settled()
        assert t.unread() == ["red"]
        assert AskingFirst.ran == [f"before {other}", f"after {other}"]


async def test_a_question_ends_when_the_only_person_who_was_asked_is_deleted() -> None:
    AskingFirst.ran.clear()
    asking, deleted = PEOPLE[:2]
    async with AgentTester(AskingFirst, user=asking) as t:
        await t.say(deleted)
        await t.runners[AGENT].control.erasure.erase_person(deleted)
        assert (await t.message()).text == "nobody answered"
        assert AskingFirst.ran == [f"before {deleted}", f"after {deleted}"]


def read_files(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.iterdir() if file.is_file())
