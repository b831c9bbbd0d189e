"""What an earlier run of a turn has sent is not sent again; what follows the answer is, once, under ids of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest

from spade_coreason import AgentRequest, AgentTester, Response, Session
from spade_coreason.exceptions import PeerFailedError, PeerParkedError
from spade_coreason.runtime import PeerEvent
from spade_coreason.testing import ClientFeature, PlatformLimits, Policy, Rules, RunnerTimings
from tests.support.errors import ExpectedErrors
from tests.support.questions import ChangingAgent, nothing_is_left, parked

SLOW_BUFFER = Policy(timings=RunnerTimings(buffer_s=1000))


async def say_much(response: Response, word: str) -> None:
    await response.markdown(f"text {word}")
    await response.data({"word": word}, title=f"data {word}")
    stream = await response.create_stream()
    await stream.write(f"stream {word}, ")
    await stream.write("two pieces")
    await stream.close()
    aborted = await response.create_stream()
    await aborted.write(f"aborted {word}")
    await aborted.abort("enough")
    await response.thought(f"thought {word}")
    await response.markdown(f"long {word} " * 200)


async def much(request: AgentRequest, session: Session, response: Response) -> None:
    await say_much(response, "one")
    await response.ask_person("First?", choices=["yes", "no"])
    await say_much(response, "two")
    await response.ask_person("Second?", choices=["yes", "no"])
    await say_much(response, "three")


def texts_of(t: AgentTester) -> list[str]:
    return [message.text for message in t.messages() if message.text is not None]


def ids_of(t: AgentTester) -> list[str]:
    """Return the ids of all messages with a text that correct none."""
    return [message.id for message in t.messages() if message.text is not None and message.corrects is None]


@pytest.mark.parametrize("features", [frozenset(), frozenset({"corrections", "replies"})], ids=["plain", "rich"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_person_gets_each_part_once(features: frozenset[ClientFeature], restarts: bool) -> None:
    async with AgentTester(
        ChangingAgent(much), client_features=features, policy=Policy(limits=PlatformLimits(file_over_bytes=1000))
    ) as t:
        for answer in ("go", "yes", "1"):
            t.send(answer)
            await t.settled()
            if restarts:
                await t.restart()
        for word in ("one", "two", "three"):
            for part in (f"text {word}", f"data {word}", f"stream {word}, two pieces", f"aborted {word}"):
                assert len([text for text in texts_of(t) if part in text]) == 1, part
        assert len(t.uploaded) == 3
        assert len({message.link for message in t.messages() if message.link}) == 3
        assert [text.partition("\n")[0] for text in texts_of(t) if "?" in text] == ["First?", "Second?"]
        ids = ids_of(t)
        assert len(ids) == len(set(ids))
        assert await nothing_is_left(t)


async def events_until_parked(t: AgentTester, request: AgentRequest) -> list[PeerEvent]:
    """Send a request as a program, and return the events of the reply."""
    events: list[PeerEvent] = []
    with suppress(PeerParkedError):
        async for event in t.stream(request):
            events.append(event)
    return events


async def test_a_program_gets_the_whole_reply_in_the_end() -> None:
    request = AgentRequest(session_id=uuid4(), payload={"query": "go"})
    async with AgentTester(ChangingAgent(much)) as t:
        first = await events_until_parked(t, request)
        assert first[-1].type == "request.parked"
        assert next(event.data["content"] for event in first if event.type == "block.markdown") == "text one"
        assert [event.type for event in await events_until_parked(t, request)] == ["request.parked"]
        await t.say("yes")
        assert [event.type for event in await events_until_parked(t, request)] == ["request.parked"]
        await t.say("1")
        await t.settled()
        events = await events_until_parked(t, request)
        assert [event.type for event in (events[0], events[-1])] == ["request.repeated", "request.completed"]
        text = (await t.ask(request)).text
        for word in ("one", "two", "three"):
            assert text.count(f"text {word}") == text.count(f"stream {word}, two pieces") == 1
        assert await nothing_is_left(t)


async def test_a_person_behind_a_program_gets_the_rest_as_texts_and_nothing_twice() -> None:
    ids: list[Any] = []
    request = AgentRequest(session_id=uuid4(), payload={"query": "go"})

    async def fewer_later(request: AgentRequest, session: Session, response: Response) -> None:
        for number in range(3 - len(ids) // 100):
            await response.markdown(f"before {number}")
            await response.thought("hm")
        await response.ask_person("First?", choices=["yes", "no"])
        await response.markdown("after")
        await response.thought("well")
        await response.ask_person("Second?", choices=["yes", "no"])

    async with AgentTester(ChangingAgent(fewer_later)) as t:
        seen = [event.data["id"] for event in await events_until_parked(t, request) if event.type.startswith("block.")]
        assert len(seen) == len(set(seen)) == 7
        ids += range(200)  # fewer blocks from now on
        await t.say("yes")
        await t.settled()
        texts = [message.text for message in t.messages() if message.text]
        assert texts.count("after") == 1
        assert not any("before" in text for text in texts)


async def test_a_problem_that_the_agent_reports_after_the_answer_is_sent() -> None:
    async def report(request: AgentRequest, session: Session, response: Response) -> None:
        await response.ask_person("Which?", choices=["yes", "no"])
        await response.error("It is sold out.")

    async with AgentTester(ChangingAgent(report)) as t:
        await t.say("go")
        assert await t.say("yes") == ["It is sold out."]


async def test_a_problem_that_was_reported_before_the_question_is_sent_once() -> None:
    async def report(request: AgentRequest, session: Session, response: Response) -> None:
        await response.error("It is sold out.", recoverable=True)
        await response.ask_person("Another?", choices=["yes", "no"])
        await response.markdown("Here it is.")

    async with AgentTester(ChangingAgent(report)) as t:
        first = await t.say("go")
        assert first[0] == "It is sold out."
        assert await t.say("yes") == ["Here it is."]


async def test_a_failure_after_the_answer_is_told(expected_errors: ExpectedErrors) -> None:
    expected_errors("no luck")

    async def fail(request: AgentRequest, session: Session, response: Response) -> None:
        await response.ask_person("Which?", choices=["yes", "no"])
        raise LookupError("no luck")

    async with AgentTester(ChangingAgent(fail)) as t:
        await t.say("go")
        [text] = await t.say("yes")
        assert text.startswith("Something went wrong on my side")
        assert await nothing_is_left(t)


async def test_a_failure_before_the_question_is_told(expected_errors: ExpectedErrors) -> None:
    expected_errors("no luck")
    fails = False

    async def fail(request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown("first")
        stream = await response.create_stream()
        await stream.write("second")
        if fails:
            raise LookupError("no luck")
        await stream.close()
        await response.ask_person("Which?", choices=["yes", "no"])

    async with AgentTester(ChangingAgent(fail)) as t:
        await t.say("go")
        fails = True
        [text] = await t.say("yes")
        assert text.startswith("Something went wrong on my side")
        request = AgentRequest(session_id=uuid4(), payload={"query": "go"})
        fails = False
        await events_until_parked(t, request)
        fails = True
        await t.say("1")
        await t.settled()
        with pytest.raises(PeerFailedError, match="Something went wrong"):
            await t.ask(request)
        assert await nothing_is_left(t)


async def test_the_turn_is_recorded_once_and_whole() -> None:
    async def talk(request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] == "history":
            await response.data({"turns": [turn.output for turn in await session.history(10)]})
            return
        await response.markdown("first")
        answer = await response.ask_person("Which?", choices=["red", "blue"])
        await response.markdown(f"you took {answer.text}")

    async with AgentTester(ChangingAgent(talk)) as t:
        await t.say("go")
        await t.say("blue")
        [turn] = (await t.ask("history")).data[0]["data"]["turns"]
        assert turn["text"] == "first\n\nWhich?\n\nyou took blue"


@pytest.mark.parametrize("count", [3])
async def test_a_turn_that_is_cut_off_between_two_questions_asks_each_once(count: int) -> None:
    hangs, runs = asyncio.Event(), 0

    async def ask_often(request: AgentRequest, session: Session, response: Response) -> None:
        nonlocal runs
        runs += 1
        for number in range(count):
            await session.run_once(f"step {number}", agent.call, number)
            await response.markdown(f"before {number}")
            answer = await response.ask_person(f"Number {number}?", choices=["a", "b"])
            await session.run_once(f"after {number}", agent.call, answer.text)
            if number not in hung:
                hung.add(number)
                hangs.set()
                await asyncio.Event().wait()
        await response.markdown("done")

    hung = set[int]()
    agent = ChangingAgent(ask_often)
    async with AgentTester(agent, policy=SLOW_BUFFER) as t:
        t.send("go")
        await t.settled()
        for number in range(count):
            hangs.clear()
            t.send("ab"[number % 2])
            await asyncio.wait_for(hangs.wait(), 10)
            await t.restart(grace_s=0)
            await t.settled()
        texts = texts_of(t)
        assert [text for text in texts if text.startswith("before")] == [f"before {number}" for number in range(count)]
        assert len([text for text in texts if text.startswith("Number")]) == count
        assert texts[-1] == "done"
        assert agent.calls == [0, "a", 1, "b", 2, "a"]
        assert runs == 1 + 2 * count
        assert await nothing_is_left(t)
        ids = ids_of(t)
        assert len(ids) == len(set(ids))


async def test_a_parked_request_is_not_reported_as_interrupted() -> None:
    async def ask(request: AgentRequest, session: Session, response: Response) -> None:
        answer = await response.ask_person("Which?", choices=["red", "blue"])
        await response.markdown(f"you took {answer.text}")

    async with AgentTester(ChangingAgent(ask), policy=Policy(rules=Rules(on_restart="report"))) as t:
        await t.say("go")
        for _ in range(3):
            await t.restart(grace_s=0)
            await t.settled()
        assert t.unread() == []
        [waiting] = await parked(t)
        assert UUID(bytes=waiting.key)
        assert await t.say("red") == ["you took red"]
        assert await nothing_is_left(t)


async def test_a_resumed_turn_that_is_cut_off_is_reported() -> None:
    hangs = asyncio.Event()

    async def ask(request: AgentRequest, session: Session, response: Response) -> None:
        await response.ask_person("Which?", choices=["red", "blue"])
        hangs.set()
        await asyncio.Event().wait()

    async with AgentTester(ChangingAgent(ask), policy=Policy(rules=Rules(on_restart="report"))) as t:
        await t.say("go")
        t.send("red")
        await asyncio.wait_for(hangs.wait(), 10)
        await t.restart(grace_s=0)
        await t.settled()
        assert t.unread() == ["I was interrupted before I could answer this. Please ask again."]
        assert await nothing_is_left(t)
