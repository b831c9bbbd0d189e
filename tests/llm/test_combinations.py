"""Combinations of guardrails, budgets, tools and structured output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentRequest, PeerEvent
from spade_coreason.exceptions import PeerFailedError
from tests.support.chat_completions import (
    Answer,
    CompletionStream,
    broken_answer,
    hanging_answer,
    text_answer,
    tool_call_answer,
)
from tests.support.llm_agent import definition_with_output, run_llm_agent, stored_turns
from tests.support.mcp_servers.servers import last_tool_results, legacy_server, log_lines

LONG_RULE = "be nice " * 1000  # more than 1000 tokens


def without_usage(answer: Answer) -> Answer:
    """Give the answer as a server that does not report usage."""

    async def answer_without_usage(wire: CompletionStream) -> Any:
        wire.body.pop("stream_options", None)
        return await answer(wire)

    return answer_without_usage


async def test_the_name_of_an_unknown_tool_is_neither_shown_nor_recorded() -> None:
    answers = tool_call_answer(("the_password_is_swordfish", {}), ("recall", {"query": "tea"})), text_answer("ok")
    async with run_llm_agent(*answers, output_guardrails=[{"keywords": "swordfish", "action": "redact"}]) as (_, t):
        events = [event async for event in t.stream("hi")]
        [turn] = await stored_turns(t)
    [step] = [event.data["content"] for event in events if event.type == "block.thought"]
    assert step == "Using recall…"
    audited = [event["data"] for event in turn["events"] if event["type"] == "ai.coreason.audit"]
    assert [(one["resource"], one["outcome"]) for one in audited] == [("(no such tool)", "failure"), ("recall", "success")]
    assert "swordfish" not in json.dumps(turn)


@pytest.mark.parametrize(
    ("answer", "guardrail"),
    [
        (without_usage(text_answer('{"allowed": true}')), {"judge": LONG_RULE}),
        (hanging_answer(), {"judge": LONG_RULE, "timeout_s": 0.2}),
    ],
    ids=["its server counts nothing", "it is late"],
)
async def test_a_judge_is_in_the_budget_also_if(answer: Answer, guardrail: dict[str, Any]) -> None:
    async with run_llm_agent(answer, text_answer("ok"), input_guardrails=[guardrail], budgets={"conversation": 1000}) as (
        server,
        t,
    ):
        try:
            await t.ask("hello")
        except PeerFailedError as failed:
            assert "budget of 1,000" in str(failed)  # noqa: PT017 - of the answer, after the judge
        [turn] = await stored_turns(t)
        assert turn["meta"]["usage"]["total_tokens"] > 1000
        asked = len(server.requests)
        with pytest.raises(PeerFailedError, match="budget of 1,000"):
            await t.ask("again")
        assert len(server.requests) == asked


async def test_an_attempt_that_broke_off_before_it_was_shown_is_in_the_budget() -> None:
    options: dict[str, Any] = {"output_guardrails": [{"length": 10_000}], "budgets": {"turn": 1000}}  # holds all of it back
    async with run_llm_agent(broken_answer("one " * 100), text_answer("ok"), **options) as (server, t):
        assert (await t.ask("word " * 600)).text == "ok"
        [turn] = await stored_turns(t)
    assert len(server.requests) == 2
    assert turn["meta"]["usage"]["total_tokens"] > 600 + 100 + 18


async def test_a_judge_of_an_answer_is_not_asked_when_the_budget_is_used_up() -> None:
    judges = [{"judge": rule, "judge_model": "judge"} for rule in ("Be kind.", "Be brief.", "Be clear.")]
    allowed = text_answer('{"allowed": true}')
    answers = text_answer("One. ", "Two. ", "Three. ", "Four."), allowed
    async with run_llm_agent(*answers, output_guardrails=judges, budgets={"turn": 36}) as (server, t):
        events: list[PeerEvent] = []

        async def listen() -> None:
            async for event in t.stream("count"):
                events.append(event)

        with pytest.raises(PeerFailedError, match="budget of 36 tokens"):
            await listen()
        [turn] = await stored_turns(t)
    assert [asked["model"] for asked in server.requests] == ["small", "judge"]
    assert not any(event.type.startswith("stream.") for event in events)
    assert "One" not in json.dumps(turn["output"])
    assert turn["meta"]["usage"]["requests"] == 2


async def test_an_answer_that_broke_off_is_in_the_budget_and_one_that_never_began_is_not() -> None:
    async with run_llm_agent(broken_answer("one " * 100), budgets={"conversation": 1000}) as (server, t):
        for _ in range(2):
            with pytest.raises(PeerFailedError, match="broke off"):
                await t.ask("word " * 600)
        with pytest.raises(PeerFailedError, match="budget of 1,000"):
            await t.ask("again")
        assert len(server.requests) == 2
    async with run_llm_agent(broken_answer()) as (_, t):
        with pytest.raises(PeerFailedError, match=r"broke off|cannot be reached"):
            await t.ask("word " * 600)
        [turn] = await stored_turns(t)
    assert "total_tokens" not in turn["meta"]["usage"]


@pytest.mark.parametrize(
    "value", ["NaN", "-Infinity", "1e999", '"\\ud83d"', "9" * 5000, f"{'[' * 300}{']' * 300}"], ids=lambda value: value[:9]
)
async def test_json_extensions_are_accepted_neither_as_data_nor_as_arguments(value: str, tmp_path: Path) -> None:
    text = f'{{"price": {value}}}'
    async with run_llm_agent(
        text_answer(text), text_answer('{"price": 2}'), definition=definition_with_output({"type": "object"})
    ) as (server, t):
        answer = await t.ask("How much?")
        assert "it is no JSON" in str(server.requests[1]["messages"])
    assert [one["data"] for one in answer.data] == [{"price": 2}]

    answers = (
        tool_call_answer(("files__say", text), ("files__say", "")),
        tool_call_answer(("files__say", {"price": "two"})),
        text_answer("ok"),
    )
    async with run_llm_agent(*answers, mcp={"files": legacy_server(tmp_path / "log")}) as (server, t):
        await t.ask("How much?")
    # No server of a model or of tools fails on it, and none is lost to other people.
    [said] = [message["tool_calls"] for message in server.requests[1]["messages"] if message.get("tool_calls")]
    assert [call["function"]["arguments"] for call in said] == ["{}", "{}"]
    assert last_tool_results(server.requests[1]) == ["error: the arguments are no JSON object; call it again with one", "say"]
    assert last_tool_results(server.requests[2]) == ["say two"]
    assert log_lines(tmp_path / "log").count("began") == 1


async def test_a_keyword_is_found_however_json_writes_its_letters() -> None:
    escaped = '{"text": "s\\u0077ordf\\u0069sh, M\\u00fcller"}'

    async def page() -> str:
        """A page, as many servers write it."""
        return escaped

    rules = [{"keywords": "swordfish", "action": "redact"}, {"keywords": "müller", "action": "redact", "replacement": "M."}]
    inputs = [rule | {"stages": "tool"} for rule in rules]
    options: dict[str, Any] = {
        "input_guardrails": inputs,
        "output_guardrails": rules,
        "definition": definition_with_output({"type": "object"}),
    }
    async with run_llm_agent(
        tool_call_answer(("page", {})), text_answer(*f"```json\n{escaped}\n```"), tools=[page], **options
    ) as (server, t):
        answer = await t.ask("Read it.")
        [turn] = await stored_turns(t)
    assert [one["data"] for one in answer.data] == [{"text": "[removed], M."}]
    assert server.requests[1]["messages"][-1]["content"] == '{"text": "[removed], M."}'
    assert "u0077" not in json.dumps(turn["output"])


@pytest.mark.parametrize("text", ["a\nswordfish", "a\tswordfish", "a\x1fswordfish", "a \u2028swordfish", "open\nsesame"])
async def test_a_keyword_is_found_in_data_after_characters_that_json_escapes(text: str) -> None:
    rule = {"keywords": ["swordfish", "open sesame"]}
    asked = AgentRequest(session_id=uuid4(), payload={"query": "hi", "note": text})
    async with run_llm_agent(text_answer("ok"), input_guardrails=[rule]) as (server, t):
        assert (await t.ask(asked)).text == "I cannot accept this message."
        assert server.requests == []

    async def page() -> dict[str, str]:
        """A page."""
        return {"text": text}

    async with run_llm_agent(
        tool_call_answer(("page", {})), text_answer("ok"), tools=[page], input_guardrails=[rule | {"stages": "tool"}]
    ) as (
        server,
        t,
    ):
        await t.ask("Read it.")
        assert server.requests[1]["messages"][-1]["content"] == "error: withheld by a guardrail"

    data = text_answer(*json.dumps({"text": text}))
    async with run_llm_agent(data, definition=definition_with_output({"type": "object"}), output_guardrails=[rule]) as (_, t):
        with pytest.raises(PeerFailedError, match="I cannot give this answer"):
            await t.ask("Say it.")
