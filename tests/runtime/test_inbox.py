"""What the inbox has of a request: what was said, whatever the agent does with what it was given."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, ResponseHandler, SessionHandle
from tests.support.wait import PATIENCE_S

AGENT = "agent@localhost"


class Changing:
    """Changes all that it is given with a request, and then waits to be stopped; says what it is given when that runs again."""

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
async def test_a_request_runs_again_as_it_was_said(query: str | list[Any]) -> None:
    agents: list[Changing] = []

    def make() -> Changing:
        agents.append(Changing())
        return agents[-1]

    async with AgentTester(make) as t:
        assert await t.say("hello") == ['"hello"']  # from now on a turn begins before its request is written
        assert (await t.ask("hello")).text == '"hello"'
        if isinstance(query, str):
            t.send_stanza(f"<message to='{AGENT}' type='chat' id='1'><body>{query}</body></message>")
            asked = None
        else:
            asked = asyncio.create_task(t.ask({"query": query}))
        async with asyncio.timeout(PATIENCE_S):
            await agents[0].has_changed.wait()
        await t.restart(grace_s=0.1)
        await t.settled()
        if asked is None:
            assert [json.loads(said) for said in t.unread()] == [query]
        else:
            assert json.loads((await asked).text) == query
