"""Repeated requests of programs: one run, however often they are sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, PeerEvent, Response, Session, agent, command
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError
from spade_coreason.runtime import OpenRequests, collect_answer
from spade_coreason.testing import Policy, Rules
from spade_coreason.xmpp.codec.cloud_events import retraction_stanza
from tests.support.clock import Clock
from tests.support.errors import ExpectedErrors
from tests.support.wait import TIMEOUT_S

AGENT, PROGRAM, OPERATOR = "agent@localhost", "program@localhost", "operator@localhost"


def ask_for(payload: Mapping[str, Any] | str = "one", **metadata: Any) -> AgentRequest:
    content = {"query": payload} if isinstance(payload, str) else dict(payload)
    return AgentRequest(session_id=uuid4(), payload=content, metadata=metadata)


class Counter:
    """Counts its runs, and answers in all forms."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, request: AgentRequest, session: Session, response: Response) -> None:
        self.runs += 1
        query = request.payload.get("query")
        if query == "raise":
            raise RuntimeError("secret")
        if query == "report":
            await response.error("It does not work.", {"secret": 1})
            return
        if query == "end":
            session.end()
        await response.markdown(f"run {self.runs}")
        await response.data({"run": self.runs}, title="Run", view_hint="KEY_VALUE")
        stream = await response.create_stream()
        await stream.write("and ")
        await stream.write("more")


def counting() -> tuple[Counter, Any]:
    counter = Counter()

    @agent
    async def counted(request: AgentRequest, session: Session, response: Response) -> None:
        await counter(request, session, response)

    return counter, counted


@pytest.mark.parametrize("query", ["one", "end"])
@pytest.mark.parametrize("thread", [None, "another thread"])
async def test_a_repeated_request_gets_the_stored_answer_without_a_run(thread: str | None, query: str) -> None:
    counter, counted = counting()
    async with AgentTester(counted) as t:
        request = ask_for(query)
        first = await t.ask(request)
        await t.settled()
        second = await t.ask(request, thread=thread)
        await t.restart()
        third = await t.ask(request, thread=thread)
        assert counter.runs == 1
        assert (await t.conversations())[0].interaction_count == 1
    assert first.text == second.text == third.text == "run 1\n\nand more"
    assert first.data == second.data == third.data
    assert first.conversation_id == second.conversation_id == third.conversation_id
    assert [event.type for event in second.events] == [
        "request.repeated",
        "block.markdown",
        "block.data",
        "request.completed",
    ]
    assert second.events[-1].data == first.events[-1].data


@pytest.mark.parametrize("query", ["raise", "report"])
async def test_a_repeated_request_that_failed_fails_in_the_same_way_without_a_run(
    query: str, expected_errors: ExpectedErrors
) -> None:
    if query == "raise":
        expected_errors("RuntimeError: secret")
    counter, counted = counting()
    failures = []
    async with AgentTester(counted) as t:
        request = ask_for(query)
        for _ in range(2):
            events: list[PeerEvent] = []
            with pytest.raises(PeerFailedError) as error:
                await collect_into(events, t.stream(request))
            failures.append((error.value.code, str(error.value), events[-1].data, events[-2].data["user_message"]))
            assert "secret" not in str(events)
            await t.settled()
        assert counter.runs == 1
    assert failures[0] == failures[1]


async def test_the_same_id_with_other_content_is_refused_with_the_reason() -> None:
    counter, counted = counting()
    async with AgentTester(counted) as t:
        request = ask_for("one")
        await t.ask(request)
        for other in (
            request.model_copy(update={"payload": {"query": "two"}}),
            request.model_copy(update={"metadata": {"capability": "another"}}),
        ):
            with pytest.raises(PeerRefusedError, match="This request id was used for another request before"):
                await t.ask(other)
        assert (await t.ask(request.model_copy(update={"metadata": {"note": "other metadata do not count"}}))).text
        assert counter.runs == 1


async def test_the_id_of_another_sender_means_nothing() -> None:
    counter, counted = counting()
    async with AgentTester(counted) as t:
        request = ask_for("one")
        mine, theirs = await t.ask(request, user=PROGRAM), await t.ask(request, user="mallory@localhost")
        assert (mine.text[:5], theirs.text[:5], counter.runs) == ("run 1", "run 2", 2)


