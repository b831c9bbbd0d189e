"""The channel of doors: a caller's request goes the way of a message, and its reply is fetched."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, event

from spade_coreason import AgentRequest, Response, Session
from spade_coreason.contracts.questions import QuestionState
from spade_coreason.doors.channel import DoorChannel, DoorEvent, DoorReply
from spade_coreason.doors.openai.answers import Answer
from spade_coreason.doors.unread import MAX_BYTES
from tests.support.door_agents import Desk, make_caller, read_all, run_behind_doors, texts_of
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT
from tests.support.wait import TIMEOUT_S, eventually

WEBSITE, SHOP = make_caller("website"), make_caller("shop")


class SlowPainter(Desk):
    """An agent that asks a person, and answers once it is released."""

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        answer = await response.ask_person("Which colour?")
        self.done.append(answer.text)
        await self.release.wait()
        await response.markdown("painted")


@contextmanager
def hold_second_result(has_read: threading.Event, may_go_on: threading.Event) -> Iterator[None]:
    """Hold what is read of a repeated request for the second time, in the thread that has read it, until it may go on.

    The first time its row was another one, because its question was not answered.
    """
    reads = itertools.count(1)

    def hold(*query: Any) -> None:
        if "coalesce(inbox.channel" in query[2] and next(reads) == 2:
            has_read.set()
            assert may_go_on.wait(TIMEOUT_S)

    event.listen(Engine, "after_cursor_execute", hold)
    try:
        yield
    finally:
        may_go_on.set()
        event.remove(Engine, "after_cursor_execute", hold)


async def test_a_request_is_answered_and_stored(url: str) -> None:
    desk = Desk()
    async with run_behind_doors(url, desk) as running:
        reply = await running.agent.ask(WEBSITE, {"query": "hello"}, thread="t")
        events = await read_all(reply)
        assert texts_of(events) == ["done: hello"]
        assert events[-1].type == "request.completed"
        assert reply.stored is not None
        assert await reply.stored
        assert running.doors.open_count == 0
    assert desk.seen == [("website@callers.invalid", "hello")]
    assert [request.metadata["channel"] for request in desk.requests] == ["door"]


async def test_the_pieces_of_a_stream_come_as_they_are_written(url: str) -> None:
    async with run_behind_doors(url, Desk()) as running:
        events = await read_all(await running.agent.ask(WEBSITE, {"query": "stream"}))
    assert [event.type for event in events if event.type.startswith("stream")] == [
        "stream.start",
        *["stream.chunk"] * 3,
        "stream.end",
    ]
    assert "".join(texts_of(events)) == "one two three"


async def test_a_repeated_request_runs_once_and_an_answer_is_fetched_after_a_restart(url: str) -> None:
    desk, request_id = Desk(), uuid4()
    async with run_behind_doors(url, desk) as running:
        first = await running.agent.ask(WEBSITE, {"query": "wait here"}, request_id=request_id)
        second = await running.agent.ask(WEBSITE, {"query": "wait here"}, request_id=request_id)
        fetched = await running.agent.backend.fetch(WEBSITE, request_id)
        assert fetched is not None
        assert await running.agent.requests.find_state(WEBSITE, request_id) == "running"
        desk.release.set()
        replies = await asyncio.gather(*map(read_all, (first, second, fetched)))
        assert [texts_of(events) for events in replies] == [["done: wait here"]] * 3
        assert len(desk.seen) == 1
    async with run_behind_doors(url, desk) as running:
        assert await running.agent.requests.find_state(WEBSITE, request_id) == "answered"
        again = await running.agent.ask(WEBSITE, {"query": "wait here"}, request_id=request_id)
        assert texts_of(await read_all(again)) == ["done: wait here"]
        other = await running.agent.ask(WEBSITE, {"query": "something else"}, request_id=request_id)
        [refusal] = await read_all(other)
        assert (refusal.type, refusal.data["code"]) == ("request.refused", 400)
    assert len(desk.seen) == 1


async def test_a_request_that_runs_at_a_stop_is_interrupted_and_answered_later(url: str) -> None:
    desk, request_id = Desk(), uuid4()
    async with run_behind_doors(url, desk) as running:
        reply = await running.agent.ask(WEBSITE, {"query": "wait a bit"}, request_id=request_id)
        await eventually(lambda: len(desk.seen) == 1)
    [*_, last] = await read_all(reply)
    assert last.type == "request.interrupted"
    assert last.data["request_id"] == str(request_id)
    desk.release.set()
    async with run_behind_doors(url, desk) as running:
        fetched = await running.agent.backend.fetch(WEBSITE, request_id)
        assert fetched is not None
        assert texts_of(await read_all(fetched)) == ["done: wait a bit"]


async def test_another_caller_gets_nothing_by_an_id_that_it_knows(url: str) -> None:
    request_id, user = uuid4(), WEBSITE.for_user("ada@example.org")
    async with run_behind_doors(url, Desk()) as running:
        await read_all(await running.agent.ask(user, {"query": "hello"}, request_id=request_id, thread="t"))
        for other in (SHOP, WEBSITE, WEBSITE.for_user("ben@example.org"), SHOP.for_user("ada@example.org")):
            assert await running.agent.backend.fetch(other, request_id) is None
            assert await running.agent.requests.find_state(other, request_id) is None
            assert not await running.agent.requests.cancel(other, request_id)
        assert await running.agent.backend.fetch(user, request_id) is not None


async def test_a_cancelled_request_ends_its_replies(url: str) -> None:
    desk, request_id = Desk(), uuid4()
    async with run_behind_doors(url, desk) as running:
        reply = await running.agent.ask(WEBSITE, {"query": "wait"}, request_id=request_id)
        await eventually(lambda: len(desk.seen) == 1)
        assert await running.agent.requests.cancel(WEBSITE, request_id)
        assert (await read_all(reply))[-1].type == "request.cancelled"
        await running.runtime.runner.mailboxes.wait_until_idle()
        assert await running.agent.requests.find_state(WEBSITE, request_id) == "closed"
        assert not await running.agent.requests.cancel(WEBSITE, request_id)


async def test_a_key_that_is_revoked_is_refused(url: str) -> None:
    async with run_behind_doors(url, Desk(), {"shop": ""}) as running:
        [refusal] = await read_all(await running.agent.ask(WEBSITE, {"query": "hello"}))
    assert (refusal.type, refusal.data["code"]) == ("request.refused", 403)


async def test_a_question_to_the_caller_is_answered_and_the_request_goes_on(url: str) -> None:
    request_id = uuid4()
    async with run_behind_doors(url, Desk()) as running:
        agent = running.agent
        waiting = await agent.ask(WEBSITE, {"query": "ask me"}, request_id=request_id, thread="t", waits=True)
        events = await read_all(await agent.ask(WEBSITE, {"query": "ask me"}, request_id=request_id, thread="t"))
        assert events[-1].type == "request.parked"
        assert "Which colour?" in texts_of(events)[0]
        assert await agent.requests.find_state(WEBSITE, request_id) == "waiting"
        later = await agent.backend.fetch(WEBSITE, request_id, waits=True)
        assert later is not None
        [question] = await agent.find_questions(WEBSITE, request_id)
        assert question.choices == ("red", "blue")
        assert await agent.find_questions(SHOP) == []
        assert (await agent.answer(SHOP, question, "red")).outcome == "unknown"
        assert (await agent.answer(WEBSITE, question, "green")).outcome == "unsuitable"
        assert (await agent.answer(WEBSITE, question, "blue")).outcome == "taken"
        for reply in (waiting, later):
            events = await read_all(reply)
            assert events[-1].type == "request.completed"
            assert texts_of(events)[-1].endswith("painted blue")
        assert await agent.requests.find_state(WEBSITE, request_id) == "answered"


@pytest.mark.parametrize("is_repeated", [False, True], ids=["fetched", "repeated"])
async def test_a_request_is_found_whose_question_is_answered_while_it_is_read(url: str, is_repeated: bool) -> None:
    asked: dict[str, Any] = {"payload": {"query": "ask me"}, "request_id": uuid4(), "thread": "t"}
    async with run_behind_doors(url, Desk()) as running, AsyncExitStack() as busy:
        agent, database = running.agent, running.agent.repository.database

        async def find_reply() -> list[DoorEvent]:
            fetched = await agent.ask(WEBSITE, **asked, waits=True) if is_repeated else None
            reply = fetched or await agent.backend.fetch(WEBSITE, asked["request_id"], waits=True)
            assert reply is not None
            return await read_all(reply)

        await read_all(await agent.ask(WEBSITE, **asked))
        [asked_here] = await agent.find_questions(WEBSITE)
        [question] = await agent.repository.questions.find_by_code(asked_here.code)
        for _ in range(database.backend.reader_connections):
            await busy.enter_async_context(database.backend.reader_slots)
        finding = asyncio.create_task(find_reply())
        await eventually(lambda: bool(database.backend.reader_slots._waiters))
        state = asyncio.create_task(agent.requests.find_state(WEBSITE, asked["request_id"]))
        answer = {"text": "red", "person": WEBSITE.address}
        await running.runtime.runner.control.questions.settle(question, QuestionState.ANSWERED, answer, WEBSITE.address)
        await busy.aclose()
        events = await finding
        assert texts_of(events)[-1].endswith("painted red")
        assert events[-1].type == "request.completed"
        assert await state in ("running", "answered")


async def test_a_reply_is_found_whose_turn_ends_while_it_is_read(url: str) -> None:
    desk, request_id = SlowPainter(), uuid4()
    has_read, has_ended = threading.Event(), threading.Event()
    async with run_behind_doors(url, desk) as running, AsyncExitStack() as busy:
        agent, runner = running.agent, running.runtime.runner
        database = agent.repository.database
        await read_all(await agent.ask(WEBSITE, {"query": "paint"}, request_id=request_id))
        [asked_here] = await agent.find_questions(WEBSITE)
        [question] = await agent.repository.questions.find_by_code(asked_here.code)
        for _ in range(database.backend.reader_connections):
            await busy.enter_async_context(database.backend.reader_slots)
        fetching = asyncio.create_task(agent.backend.fetch(WEBSITE, request_id, waits=True))
        await eventually(lambda: bool(database.backend.reader_slots._waiters))
        answer = {"text": "red", "person": WEBSITE.address}
        await runner.control.questions.settle(question, QuestionState.ANSWERED, answer, WEBSITE.address)
        with hold_second_result(has_read, has_ended):
            await busy.aclose()
            await eventually(has_read.is_set)
            desk.release.set()
            await runner.mailboxes.wait_until_idle()
            has_ended.set()
            reply = await fetching
        assert reply is not None
        events = await read_all(reply)
        assert (texts_of(events)[-1], events[-1].type) == ("Which colour?\n\npainted", "request.completed")


async def test_a_key_for_a_person_counts_for_them_and_has_none_of_their_data(url: str) -> None:
    caller = make_caller("ada-laptop", "ada@localhost")
    desk = Desk()
    async with run_behind_doors(url, desk, {"ada-laptop": "ada@localhost"}) as running:
        await read_all(await running.agent.ask(caller, {"query": "hello"}))
        usage = running.runtime.runner.control.quota_limit.usage_of("ada@localhost")
        assert usage.messages == 1
        [conversation] = await running.runtime.runner.repository.list_conversations(caller.address)
        assert conversation.owner == caller.address
        assert await running.runtime.runner.repository.list_conversations("ada@localhost") == []
    assert desk.seen == [(caller.address, "hello")]


async def test_a_caller_who_has_lost_access_sees_and_changes_nothing_of_before(url: str) -> None:
    request_id = uuid4()
    async with run_behind_doors(url, Desk()) as running:
        agent, access = running.agent, running.runtime.gateway.access
        await read_all(await agent.ask(WEBSITE, {"query": "ask me"}, request_id=request_id))
        [question] = await agent.find_questions(WEBSITE)
        callers, access.callers = access.callers, {}
        assert await agent.requests.find_state(WEBSITE, request_id) is None
        assert await agent.backend.fetch(WEBSITE, request_id) is None
        assert await agent.find_questions(WEBSITE) == []
        assert (await agent.answer(WEBSITE, question, "blue")).outcome == "unknown"
        assert not await agent.requests.cancel(WEBSITE, request_id)
        access.callers = callers
        assert await agent.requests.find_state(WEBSITE, request_id) == "waiting"


async def test_a_fetch_that_is_cancelled_leaves_no_reply_open(url: str) -> None:
    request_id = uuid4()
    async with run_behind_doors(url, Desk()) as running, AsyncExitStack() as busy:
        agent, database = running.agent, running.agent.repository.database
        await read_all(await agent.ask(WEBSITE, {"query": "hello"}, request_id=request_id))
        for _ in range(database.backend.reader_connections):
            await busy.enter_async_context(database.backend.reader_slots)
        fetching = asyncio.create_task(agent.backend.fetch(WEBSITE, request_id))
        await eventually(lambda: bool(database.backend.reader_slots._waiters))
        fetching.cancel()
        await asyncio.wait({fetching})
        assert fetching.cancelled()
        assert running.doors.open_count == 0


async def test_who_waits_at_another_address_is_told_if_the_answer_cannot_be_read(url: str) -> None:
    desk, request_id = SlowPainter(), uuid4()
    async with run_behind_doors(url, desk) as running:
        agent = running.agent
        await read_all(await agent.ask(WEBSITE, {"query": "paint"}, request_id=request_id))
        later = await agent.backend.fetch(WEBSITE, request_id, waits=True)
        assert later is not None
        [question] = await agent.find_questions(WEBSITE)
        assert (await agent.answer(WEBSITE, question, "blue")).outcome == "taken"
        await eventually(lambda: desk.done == ["blue"])
        running.runtime.gateway.access.callers = {}
        desk.release.set()
        events = await read_all(later)
        assert [event.type for event in events] == ["request.parked", "request.interrupted"]
        assert running.doors.open_count == 0


@pytest.mark.parametrize("query", ["hello", "report"])
async def test_an_answer_that_could_not_be_stored_comes_once_the_database_takes_it(
    query: str, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    """A caller is told that what the first run has sent does not count."""
    expected_errors("the file is missing")
    file, away, desk = tmp_path / "platform.db", tmp_path / "away.db", Desk()
    async with run_behind_doors(f"sqlite+aiosqlite:///{file}", desk) as running:
        reply = await running.agent.ask(WEBSITE, {"query": f"{query} wait" if query == "hello" else query})
        assert reply.stored is not None
        assert await reply.stored
        await eventually(lambda: len(desk.requests) == 1)
        file.rename(away)
        desk.release.set()
        await eventually(lambda: any("cannot store a request" in line for line in expected_errors.logged))
        away.rename(file)
        events, answer = await read_all(reply), Answer()
        for event in events:
            answer.add(event)
    expected_errors("cannot store a request")
    assert len(desk.requests) == 2
    assert answer.text == ("one two" if query == "report" else "done: hello wait")
    assert [event.type for event in events].count("request.repeated") == (query == "report")
    assert events[-1].type == "request.completed"


async def test_only_what_waits_to_be_read_counts_for_the_limit_of_a_key() -> None:
    third = MAX_BYTES // 2 // 3

    def open_reply() -> DoorReply:
        return DoorReply(DoorChannel(AGENT), WEBSITE, uuid4(), waits=False)

    reply, other, block = open_reply(), open_reply(), DoorEvent("block.markdown", {})
    reply.put(block, third)
    for _ in range(4):
        reply.put(block, third)
        assert (await anext(reply)).type == "block.markdown"
        reply.free()
    other.put(block, third)
    other.put(block, third)
    other.put(block, third)  # the other reply has a third too
    assert [event.type for event in await read_all(other)] == ["request.interrupted"]
    reply.put(block, third)
    assert [await anext(reply), await anext(reply)] == [block, block]
    reply.put(block, third)
    reply.put(block, third)  # what was read counts until it is freed
    assert [event.type for event in await read_all(reply)] == ["request.interrupted"]
