"""An LLMAgent whose turn is interrupted: finished completions and tools are not repeated, and their cost counts once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentTester, PeerAnswer
from spade_coreason.llm import LLMAgent, Tool
from spade_coreason.llm.fake import FixedReply
from spade_coreason.testing import FakeModel, ModelRequest, stream, tool_call
from tests.support.llm_agent import stored_turns
from tests.support.wait import TIMEOUT_S


class Interruption:
    """Tools and replies that hang the first time; `calls` records the calls of tools."""

    def __init__(self) -> None:
        self.hangs = asyncio.Event()
        self.calls: list[Any] = []

    async def hang_once(self) -> None:
        """Hang until the turn is interrupted. After that, return at once."""
        if not self.hangs.is_set():
            self.hangs.set()
            await asyncio.Event().wait()

    async def charge(self, amount: int, idempotency_key: str) -> str:
        """Charge an amount."""
        self.calls.append(("charge", amount, idempotency_key))
        return f"charged {amount}"

    async def mail(self, idempotency_key: str) -> str:
        """Send a mail."""
        self.calls.append(("mail", idempotency_key))
        await self.hang_once()
        return "sent"

    async def reply(self, request: ModelRequest) -> str:
        """Hang, then reply."""
        await self.hang_once()
        return "never"

    @property
    def names(self) -> list[str]:
        """The names of the called tools."""
        return [call[0] for call in self.calls]


async def ask_interrupted(
    interruption: Interruption, model: FakeModel, **options: Any
) -> tuple[PeerAnswer, dict[str, Any], list[str]]:
    """Ask, restart while it hangs, and return the answer of the second run, its stored turn, and its audited tools."""

    def make(manifest: Any = None) -> LLMAgent:
        tools: list[Callable[..., Any]] = [interruption.charge, interruption.mail]
        return LLMAgent(AgentDefinition.simple("helper"), tools=tools, **options)

    async with AgentTester(make, model=model) as t:
        asking = asyncio.create_task(t.ask("go"))
        async with asyncio.timeout(TIMEOUT_S):
            await interruption.hangs.wait()
        await t.restart(grace_s=0)
        answer = await asking
        [turn] = await stored_turns(t)
        records = await t.runners[t.jid].repository.audit_trail.load_newest()
        audited = [record.entry["resource"] for record in records if record.entry and record.entry["action"] == "tool.call"]
        return answer, turn, audited


async def test_a_turn_that_is_interrupted_in_a_tool_goes_on_where_it_was() -> None:
    interruption = Interruption()
    model = FakeModel(
        [
            stream("Let me ", "see.", calls=[tool_call("charge", amount=5)], tokens=(100, 10)),
            stream(calls=[tool_call("charge", amount=6), tool_call("charge", amount=6)], tokens=(200, 20)),
            stream(calls=[tool_call("mail")], tokens=(300, 30)),
            stream("Done.", tokens=(400, 40)),
        ]
    )
    answer, turn, audited = await ask_interrupted(interruption, model)
    assert answer.text == "Let me see.\n\nDone."
    assert interruption.names == ["charge", "charge", "charge", "mail", "mail"]
    assert interruption.calls[3] == interruption.calls[4]  # with the same key
    assert len({call[-1] for call in interruption.calls}) == 4
    assert len(model.requests) == 4
    assert model.requests[3].tool_results == ["charged 5", "charged 6", "charged 6", "sent"]
    usage = turn["meta"]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (1000, 100, 1100)
    assert sorted(audited) == ["charge", "charge", "charge", "mail"]


async def test_a_turn_that_is_interrupted_in_a_completion_asks_for_that_one_again_only() -> None:
    interruption = Interruption()
    model = FakeModel(
        [stream(calls=[tool_call("charge", amount=5)], tokens=(100, 10)), interruption.reply, stream("Done.", tokens=(300, 30))]
    )
    answer, turn, _ = await ask_interrupted(interruption, model)
    assert answer.text == "Done."
    assert interruption.names == ["charge"]
    assert len(model.requests) == 3
    assert model.requests[1].messages == model.requests[2].messages
    assert turn["meta"]["usage"]["total_tokens"] == 440


async def test_estimated_tokens_of_a_stored_completion_stay_estimated() -> None:
    interruption = Interruption()
    model = FakeModel([tool_call("mail"), stream("Done.", tokens=(300, 30))])
    _, turn, _ = await ask_interrupted(interruption, model)
    [usage] = [event["data"] for event in turn["events"] if event["type"] == "ai.coreason.llm.usage"]
    assert usage["estimated"]
    assert usage["requests"] == 2
    assert usage["total_tokens"] > 330


async def test_a_verdict_of_a_judge_is_not_asked_for_again() -> None:
    interruption = Interruption()
    verdicts = []

    def reply(request: ModelRequest) -> FixedReply:
        if request.model == "judge":
            verdicts.append(request.question)
            return json.dumps({"allowed": True})
        return "Done." if request.tool_results else ["Let me see.", tool_call("mail")]

    rule = {"judge": "It is polite.", "judge_model": "judge"}
    answer, _, _ = await ask_interrupted(interruption, FakeModel(reply), output_guardrails=[rule], input_guardrails=[rule])
    assert answer.text == "Let me see.\n\nDone."
    assert len(verdicts) == len(set(verdicts))
    assert any("Let me see." in verdict for verdict in verdicts)


async def test_a_budget_that_is_used_up_stops_no_completion_that_was_paid_for() -> None:
    interruption = Interruption()
    model = FakeModel([stream("Let me see.", calls=[tool_call("mail")], tokens=(100, 10))])

    def make(manifest: Any = None) -> LLMAgent:
        return LLMAgent(AgentDefinition.simple("helper"), tools=[interruption.mail], budgets={"turn": 100})

    async with AgentTester(make, model=model) as t:
        t.send("go")
        async with asyncio.timeout(TIMEOUT_S):
            await interruption.hangs.wait()
        await t.restart(grace_s=0)
        await t.settled()
        texts = t.unread()
    assert "Let me see." in texts
    assert "This answer has used its budget of 100 tokens. Ask for less at once." in texts
    assert interruption.names == ["mail", "mail"]


async def test_a_result_that_is_too_large_to_be_stored_is_made_again_with_the_same_key() -> None:
    interruption = Interruption()
    keys: list[str] = []

    async def fetch(idempotency_key: str) -> str:
        """Fetch a large text."""
        keys.append(idempotency_key)
        return "x" * 2**21

    def make(manifest: Any = None) -> LLMAgent:
        limits = {"result_characters": 2**22, "context_tokens": 2**22}
        return LLMAgent(AgentDefinition.simple("helper"), tools=[fetch, interruption.mail], limits=limits)

    model = FakeModel([tool_call("fetch"), tool_call("mail"), "Done."])
    async with AgentTester(make, model=model, count=len) as t:
        asking = asyncio.create_task(t.ask("go"))
        async with asyncio.timeout(TIMEOUT_S):
            await interruption.hangs.wait()
        await t.restart(grace_s=0)
        assert (await asking).text == "Done."
    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert [len(result) for result in model.requests[-1].tool_results] == [2**21, 4]


@pytest.mark.parametrize("is_function", [True, False], ids=["a function", "a Tool"])
async def test_the_model_neither_sees_nor_sets_the_key_of_a_tool(is_function: bool) -> None:
    keys: list[str] = []

    def charge(amount: int, idempotency_key: str) -> str:
        """Charge an amount."""
        keys.append(idempotency_key)
        return str(amount)

    async def call(arguments: dict[str, Any]) -> Any:
        return charge(**arguments)

    parameters = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    tool: Tool | Callable[..., Any] = Tool("charge", "Charge", parameters, call, True)
    model = FakeModel([tool_call("charge", amount=5, idempotency_key="mine"), tool_call("charge", amount=5), "Done."])

    def make(manifest: Any = None) -> LLMAgent:
        tools: Sequence[Any] = [charge] if is_function else [tool]
        return LLMAgent(AgentDefinition.simple("helper"), tools=tools)

    async with AgentTester(make, model=model) as t:
        await t.ask("go")
    assert list(model.requests[0].tools["charge"]["parameters"]["properties"]) == ["amount"]
    assert len(set(keys)) == 2
    assert "mine" not in keys


async def test_strange_names_and_arguments_of_a_call_are_no_error_of_its_step() -> None:
    calls = [
        tool_call("", "{}"),
        tool_call("a\0b" * 100, "{"),
        tool_call("mail", '{"x": NaN}'),
        tool_call("mail", '{"x": "\\ud800"}'),
        tool_call("nowhere", "[" * 1000),
    ]
    model = FakeModel([stream(calls=calls), "Done."])

    async with AgentTester(lambda: LLMAgent(AgentDefinition.simple("helper"), tools=[Interruption().mail]), model=model) as t:
        assert (await t.ask("go")).text == "Done."
    assert all(result.startswith("error: ") for result in model.requests[-1].tool_results)
    assert len(model.requests[-1].tool_results) == len(calls)
