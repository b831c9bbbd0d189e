"""Token budgets: they outlast restarts, a used-up budget is one clear line, and each turn records its usage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spade_coreason import AgentTester
from spade_coreason.contracts import ErrorCode
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.llm import Budgets, LLMAgent
from spade_coreason.llm.budget import DEFAULT_AGENT_DAY
from spade_coreason.memory.usage import USAGE_EVENT
from tests.support.chat_completions import hanging_answer, text_answer, tool_call_answer
from tests.support.clock import Clock
from tests.support.llm_agent import run_llm_agent, stored_turns

# The model server says of each reply that it took 18 tokens.
EVENING = datetime(2026, 11, 21, 18, 30, tzinfo=UTC)


async def refusal_text(t: AgentTester, **options: Any) -> str:
    metrics = t.runners[t.jid].metrics
    refused, failures = metrics.refusals["budget"], metrics.failures
    with pytest.raises(PeerFailedError) as raised:
        await t.ask("more", **options)
    assert raised.value.code == ErrorCode.TOO_MANY_REQUESTS
    assert (metrics.refusals["budget"], metrics.failures) == (refused + 1, failures)
    return str(raised.value)


async def test_the_usage_of_a_turn_is_an_event_and_in_its_meta() -> None:
    async with run_llm_agent(tool_call_answer(("recall", {"query": "tea"})), text_answer("Yes.")) as (_, t):
        await t.ask("tea?")
        [turn] = await stored_turns(t)
    assert turn["meta"]["usage"] == {
        "model": "small",
        "requests": 2,
        "tool_calls": 1,
        "prompt_tokens": 22,
        "completion_tokens": 14,
        "total_tokens": 36,
    }
    assert [event["data"] for event in turn["events"] if event["type"] == USAGE_EVENT] == [turn["meta"]["usage"]]


async def test_a_person_has_a_budget_for_a_day_over_restarts_and_conversations() -> None:
    clock = Clock(EVENING)
    async with run_llm_agent(text_answer("yes"), budgets={"person_day": 30}, tester={"clock": clock}) as (server, t):
        await t.ask("one", user="ada@localhost")
        await t.restart()
        await t.ask("two", user="ada@localhost", thread="another")
        said = await refusal_text(t, user="ada@localhost")
        assert "You have used your budget of 30 tokens for today. It starts again at 00:00 UTC, in 5 h 30 min." in said
        await t.restart()
        assert "your budget of 30" in await refusal_text(t, user="ada@localhost")
        assert (await t.ask("mine", user="bob@localhost")).text == "yes"
        assert len(server.requests) == 3
        clock.now += timedelta(hours=6)
        assert (await t.ask("a new day", user="ada@localhost")).text == "yes"


async def test_an_agent_has_a_budget_for_a_day_over_restarts() -> None:
    clock = Clock(EVENING)
    async with run_llm_agent(text_answer("yes"), budgets={"agent_day": 30}, tester={"clock": clock}) as (_, t):
        await t.ask("one", user="ada@localhost")
        await t.ask("two", user="bob@localhost")
        refusal = await refusal_text(t, user="eve@localhost")
        assert "My budget of 30 tokens for today is used up. It starts again" in refusal
        assert refusal.endswith("My operator can raise it (budgets.agent_day).")
        await t.restart()
        assert "My budget of 30" in await refusal_text(t, user="eve@localhost")
        clock.now += timedelta(hours=6)
        assert (await t.ask("a new day", user="eve@localhost")).text == "yes"


@pytest.mark.parametrize(
    ("url", "budgets", "agent_day"),
    [
        ("https://api.openai.com/v1", {}, DEFAULT_AGENT_DAY),
        ("http://10.1.2.3:8000/v1", {"person_day": 5}, DEFAULT_AGENT_DAY),
        ("https://localhost.example.org/v1", {}, DEFAULT_AGENT_DAY),
        ("https://api.openai.com/v1", {"agent_day": 0}, 0),
        ("https://api.openai.com/v1", {"agent_day": None}, None),
        ("https://api.openai.com/v1", {"agent_day": 7}, 7),
        ("http://127.0.0.1:11434/v1", {}, None),
        ("http://localhost:11434/v1", {}, None),
        ("http://[::1]:11434/v1", {}, None),
    ],
)
async def test_a_model_elsewhere_has_a_budget_by_default_and_the_start_says_so(
    url: str, budgets: dict[str, int | None], agent_day: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert Budgets(**budgets).for_server(url).model_dump() == {**Budgets(**budgets).model_dump(), "agent_day": agent_day}
    options = {"model": "small", "endpoint": {"url": url, "api_key": "k"}, "budgets": budgets}
    with caplog.at_level("WARNING"):
        async with AgentTester(LLMAgent, options=options):
            pass
    told = [record.getMessage() for record in caplog.records if "tokens a day" in record.getMessage()]
    expected = "uses at most 1,000,000 tokens a day, the default of options.budgets.agent_day; set that, or 0 for no limit"
    assert [line.partition(": ")[2] for line in told] == ([expected] if agent_day == DEFAULT_AGENT_DAY else [])


async def test_a_budget_of_0_is_no_limit() -> None:
    budgets = dict.fromkeys(("turn", "conversation", "person_day", "agent_day"), 0)
    async with run_llm_agent(text_answer("yes"), budgets=budgets) as (_, t):
        assert [(await t.ask(text)).text for text in ("one", "two")] == ["yes", "yes"]


async def test_a_conversation_has_a_budget_and_a_new_one_begins_anew() -> None:
    async with run_llm_agent(text_answer("yes"), budgets={"conversation": 30}) as (_, t):
        await t.ask("one")
        await t.restart()
        await t.ask("two")
        assert "This conversation has used its budget of 30 tokens. Start a new one with /new." in await refusal_text(t)
        assert (await t.ask("elsewhere", thread="another")).text == "yes"
        await t.say("/new")
        assert (await t.ask("anew")).text == "yes"


async def test_a_turn_has_a_budget() -> None:
    async with run_llm_agent(tool_call_answer(("recall", {"query": "tea"})), budgets={"turn": 30}) as (server, t):
        assert "This answer has used its budget of 30 tokens" in await refusal_text(t)
    assert len(server.requests) == 2


async def test_a_used_up_budget_is_one_line_to_a_person() -> None:
    async with run_llm_agent(text_answer("yes"), budgets={"person_day": 10}) as (_, t):
        assert await t.say("one") == ["yes"]
        [line] = await t.say("two")
        assert "You have used your budget of 10 tokens for today" in line


async def test_a_cancelled_answer_counts_too() -> None:
    async with run_llm_agent(hanging_answer("Once upon a time"), budgets={"person_day": 10}) as (server, t):
        events = t.stream("a story")
        async for event in events:
            if event.type == "stream.chunk":
                break
        await t.say("/cancel")
        await t.settled()
        assert "your budget of 10" in await refusal_text(t)
        assert len(server.requests) == 1


async def test_the_usage_of_a_judge_counts_too() -> None:
    judge = {"judge": "Be kind.", "judge_model": "judge"}
    async with run_llm_agent(text_answer('{"allowed": true}'), budgets={"person_day": 18}, input_guardrails=[judge]) as (
        server,
        t,
    ):
        assert "your budget of 18" in await refusal_text(t)
        [turn] = await stored_turns(t)
    assert turn["meta"]["usage"]["total_tokens"] == 18
    assert [asked["model"] for asked in server.requests] == ["judge"]
