"""Misbehaving agents: their failures stay in their own turn."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from spade_coreason import AgentRequest, AgentTester, ResponseHandler, Session, SessionHandle, StreamHandle, agent
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.testing import PlatformLimits, Policy, Rules, RunnerTimings
from tests.support.errors import ExpectedErrors
from tests.support.wait import TIMEOUT_S

Assist = Callable[[ResponseHandler], Awaitable[None]]


async def raises(response: ResponseHandler) -> None:
    await response.markdown("begun")
    raise ZeroDivisionError("a secret")


async def exits(response: ResponseHandler) -> None:
    sys.exit("a secret")


async def raises_keyboard_interrupt(response: ResponseHandler) -> None:
    raise KeyboardInterrupt("a secret")


async def exits_in_a_thread(response: ResponseHandler) -> None:
    await asyncio.to_thread(sys.exit, "a secret")


async def interrupts_in_a_thread(response: ResponseHandler) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt("a secret")

    await asyncio.to_thread(interrupt)


async def recurses(response: ResponseHandler) -> None:
    await recurses(response)


async def uses_up_the_memory(response: ResponseHandler) -> None:
    raise MemoryError("a secret")


async def closes_the_event_loop(response: ResponseHandler) -> None:
    asyncio.get_running_loop().close()


async def is_cancelled(response: ResponseHandler) -> None:
    raise asyncio.CancelledError("a secret")


class UncatchableError(BaseException):
    """An error that no `except Exception` catches."""


async def raises_base_exception(response: ResponseHandler) -> None:
    raise UncatchableError("a secret")


async def raises_generator_exit(response: ResponseHandler) -> None:
    raise GeneratorExit("a secret")


async def raises_base_exception_group(response: ResponseHandler) -> None:
    raise BaseExceptionGroup("secrets", [UncatchableError("a secret")])


def cancel_current_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel("a secret")


async def cancels_itself(response: ResponseHandler) -> None:
    cancel_current_task()
    await asyncio.Event().wait()


async def cancels_itself_and_raises(response: ResponseHandler) -> None:
    cancel_current_task()
    raise ValueError("a secret")


async def raises_a_timeout(response: ResponseHandler) -> None:
    raise TimeoutError("a secret")


async def raises_a_group(response: ResponseHandler) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises(response))


async def sends_non_text(response: ResponseHandler) -> None:
    await response.markdown(7)  # type: ignore[arg-type]  # the point of the test


async def sends_non_json(response: ResponseHandler) -> None:
    await response.data({"a": object()})


def misbehaving(assist: Assist) -> Any:
    @agent(name="misbehaving")
    async def misbehave(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "go":
            await assist(response)
        else:
            await response.markdown("still here")

    return misbehave


FAILURES: list[Assist] = [
    raises,
    exits,
    raises_keyboard_interrupt,
    exits_in_a_thread,
    interrupts_in_a_thread,
    recurses,
    uses_up_the_memory,
    closes_the_event_loop,
    is_cancelled,
    raises_base_exception,
    raises_generator_exit,
    raises_base_exception_group,
    cancels_itself,
    cancels_itself_and_raises,
    raises_a_timeout,
    raises_a_group,
    sends_non_text,
    sends_non_json,
]


@pytest.mark.parametrize("assist", FAILURES)
async def test_a_failing_agent_reports_one_incident_and_keeps_working(assist: Assist, expected_errors: ExpectedErrors) -> None:
    expected_errors("agent@localhost: incident")
    async with AgentTester(misbehaving(assist)) as t:
        with pytest.raises(PeerFailedError, match=r"went wrong on my side \(incident") as error:
            await t.ask("go")
        assert error.value.code == 500
        assert "secret" not in str(error.value)
        texts = await t.say("go")
        assert texts[-1].startswith("Something went wrong on my side (incident ")
        assert sum("incident" in text for text in texts) == 1
        assert await t.say("hello") == ["still here"]
        assert (await t.ask("hello")).text == "still here"
        # Nothing of it waits for the next start.
        await t.restart()
        await t.settled()
        assert t.unread() == []


async def test_an_agent_that_cancels_its_own_task_after_its_reply_has_answered() -> None:
    async def cancels_itself_at_the_end(response: ResponseHandler) -> None:
        await response.markdown("an answer")
        cancel_current_task()

    async with AgentTester(misbehaving(cancels_itself_at_the_end)) as t:
        assert (await t.ask("go")).text == "an answer"
        assert await t.say("go") == ["an answer"]
        assert await t.say("hello") == ["still here"]


async def test_hanging_ends_with_the_assist_timeout(expected_errors: ExpectedErrors) -> None:
    expected_errors("assist took longer than 0.05 s")

    async def hangs(response: ResponseHandler) -> None:
        await asyncio.Event().wait()

    async with AgentTester(misbehaving(hangs), policy=Policy(rules=Rules(assist_timeout_s=0.05))) as t:
        with pytest.raises(PeerFailedError, match=r"could not finish this within 0\.05 s") as error:
            await t.ask("go")
        assert error.value.code == 504
        assert await t.say("hello") == ["still here"]


async def test_an_agent_that_swallows_its_cancellation_does_not_block_its_conversation(expected_errors: ExpectedErrors) -> None:
    expected_errors("assist took longer than 0.5 s")

    async def never_ends(response: ResponseHandler) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async with AgentTester(misbehaving(never_ends), policy=Policy(rules=Rules(assist_timeout_s=0.5))) as t:
        with pytest.raises(PeerFailedError, match=r"could not finish this within 0\.5 s"):
            await t.ask("go")
        assert await t.say("hello") == ["still here"]


async def test_an_agent_that_blocks_the_event_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    @agent
    async def blocking_agent(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        time.sleep(0.1)  # noqa: ASYNC251 - as agents do
        await response.markdown("good morning")

    async with AgentTester(blocking_agent, policy=Policy(timings=RunnerTimings(blocked_s=0.05))) as t:
        assert await t.say("hi") == ["good morning"]
    said = r"agent@localhost blocked the event loop for \d\.\d s; run blocking code with asyncio\.to_thread"
    assert re.search(said, caplog.text)


async def test_emitting_after_the_turn_is_an_error_of_the_agent() -> None:
    late: asyncio.Queue[type[BaseException] | None] = asyncio.Queue()
    over = asyncio.Event()
    tasks = []

    async def emits_late(response: ResponseHandler) -> None:
        stream = await response.create_stream()
        await stream.write("in time")

        async def emit() -> None:
            await over.wait()
            assert not stream.is_active
            calls = (
                response.markdown("late"),
                response.thought("late"),
                response.data({}),
                response.error("late"),
                response.create_stream(),
                stream.write("late"),
                response.log("INFO", "late"),
            )
            for call in calls:
                try:
                    await call
                except RuntimeError:
                    late.put_nowait(RuntimeError)
                else:
                    late.put_nowait(None)
            await stream.close()
            await stream.abort("late")

        tasks.append(asyncio.create_task(emit()))

    async with AgentTester(misbehaving(emits_late)) as t:
        assert (await t.ask("go")).text == "in time"
        over.set()
        assert [await late.get() for _ in range(7)] == [RuntimeError] * 7
        await asyncio.gather(*tasks)
        assert await t.say("hello") == ["still here"]


@pytest.mark.parametrize("how", ["a block", "a stream"])
async def test_an_answer_of_5_mb_arrives_whole(how: str) -> None:
    text = 'é<&>"\\ ' * (5_000_000 // 12)

    async def floods(response: ResponseHandler) -> None:
        if how == "a block":
            await response.markdown(text)
            return
        stream = await response.create_stream()
        await stream.write(text)

    async with AgentTester(misbehaving(floods), policy=Policy(limits=PlatformLimits(file_over_bytes=0))) as t:
        assert (await t.ask("go")).text == text.strip()
        parts = await t.say("go")
        assert len(parts) > 50
        assert "".join(parts).replace(" ", "") == text.replace(" ", "")
        assert await t.say("hello") == ["still here"]


async def test_characters_that_xml_forbids_are_removed() -> None:
    async def sends_control_characters(response: ResponseHandler) -> None:
        await response.markdown("a\x00\x1bb\ud800c")

    async with AgentTester(misbehaving(sends_control_characters)) as t:
        assert await t.say("go") == ["abc"]
        assert (await t.ask("go")).text.startswith("a\x00\x1bb")  # JSON can say what XML cannot
        assert await t.say("hello") == ["still here"]


# Streams


async def test_a_stream_that_is_never_closed_is_closed() -> None:
    async def leaves_its_stream_open(response: ResponseHandler) -> None:
        await (await response.create_stream()).write("text")

    async with AgentTester(misbehaving(leaves_its_stream_open)) as t:
        answer = await t.ask("go")
        assert [event.type for event in answer.events][-2:] == ["stream.end", "request.completed"]
        assert await t.say("go") == ["text"]


async def test_a_stream_of_a_turn_that_raises_is_aborted(expected_errors: ExpectedErrors) -> None:
    expected_errors("RuntimeError: as told")

    async def raises_in_a_stream(response: ResponseHandler) -> None:
        await (await response.create_stream()).write("text ")
        raise RuntimeError("as told")

    async with AgentTester(misbehaving(raises_in_a_stream)) as t:
        events = []
        try:
            async for event in t.stream("go"):
                events.append(event.type)
        except PeerFailedError:
            events.append("raised")
        assert events == ["stream.start", "stream.chunk", "stream.abort", "block.error", "request.failed", "raised"]
        said = await t.say("go")
        assert said[0] == "text… (interrupted: the turn failed)"
        assert "incident" in said[1]


async def test_streams_interleave_and_aborting_one_leaves_the_others() -> None:
    async def interleaves(response: ResponseHandler) -> None:
        one, two = await response.create_stream("one"), await response.create_stream("two")
        assert isinstance(one, StreamHandle)
        await one.write("a ")
        await two.write("b ")
        await one.write("c")
        await one.abort("enough")
        for ended in (one.close(), one.abort("twice")):
            await ended
        with pytest.raises(RuntimeError):
            await one.write("late")
        await two.write("d")
        await two.close()

    async with AgentTester(misbehaving(interleaves)) as t:
        answer = await t.ask("go")
        assert answer.text == "a c\n\nb d"
        assert answer.events[-1].type == "request.completed"
        assert await t.say("go") == ["a c… (interrupted: enough)", "b d"]


async def test_the_ids_of_one_reply_differ_and_the_chunks_are_numbered() -> None:
    async def sends_chunks(response: ResponseHandler) -> None:
        stream = await response.create_stream()
        for number in range(5):
            await stream.write(str(number))
        await response.markdown("block")

    async with AgentTester(misbehaving(sends_chunks)) as t:
        events = (await t.ask("go")).events
        assert [event.data["seq"] for event in events if event.type == "stream.chunk"] == list(range(5))
        ids = [
            event.data.get("id") or event.data["stream_id"]
            for event in events
            if event.type in ("stream.start", "block.markdown")
        ]
        assert len(set(ids)) == 2


# What stays of a turn that failed


async def test_a_failed_turn_is_in_the_history_and_its_variables_are_kept(expected_errors: ExpectedErrors) -> None:
    expected_errors("RuntimeError: as told")

    @agent
    async def failing(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if past := await session.history():
            assert past[0].output["error"]["user_message"].startswith("Something went wrong")
            await response.markdown(await session.get("v"))
            return
        await session.store("v", "stored before it failed")
        raise RuntimeError("as told")

    async with AgentTester(failing) as t:
        with pytest.raises(PeerFailedError):
            await t.ask("x")
        await t.restart()
        assert (await t.ask("y")).text == "stored before it failed"


async def test_the_details_of_an_error_stay_in_the_process_and_in_the_history() -> None:
    async def reports(response: ResponseHandler) -> None:
        await response.error("out of order", {"secret": "s3cret"}, recoverable=True)

    async with AgentTester(misbehaving(reports)) as t:
        with pytest.raises(PeerFailedError) as error:
            await t.ask("go")
        assert error.value.problem == "reports: out of order"
        assert "s3cret" not in str(error.value)
        assert await t.say("go") == ["out of order"]
        (turn, _) = await t.runners[t.jid].repository.turns.load_history(
            (await t.runners[t.jid].repository.list_conversations())[0].id, 2
        )
        assert "s3cret" in turn


async def test_an_agent_that_swallows_its_cancellation_does_not_hold_up_the_stop(
    expected_errors: ExpectedErrors,
) -> None:
    expected_errors("a turn of tester@localhost ignores its cancellation, and is abandoned")
    has_begun, is_cancelled = asyncio.Event(), asyncio.Event()

    async def never_ends(response: ResponseHandler) -> None:
        has_begun.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                is_cancelled.set()

    async with AgentTester(misbehaving(never_ends)) as t:
        t.send("go")
        async with asyncio.timeout(TIMEOUT_S):
            await has_begun.wait()
            await t.restart(grace_s=0)
        assert is_cancelled.is_set()


async def test_a_job_that_swallows_its_cancellation_does_not_hold_up_the_stop(expected_errors: ExpectedErrors) -> None:
    expected_errors("a turn of tester@localhost ignores its cancellation, and is abandoned")
    has_begun = asyncio.Event()

    @agent
    async def digger(request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        if "schedule" not in request.metadata:
            await session.later({"query": "dig"})
            return
        has_begun.set()
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async with AgentTester(digger) as t:
        t.send("go")
        async with asyncio.timeout(TIMEOUT_S):
            await has_begun.wait()
            await t.restart(grace_s=0)
