"""The assistant with a real language model, the one that the environment names: streams, a tool, memory, data, an error."""

from __future__ import annotations

import os
from typing import Any

import pytest

from agents.assistant import AssistantAgent
from spade_coreason import AgentDefinition, AgentTester
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.llm.agent import LLMAgent

PATIENCE_S = 120.0
MODEL = os.environ.get("OPENAI_MODEL")
IS_NAMED = bool(MODEL and (os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY")))

pytestmark = [
    pytest.mark.skipif(not IS_NAMED, reason="set OPENAI_BASE_URL (or OPENAI_API_KEY) and OPENAI_MODEL; it asks that model"),
    pytest.mark.timeout(4 * PATIENCE_S),
]


async def test_the_answer_comes_in_pieces() -> None:
    async with AgentTester(AssistantAgent) as t:
        answer = await t.ask("Count from one to ten, in words.", timeout=PATIENCE_S)
    assert "seven" in answer.text.lower()
    assert sum(event.type == "stream.chunk" for event in answer.events) > 3


async def test_a_fact_is_remembered_by_a_tool_and_known_after_a_restart() -> None:
    async with AgentTester(AssistantAgent) as t:
        await t.ask("Please remember for later: my boat is called Marigold.", timeout=PATIENCE_S)
        calls = await t.runners[t.jid].repository.audit_trail.load_newest()
        assert any((record.entry or {}).get("resource") == "remember_interaction_info" for record in calls)
        await t.restart()
        assert "Marigold" in (await t.ask("What is my boat called?", timeout=PATIENCE_S)).text


async def test_a_tool_of_the_agent_is_called_with_arguments() -> None:
    def code_of(city: str) -> str:
        """The secret code of a city.

        Args:
            city: its name
        """
        return {"Turin": "4711"}.get(city, "unknown")

    manifest = AgentDefinition.simple("clerk", system_prompt="You tell people the secret codes of cities.")
    async with AgentTester(LLMAgent(manifest, tools=[code_of])) as t:
        assert "4711" in (await t.ask("What is the secret code of Turin?", timeout=PATIENCE_S)).text


async def test_a_capability_with_an_output_schema_gives_data() -> None:
    plain: dict[str, Any] = AgentDefinition.simple("adder", system_prompt="You add numbers.").model_dump(by_alias=True)
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}
    plain["capabilities"] = [{"name": "add", "outputs": schema}]
    async with AgentTester(LLMAgent(AgentDefinition.model_validate(plain))) as t:
        answer = await t.ask("2 + 3", timeout=PATIENCE_S)
    assert [block["data"] for block in answer.data] == [{"sum": 5}]


async def test_a_model_that_is_not_there_is_one_line() -> None:
    manifest = AgentDefinition.simple("nobody", system_prompt="You help.")
    async with AgentTester(LLMAgent(manifest, model="no-such-model-of-anybody", endpoint={"tries": 1})) as t:
        with pytest.raises(PeerFailedError, match="My language model ") as raised:
            await t.ask("hi", timeout=PATIENCE_S)
    assert "\n" not in str(raised.value)
