"""An agent with a language model, on a server that gives the answers of a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from spade_coreason import AgentDefinition, AgentTester
from spade_coreason.llm.agent import LLMAgent
from tests.support.chat_completions import Answer, ChatCompletionsServer


class EndlessTool:
    """A tool that does not return until it is cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()

    async def never(self) -> str:
        """Never returns."""
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()
        return ""


@asynccontextmanager
async def run_llm_agent(
    *answers: Answer, definition: AgentDefinition | None = None, tester: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[ChatCompletionsServer, AgentTester]]:
    """Run an LLMAgent; `options` are its own, `tester` those of the AgentTester."""
    async with ChatCompletionsServer(*answers) as server:
        endpoint = {"url": server.url, "first_pause_s": 0.01}

        def make(manifest: Any = None, memory: Any = None, usage: Any = None) -> LLMAgent:
            manifest_or_default = definition or AgentDefinition.simple("helper", system_prompt="You help.")
            return LLMAgent(manifest_or_default, memory, model="small", endpoint=endpoint, usage=usage, **options)

        async with AgentTester(make, **(tester or {})) as t:
            yield server, t


async def stored_turns(t: AgentTester, user: str = "tester@localhost") -> list[dict[str, Any]]:
    """Return the stored turns of a person's conversation."""
    repository = t.runners[t.jid].repository
    [conversation] = [conversation for conversation in await repository.list_conversations() if conversation.owner == user]
    return [json.loads(body) for body in await repository.turns.load_history(conversation.id, 100)]


def guardrail_decisions(turn: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the guardrail decisions in the audit trail of a turn: action, resource, outcome."""
    entries = [event["data"] for event in turn["events"] if event["type"] == "ai.coreason.audit"]
    return [
        (entry["action"], entry["resource"], entry["outcome"]) for entry in entries if entry["action"].startswith("guardrail.")
    ]


def definition_with_output(schema: dict[str, Any]) -> AgentDefinition:
    """Define an agent whose output is data of this schema."""
    definition = AgentDefinition.simple("helper")
    [capability] = definition.capabilities
    return definition.model_copy(update={"capabilities": (capability.model_copy(update={"outputs": schema}),)})
