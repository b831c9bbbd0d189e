"""An agent with a language model, at a server that gives the answers of a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from spade_coreason import AgentDefinition, AgentTester
from spade_coreason.llm.agent import LLMAgent

from .chat_completions import Answer, ChatServer


class Endless:
    """A tool that does not return before it is cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.stopped = asyncio.Event()

    async def never(self) -> str:
        """Never returns."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()
        return ""


@asynccontextmanager
async def guarded(
    *answers: Answer, definition: AgentDefinition | None = None, tester: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[ChatServer, AgentTester]]:
    """The agent; `options` are its own, `tester` those of the AgentTester."""
    async with ChatServer(*answers) as server:
        at = {"url": server.url, "first_pause_s": 0.01}

        def make(manifest: Any = None, memory: Any = None, usage: Any = None) -> LLMAgent:
            known = definition or AgentDefinition.simple("helper", system_prompt="You help.")
            return LLMAgent(known, memory, model="small", endpoint=at, usage=usage, **options)

        async with AgentTester(make, **(tester or {})) as t:
            yield server, t


async def recorded(t: AgentTester, user: str = "tester@localhost") -> list[dict[str, Any]]:
    """The turns of somebody's conversation as they are stored."""
    store = t.runners[t.jid].store
    [row] = [row for row in await store.list_conversations() if row.owner == user]
    return [json.loads(body) for body in await store.load_history(row.id, 100)]


def decisions(turn: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What the audit trail of a turn says of guardrails: action, resource, outcome."""
    audited = [event["data"] for event in turn["events"] if event["type"] == "ai.coreason.audit"]
    return [(one["action"], one["resource"], one["outcome"]) for one in audited if one["action"].startswith("guardrail.")]


def giving(schema: dict[str, Any]) -> AgentDefinition:
    """An agent that answers with data."""
    definition = AgentDefinition.simple("helper")
    [capability] = definition.capabilities
    return definition.model_copy(update={"capabilities": (capability.model_copy(update={"outputs": schema}),)})
