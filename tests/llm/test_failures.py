"""Failing model servers and tools: the error is one clear line, the agent stays up, and nothing is left running."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from spade_coreason import AgentDefinition, AgentTester, ConfigError
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.llm.agent import LLMAgent
from spade_coreason.testing import FakeModel, Policy, Rules, tool_call
from tests.llm.test_agent import helper_manifest, run_helper_agent
from tests.support.chat_completions import (
    Answer,
    CompletionStream,
    broken_answer,
    error_answer,
    message_contents,
    text_answer,
    tool_call_answer,
)
from tests.support.databases import SQLITE
from tests.support.errors import ExpectedErrors
from tests.support.llm_agent import definition_with_output
from tests.support.profiling import count_calls
from tests.support.wait import TIMEOUT_S, eventually


@asynccontextmanager
async def no_leftovers() -> AsyncIterator[None]:
    """Wait in the end until the tasks and threads are those from before."""
    before = asyncio.all_tasks()
    yield
    await eventually(lambda: asyncio.all_tasks() <= before)
    await eventually(lambda: not [one for one in threading.enumerate() if one.name == "tool"])


def tool_call_fragments(*fragments: dict[str, Any], finish: str = "tool_calls") -> Answer:
    """Tool calls in exactly these fragments."""

    async def answer(wire: CompletionStream) -> None:
        for fragment in fragments:
            await wire.delta(tool_calls=[fragment])
        await wire.done(finish)

    return answer


def fragment(arguments: str | None = None, name: Any = None, **more: Any) -> dict[str, Any]:
    return {**more, "function": {"name": name, "arguments": arguments}}


TEA, MILK = '{"query": "tea"}', '{"query": "milk"}'


@pytest.mark.parametrize(
    ("fragments", "queries"),
    [
        pytest.param(
            [fragment(TEA, "recall", index=1, id="b"), fragment(MILK, "recall", index=0, id="a")], [TEA, MILK], id="order"
        ),
        pytest.param([fragment(TEA[:5], index=0, id="a"), fragment(TEA[5:], "recall", index=0)], [TEA], id="the name last"),
        pytest.param([fragment(TEA, "recall"), fragment(MILK, "recall")], [TEA, MILK], id="no index and no id"),
        pytest.param(
            [fragment(TEA[:5], "recall", index=0, id="a"), fragment(TEA[5:], index=0, id="b")],
            [TEA],
            id="an id for each fragment",
        ),
        pytest.param(
            [fragment(TEA[:5], "recall", index=0, id="a"), fragment(TEA[5:], "recall", index=0, id="a")],
            [TEA],
            id="the name in each fragment",
        ),
        pytest.param(
            [
                fragment(TEA[:5], "recall", index=0, id="a"),
                fragment(MILK[:5], "recall", index=0, id="b"),
                fragment(TEA[5:], index=0, id="a"),
                fragment(MILK[5:], index=0, id="b"),
            ],
            [TEA, MILK],
            id="one index, by turns",
        ),
        pytest.param(
            [fragment(TEA, "recall", index=0, id="a"), fragment(MILK, "recall", index=1, id="a")],
            [TEA, MILK],
            id="one id for two",
        ),
    ],
)
async def test_calls_are_assembled_from_fragments_as_servers_send_them(
    fragments: list[dict[str, Any]], queries: list[str]
) -> None:
    async with run_helper_agent(tool_call_fragments(*fragments), text_answer("Done.")) as (server, t):
        assert (await t.ask("tea or milk?")).text == "Done."
    said = next(message for message in server.requests[1]["messages"] if message.get("tool_calls"))["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in said] == [json.loads(query) for query in queries]
    results = [message for message in server.requests[1]["messages"] if message["role"] == "tool"]
    assert [one["content"] for one in results] == ["Nothing was found."] * len(queries)
    assert len({call["id"] for call in said}) == len(queries)
    assert [one["tool_call_id"] for one in results] == [call["id"] for call in said]


async def test_a_call_with_a_missing_or_invalid_name_is_repeated_with_a_valid_one() -> None:
    wanted = tool_call_fragments(fragment("{}", index=0, id="a"), fragment("{}", "no such\ntool" + "!" * 99, index=1, id="b"))
    async with run_helper_agent(wanted, text_answer("Sorry.")) as (server, t):
        assert (await t.ask("go")).text == "Sorry."
    said = next(message for message in server.requests[1]["messages"] if message.get("tool_calls"))["tool_calls"]
    assert [call["function"]["name"] for call in said] == ["unknown", "no_such_tool_"]
    assert all("there is no tool" in one for one in message_contents(server.requests[1], "tool"))


async def test_of_two_thousand_calls_only_as_many_as_the_limit_are_run() -> None:
    many = tool_call_fragments(*(fragment("{}", f"tool{number}", index=number, id=f"id{number}") for number in range(2_000)))
    async with run_helper_agent(many, text_answer("Sorry.")) as (server, t):
        assert (await t.ask("go", timeout=TIMEOUT_S)).text == "Sorry."
    results = message_contents(server.requests[1], "tool")
    assert len(results) == 17
    assert results[-1] == "error: not called; 16 calls at once is the limit"


def _exits_process() -> str:
    """Ends the process."""
    raise SystemExit(3)


async def _exits_process_async() -> str:
    """Ends the process."""
    raise SystemExit(3)


async def _raises_keyboard_interrupt() -> str:
    """Raise what a Ctrl-C would raise."""
    raise KeyboardInterrupt


async def _raises_cancelled_error() -> str:
    """Raise CancelledError without a cancellation."""
    raise asyncio.CancelledError("told to")


def _raises_generator_exit() -> str:
    """Raise a BaseException that is no Exception."""
    raise GeneratorExit("told to")


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no word")


def _raises_unprintable_error() -> str:
    """Raise an error that cannot be converted to a text."""
    raise _UnprintableError


async def test_a_tool_that_raises_anything_ends_neither_the_process_nor_the_turn() -> None:
    tools = [
        _exits_process,
        _exits_process_async,
        _raises_keyboard_interrupt,
        _raises_cancelled_error,
        _raises_generator_exit,
        _raises_unprintable_error,
    ]
    async with (
        no_leftovers(),
        run_helper_agent(tool_call_answer(*((tool.__name__, {}) for tool in tools)), text_answer("Sorry."), tools=tools) as (
            server,
            t,
        ),
    ):
        assert (await t.ask("go")).text == "Sorry."
        assert (await t.ask("still there?")).text == "Sorry."
    results = message_contents(server.requests[1], "tool")
    kinds = ["SystemExit", "SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit", "_UnprintableError"]
    assert all(one.startswith("error: ") and kind in one for one, kind in zip(results, kinds, strict=True))


async def test_a_tool_that_ignores_cancellation_does_not_delay_the_answer() -> None:
    released, refused = asyncio.Event(), []

    async def ignores_cancellation() -> str:
        """Stays whatever happens."""
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                refused.append(True)
        return ""

    limits = {"tool_timeout_s": 0.1}
    async with (
        no_leftovers(),
        run_helper_agent(
            tool_call_answer(("ignores_cancellation", {})), text_answer("Sorry."), tools=[ignores_cancellation], limits=limits
        ) as (server, t),
    ):
        assert (await t.ask("go")).text == "Sorry."
        assert message_contents(server.requests[1], "tool") == ["error: ignores_cancellation did not answer in 0.1 s"]
        server.answers[:] = [tool_call_answer(("ignores_cancellation", {})), text_answer("yes")]
        t.send_stanza("<message to='agent@localhost' type='chat' id='q1'><body>go</body></message>", user="ada@localhost")
        await eventually(lambda: len(server.requests) == 3 and server.open_count == 0)
        await t.say("/cancel", user="ada@localhost")
        assert await t.say("hi", user="ada@localhost") == ["yes"]
        assert refused
        released.set()


def _generator_tool() -> Any:
    """Yields."""
    yield "one"


async def _late_result() -> str:
    return "late"


def _returns_a_coroutine() -> Any:
    """Return a coroutine from a plain function."""
    return _late_result()


async def test_a_generator_is_no_tool_and_a_function_that_returns_a_coroutine_is() -> None:
    with pytest.raises(ConfigError, match="_generator_tool is a generator"):
        LLMAgent(helper_manifest(), model="small", endpoint={"url": "http://127.0.0.1:9/v1"}, tools=[_generator_tool])
    async with run_helper_agent(
        tool_call_answer(("_returns_a_coroutine", {})), text_answer("Done."), tools=[_returns_a_coroutine]
    ) as (
        server,
        t,
    ):
        assert (await t.ask("go")).text == "Done."
    assert message_contents(server.requests[1], "tool") == ["late"]


async def _drip_feed(wire: CompletionStream) -> None:
    while True:
        await wire.raw(": still there\n\n")
        await wire.delta(content=".")
        await asyncio.sleep(0.02)


async def _thinks_for_ever(wire: CompletionStream) -> None:
    while True:
        await wire.delta(reasoning_content="Hm. " * 1000)


async def _talks_for_ever(wire: CompletionStream) -> None:
    while True:
        await wire.delta(content="word " * 1000)


async def test_a_slow_endless_stream_ends_with_the_turn_timeout(expected_errors: ExpectedErrors) -> None:
    expected_errors("assist took longer than 2 s")
    async with no_leftovers(), run_helper_agent(_drip_feed, policy=Policy(rules=Rules(assist_timeout_s=2))) as (server, t):
        with pytest.raises(PeerFailedError, match=r"I could not finish this within 2 s"):
            await t.ask("hi")
        await eventually(lambda: server.open_count == 0)
        server.answers[:] = [text_answer("yes")]
        assert (await t.ask("hi")).text == "yes"


@pytest.mark.parametrize("answer", [_talks_for_ever, text_answer("x" * 10_000_000)])
async def test_an_endless_answer_is_cut_off_and_says_so(answer: Answer) -> None:
    async with no_leftovers(), run_helper_agent(answer) as (server, t):
        text = (await t.ask("hi", timeout=TIMEOUT_S)).text
        assert text.endswith("(My answer is cut off here: it reached the limit for one answer.)")
        assert 200_000 <= len(text) < 200_100
        await eventually(lambda: server.open_count == 0)
        server.answers[:] = [text_answer("yes")]
        assert (await t.ask("hi")).text == "yes"


@pytest.mark.parametrize(
    "answer",
    [
        _thinks_for_ever,
        text_answer("never", reasoning=["Hm. " * 2_500_000]),
        tool_call_fragments(fragment("x" * 1_000_000, "recall")),
    ],
    ids=["many thoughts", "a large one", "arguments"],
)
async def test_a_model_that_comes_to_no_answer_is_one_line(answer: Answer) -> None:
    async with no_leftovers(), run_helper_agent(answer) as (server, t):
        with pytest.raises(PeerFailedError, match="My language model used all its tokens before its answer"):
            await t.ask("hi", timeout=TIMEOUT_S)
        await eventually(lambda: server.open_count == 0)
        server.answers[:] = [text_answer("yes")]
        assert (await t.ask("hi")).text == "yes"


def _finish_then(then: Callable[[CompletionStream], Awaitable[None]], last: str = "") -> Answer:
    async def answer(wire: CompletionStream) -> None:
        await wire.delta(content="All of it.")
        await wire.delta("stop")
        if last:
            await wire.raw(last)
        await then(wire)

    return answer


async def _never_closes(wire: CompletionStream) -> None:
    await asyncio.Event().wait()


async def _cuts_connection(wire: CompletionStream) -> None:
    await wire.raw(": still there\n\n")
    wire.cut()


async def _ends(wire: CompletionStream) -> None:
    pass


@pytest.mark.parametrize(
    "answer",
    [
        _finish_then(_ends),
        _finish_then(_cuts_connection),
        _finish_then(_never_closes),
        _finish_then(_never_closes, "data: [DONE]\n\n"),
    ],
    ids=["no [DONE]", "cut", "never closed", "[DONE], never closed"],
)
async def test_an_answer_is_whole_however_its_stream_ends(answer: Answer) -> None:
    async with no_leftovers(), run_helper_agent(answer) as (server, t):
        assert (await t.ask("hi")).text == "All of it."
        await eventually(lambda: server.open_count == 0)
    assert len(server.requests) == 1


async def test_text_that_was_not_shown_before_a_stream_broke_off_is_not_in_the_retry() -> None:
    half = broken_answer(" <EN", way="end")
    async with run_helper_agent(half, text_answer("yes", reasoning=["Sure."]), termination_markers=["<END>"]) as (_, t):
        answer = await t.ask("hi")
    assert answer.text == "yes"

    async def thinks(wire: CompletionStream) -> None:
        await wire.delta(reasoning_content="Half a thou")
        wire.cut()

    async with run_helper_agent(thinks, text_answer("yes", reasoning=["A thought."])) as (_, t):
        answer = await t.ask("hi")
    assert [event.data["content"] for event in answer.events if event.type == "block.thought"] == ["A thought."]


def _raw_response(data: str, **headers: str) -> Answer:
    async def answer(wire: CompletionStream) -> web.Response:
        return web.Response(body=data.encode(), headers={"Content-Type": "text/event-stream", **headers})

    return answer


def _error_with_code(status: int, code: str) -> Answer:
    async def answer(wire: CompletionStream) -> web.Response:
        return web.json_response({"error": {"message": "told to fail", "code": code}}, status=status)

    return answer


@pytest.mark.parametrize(
    ("failure", "problem"),
    [
        (_raw_response("data: " + "[" * 100_000 + "\n\n"), "answers with something that is no chat completion"),
        (_raw_response('data: {"choices": [7]}\n\n'), "answers with something that is no chat completion"),
        (_raw_response('data: {"choices": {"0": 7}}\n\n'), "answers with something that is no chat completion"),
        (
            _raw_response('data: {"choices": [{"delta": {"content": [1]}}]}\n\n'),
            "answers with something that is no chat completion",
        ),
        (tool_call_fragments(fragment("{}", {"a": 1}, index=0, id="a")), "answers with something that is no chat completion"),
        (
            _raw_response("data: {}\n\n", **{"Content-Encoding": "gzip"}),
            "sends its answer compressed, which it was not asked for",
        ),
        (_raw_response("data: [DONE]\n\n"), "answers with something that is no chat completion"),
        (_raw_response(""), "answers with something that is no chat completion"),
        (error_answer(403), r"refuses the key \(403\)\."),
        (_error_with_code(429, "insufficient_quota"), r"has no credit left \(429\)\."),
        (_error_with_code(400, "context_length_exceeded"), r"is shown more than it takes; .* context_tokens .* \(400\)\."),
    ],
)
async def test_a_malformed_response_is_one_line_and_the_agent_stays(failure: Answer, problem: str) -> None:
    async with no_leftovers(), run_helper_agent(failure, endpoint={"tries": 1}) as (server, t):
        with pytest.raises(PeerFailedError, match=f"My language model {problem}") as raised:
            await t.ask("hi")
        assert "\n" not in str(raised.value)
        assert len(server.requests) == 1
        server.answers[:] = [text_answer("yes")]
        assert (await t.ask("hi")).text == "yes"


def _endless_response(piece: str, status: int = 200) -> Answer:
    """Sends this on and on, as fast as it is read, and never ends."""

    async def answer(wire: CompletionStream) -> None:
        assert wire.headers["Accept-Encoding"] == "identity"  # or few bytes could be many
        wire.status(status)
        for _ in range(4096):  # 256 MiB
            await wire.raw(piece * (65536 // len(piece)))
        await asyncio.Event().wait()

    return answer


@pytest.mark.parametrize(
    ("failure", "problem"),
    [
        (_endless_response("data: x"), "answers with something that is no chat completion"),
        (_endless_response("data: x\n"), "answers with something that is no chat completion"),
        (_endless_response("<p>Welcome</p>\r"), "answers with something that is no chat completion"),
        (_endless_response("told to fail\n\n", 500), r"fails \(500\)"),
    ],
    ids=["a line", "an event", "a page", "an error"],
)
async def test_an_endless_response_is_read_only_up_to_a_limit(failure: Answer, problem: str) -> None:
    async with no_leftovers(), run_helper_agent(failure, endpoint={"tries": 1}) as (server, t):
        with pytest.raises(PeerFailedError, match=f"My language model {problem}"):
            await t.ask("hi", timeout=TIMEOUT_S)
        await eventually(lambda: server.open_count == 0)
        server.answers[:] = [text_answer("yes")]
        assert (await t.ask("hi")).text == "yes"


async def test_an_event_of_many_values_is_no_completion_and_is_not_parsed() -> None:
    """The package takes microseconds for each choice. A text of many commas is no work."""

    async def many(wire: CompletionStream) -> None:
        await wire.raw(f'data: {{"choices": [{",".join(["{}"] * 10_000)}]}}\n\n')
        await wire.done()

    async with no_leftovers(), run_helper_agent(many, endpoint={"tries": 1}) as (server, t):
        with (
            count_calls() as calls,
            pytest.raises(PeerFailedError, match="My language model answers with something that is no chat completion"),
        ):
            await t.ask("hi", timeout=TIMEOUT_S)
        assert calls["construct"] < 100
        text = "a, b: [c] " * 15_000
        server.answers[:] = [text_answer(text)]
        assert (await t.ask("hi")).text.strip() == text.strip()


async def test_of_two_interleaved_choices_only_the_first_is_read() -> None:
    async def two(wire: CompletionStream) -> None:
        for index, piece, finish in ((0, "Ye", None), (1, "N", None), (1, "o.", "stop"), (0, "s.", None), (0, "", "stop")):
            await wire.event({"choices": [{"index": index, "delta": {"content": piece}, "finish_reason": finish}]})
        await wire.raw("data: [DONE]\n\n")

    async with run_helper_agent(two) as (_, t):
        assert (await t.ask("hi")).text == "Yes."


async def test_the_halves_of_an_emoji_are_one_and_lone_surrogates_cause_no_failure() -> None:
    def read() -> list[str]:
        """A file name that is no UTF-8."""
        return ["caf\udce9"]

    async def halves(wire: CompletionStream) -> None:
        for half in ("\ud83d", "\ude00", " yes"):
            await wire.delta(content=half)
        await wire.done()

    async with run_helper_agent(tool_call_answer(("read", {})), halves, text_answer("yes"), tools=[read]) as (server, t):
        assert (await t.ask("caf\udce9")).text == "\N{GRINNING FACE} yes"
        assert (await t.ask("again")).text == "yes"
    assert message_contents(server.requests[1], "tool") == ['["caf?"]']
    assert message_contents(server.requests[0], "user") == ["caf?"]


async def test_the_halves_of_an_emoji_in_data_are_one() -> None:
    async def halves(wire: CompletionStream) -> None:
        for half in ('{"mood": "\ud83d', '\ude00"}'):
            await wire.delta(content=half)
        await wire.done()

    schema = {"type": "object", "properties": {"mood": {"type": "string"}}, "required": ["mood"]}
    async with run_helper_agent(halves, definition=definition_with_output(schema)) as (_, t):
        answer = await t.ask("How are you?")
    assert [event.data["data"] for event in answer.events if event.type == "block.data"] == [{"mood": "\N{GRINNING FACE}"}]


async def test_the_result_of_a_tool_that_cannot_be_stored_is_a_failure_of_the_memory(
    tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    file = tmp_path / "platform.db"

    def fill() -> str:
        """Let the database refuse further results."""
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TRIGGER full BEFORE INSERT ON steps BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
        return "full"

    def make() -> LLMAgent:
        return LLMAgent(AgentDefinition.simple("helper"), tools=[fill])

    async with AgentTester(make, model=FakeModel([tool_call("fill")]), database=f"{SQLITE}{file}") as t:
        t.send("go")
        assert (await t.message()).text == "_Using fill…_"
        text = (await t.message()).text
    assert text is not None
    assert text.startswith("I cannot read or write my memory")
    expected_errors("the disk is full")
