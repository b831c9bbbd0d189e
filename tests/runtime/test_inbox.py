"""The inbox keeps a request as it was sent, also if the agent changes the objects that it receives."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, ResponseHandler, SessionHandle
from tests.support.wait import TIMEOUT_S

AGENT = "agent@localhost"


class MutatingAgent:
    """Clear everything that comes with a request, and wait to be stopped; reply with the query when the turn runs again."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("changing")
        self.has_changed = asyncio.Event()

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.metadata.get("redelivered") or request.payload["query"] == "hello":
            await response.markdown(json.dumps(request.payload["query"]))
            return
        for changed in (request.payload["query"], request.payload, request.metadata):
            if not isinstance(changed, str):
                changed.clear()
        self.has_changed.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("query", ["hi", ["hi", {"a": 1}]], ids=["a person's text", "a program's list"])
async def test_a_request_runs_again_as_it_was_sent(query: str | list[Any]) -> None:
    agents: list[MutatingAgent] = []

    def make() -> MutatingAgent:
        agents.append(MutatingAgent())
        return agents[-1]

    async with AgentTester(make) as t:
        assert await t.say("hello") == ['"hello"']  # from now on a turn begins before its request is written
        assert (await t.ask("hello")).text == '"hello"'
        if isinstance(query, str):
            t.send_stanza(f"<message to='{AGENT}' type='chat' id='1'><body>{query}</body></message>")
            asked = None
        else:
            asked = asyncio.create_task(t.ask({"query": query}))
        async with asyncio.timeout(TIMEOUT_S):
            await agents[0].has_changed.wait()
        await t.restart(grace_s=0.1)
        await t.settled()
        if asked is None:
            assert [json.loads(said) for said in t.unread()] == [query]
        else:
            assert json.loads((await asked).text) == query