class Slow:
    """Streams a piece, waits until it may go on, and streams another."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.runs = 0

    def build(self) -> Any:
        @agent
        async def slow(request: AgentRequest, session: Session, response: Response) -> None:
            self.runs += 1
            stream = await response.create_stream()
            await stream.write("first, ")
            await self.may_go_on.wait()
            await stream.write("second")

        return slow


async def next_chunk(events: Any) -> str:
    async for event in events:
        if event.type == "stream.chunk":
            return str(event.data["chunk"])
    raise AssertionError("no chunk")


@pytest.mark.parametrize("thread", [None, "another thread"])
@pytest.mark.parametrize("resource", ["test", "another device"])
async def test_a_repeated_request_attaches_to_the_turn_that_runs(resource: str, thread: str | None) -> None:
    slow = Slow()
    async with AgentTester(slow.build(), user=PROGRAM) as t:
        request = ask_for()
        first = t.stream(request)
        assert await next_chunk(first) == "first, "
        second = t.stream(request, user=f"{PROGRAM}/{resource}", thread=thread)
        async with asyncio.timeout(TIMEOUT_S):
            assert await next_chunk(second) == "first, "
            slow.may_go_on.set()
            rest = [event async for event in second]
        assert [event.data["chunk"] for event in rest if event.type == "stream.chunk"] == ["second"]
        assert rest[-1].type == "request.completed"
        assert slow.runs == 1


async def test_a_repeated_request_attaches_while_the_first_one_waits_for_its_turn() -> None:
    slow = Slow()
    async with AgentTester(slow.build(), user=PROGRAM) as t:
        ahead = t.stream(ask_for("ahead"))
        assert await next_chunk(ahead) == "first, "
        request = ask_for("waiting")
        asking = [asyncio.create_task(collect(t.stream(request, user=f"{PROGRAM}/{name}"))) for name in ("a", "b", "b2")]
        await t.delivered()
        slow.may_go_on.set()
        answers = await asyncio.gather(*asking)
        assert [answer.text for answer in answers] == ["first, second"] * 3
        assert slow.runs == 2


async def collect_into(collected: list[PeerEvent], events: AsyncIterator[PeerEvent]) -> None:
    async for event in events:
        collected.append(event)


async def collect(events: Any) -> Any:
    return collect_answer("agent@localhost", [event async for event in events])


async def test_a_repeated_request_is_answered_after_a_restart_in_the_middle_of_its_turn() -> None:
    slow = Slow()
    async with AgentTester(slow.build(), user=PROGRAM) as t:
        request = ask_for()
        first = t.stream(request)
        assert await next_chunk(first) == "first, "
        await t.restart(grace_s=0)
        second = asyncio.create_task(collect(t.stream(request, user=f"{PROGRAM}/b")))
        await t.delivered()
        slow.may_go_on.set()
        assert (await second).text == "first, second"
        assert [event.data["chunk"] async for event in first if event.type == "stream.chunk"] == ["second"]
        assert slow.runs == 2  # the first run was interrupted


@pytest.mark.parametrize("thread", [None, "another thread"])
async def test_all_who_attached_to_a_turn_get_its_answer_after_a_restart_in_the_middle(thread: str | None) -> None:
    slow = Slow()
    async with AgentTester(slow.build(), user=PROGRAM) as t:
        request = ask_for()
        first = t.stream(request)
        second = t.stream(request, user=f"{PROGRAM}/b", thread=thread)
        assert await next_chunk(first) == "first, "
        assert await next_chunk(second) == "first, "
        await t.restart(grace_s=0)
        third = t.stream(request, user=f"{PROGRAM}/c", thread=thread)
        assert await next_chunk(third) == "first, "
        slow.may_go_on.set()
        for events in (first, second, third):
            assert (await collect(events)).text.endswith("second")  # some have heard the first piece before
        await t.settled()
        assert slow.runs == 2
        assert await t.runners[AGENT].repository.inbox.load_pending() == []
        await t.restart()
        assert (await t.ask(request, user=f"{PROGRAM}/d")).text == "first, second"
        assert slow.runs == 2


@pytest.mark.parametrize("query", ["one", "another question with the same id"])
async def test_a_repeated_request_that_waits_at_a_restart_gets_its_answer_after_it(query: str) -> None:
    slow = Slow()
    slow.may_go_on.set()
    async with AgentTester(slow.build(), user=PROGRAM) as t:
        request = ask_for("one")
        await t.ask(request, thread="same")
        slow.may_go_on.clear()
        assert await next_chunk(t.stream(ask_for("ahead"), thread="same")) == "first, "
        again = request.model_copy(update={"payload": {"query": query}})
        waiting = asyncio.create_task(collect(t.stream(again, thread="same", user=f"{PROGRAM}/b")))
        await t.delivered()
        await t.restart(grace_s=0)
        slow.may_go_on.set()
        if query == "one":
            assert (await waiting).text == "first, second"
        else:
            with pytest.raises(PeerRefusedError, match="used for another request"):
                await waiting
        assert slow.runs == 3  # the turn ahead was interrupted, and ran again


async def test_a_request_that_was_taken_back_begins_anew() -> None:
    slow = Slow()
    async with AgentTester(slow.build(), user=PROGRAM) as t:
        request = ask_for()
        assert await next_chunk(t.stream(request)) == "first, "
        t.send_stanza(retraction_stanza(t.jid, str(request.request_id)), user=PROGRAM)
        await t.settled()
        slow.may_go_on.set()
        assert (await t.ask(request, user=f"{PROGRAM}/b")).text == "first, second"
        assert slow.runs == 2


async def test_after_forget_a_repeated_request_gets_no_answer_and_no_run() -> None:
    counter, counted = counting()
    async with AgentTester(counted, user=PROGRAM) as t:
        request = ask_for()
        await t.ask(request)
        await t.settled()
        await t.say("/forget me yes")
        with pytest.raises(PeerFailedError, match="is not stored any more") as error:
            await t.ask(request)
        assert (error.value.code, counter.runs) == (404, 1)


async def test_after_seven_days_a_repeated_request_is_a_new_one() -> None:
    counter, counted = counting()
    clock = Clock()
    async with AgentTester(counted, clock=clock) as t:
        request = ask_for()
        await t.ask(request)
        await t.settled()
        clock.advance(days=6)
        await t.ask(request)
        assert counter.runs == 1
        clock.advance(days=2)
        await t.ask(request)
        assert counter.runs == 2


async def test_a_request_that_was_refused_is_decided_on_anew() -> None:
    counter, counted = counting()
    clock, rules = Clock(), Rules(max_interactions=1)
    async with AgentTester(counted, policy=Policy(rules=rules), clock=clock) as t:
        await t.ask(ask_for("one"), thread="x")
        request = ask_for("two")
        for _ in range(2):
            with pytest.raises(PeerRefusedError):
                await t.ask(request, thread="x")
        clock.advance(hours=1)
        assert (await t.ask(request, thread="x")).text.startswith("run 2")
        assert counter.runs == 2


async def test_a_repeated_answer_takes_the_place_of_what_was_heard_before() -> None:
    heard = [
        PeerEvent("stream.start", {"stream_id": "s"}),
        PeerEvent("stream.chunk", {"stream_id": "s", "seq": 0, "chunk": "the beg"}),
        PeerEvent("block.data", {"id": "d", "data": {"a": 1}}),
        PeerEvent("request.repeated", {}),
        PeerEvent("block.markdown", {"id": "b", "content": "the beginning and the end"}),
        PeerEvent("request.completed", {"conversation_id": "c"}),
    ]
    answer = collect_answer("agent@localhost", heard)
    assert (answer.text, answer.data) == ("the beginning and the end", ())
    assert OpenRequests().dropped == 0


async def test_a_repeated_command_does_not_run_again() -> None:
    class Lottery:
        """Draws numbers."""

        manifest = AgentDefinition.simple("lottery")
        runs = 0

        @command("draw", "Draw a number")
        async def draw(self, session: Session) -> str:
            self.runs += 1
            return f"number {self.runs}"

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None: ...

    lottery = Lottery()
    async with AgentTester(lottery) as t:
        request = ask_for("/draw", command=True)
        assert (await t.ask(request)).text == "number 1"
        await t.restart()
        with contextlib.suppress(PeerFailedError):  # its answer is there until the server has acknowledged it
            assert (await t.ask(request)).text == "number 1"
        assert lottery.runs == 1


async def test_more_than_sixteen_further_addresses_are_refused_with_the_reason() -> None:
    slow = Slow()
    async with AgentTester(slow.build(), user=PROGRAM) as t:
        ahead = t.stream(ask_for("ahead"))
        assert await next_chunk(ahead) == "first, "
        request = ask_for("waiting")
        asking = [asyncio.create_task(collect(t.stream(request, user=f"{PROGRAM}/{number}"))) for number in range(17)]
        await t.delivered()
        with pytest.raises(PeerRefusedError, match="Too many addresses wait for the answer"):
            await t.ask(request, user=f"{PROGRAM}/17")
        slow.may_go_on.set()
        assert [answer.text for answer in await asyncio.gather(*asking)] == ["first, second"] * 17
        assert (await t.ask(request, user=f"{PROGRAM}/17")).text == "first, second"
        assert slow.runs == 2


async def test_a_request_that_forget_has_dropped_from_the_queue_is_answered_when_it_is_repeated() -> None:
    counter, counted = counting()
    async with AgentTester(counted, user=PROGRAM, policy=Policy(operators=frozenset({OPERATOR}))) as t:
        await t.say("/pause", user=OPERATOR)
        request = ask_for("one")
        waiting = t.stream(request, thread="paused")
        first = asyncio.create_task(next_chunk(waiting))
        await t.delivered()
        await t.say("/forget me yes")
        await t.say("/resume", user=OPERATOR)
        assert len(t.runners[AGENT].mailboxes.program_requests) == 0
        with pytest.raises(PeerFailedError, match="is not stored any more"):
            await t.ask(request, thread="paused", user=f"{PROGRAM}/b")
        assert counter.runs == 0
        first.cancel()
