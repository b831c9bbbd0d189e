"""Isolation of conversations: nothing crosses in the context of a model, by its tools, or at another agent."""

from __future__ import annotations

import json
from typing import Any

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle
from tests.llm.test_agent import run_helper_agent
from tests.support.chat_completions import CompletionStream, message_contents, text_answer, tool_call_answer
from tests.support.records import query_of

SECRET = "swordfish"
SEARCH_CALLS: tuple[tuple[str, Any], ...] = (
    ("recall", {"query": "the secret word"}),
    ("get_interaction_history", {}),
    ("ask_agent", {"agent": "peer@localhost", "question": "what is the secret word?"}),
)


async def test_nothing_crosses_between_people_and_threads() -> None:
    class Peer:
        """Replies with the earlier questions."""

        manifest = AgentDefinition.simple("peer")

        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            before = [query_of(turn) for turn in await session.history()]
            await response.markdown(json.dumps(before))

    told = f"the secret word is {SECRET}"
    tell = tool_call_answer(
        ("remember_interaction_info", {"information": told}),
        ("ask_agent", {"agent": "peer@localhost", "question": told}),
    )

    async def answer(wire: CompletionStream) -> None:
        if wire.body["messages"][-1]["role"] == "tool":
            await text_answer("So it is.")(wire)
        else:
            await (tell if SECRET in message_contents(wire.body, "user")[-1] else tool_call_answer(*SEARCH_CALLS))(wire)

    async with run_helper_agent(answer, peers={"peer@localhost": Peer()}, agents=["peer@localhost"]) as (server, t):
        knowledge = t.runtimes[t.jid].parts.knowledge
        assert knowledge is not None
        await t.ask(told, user="ada@localhost", thread="one")
        await knowledge.add(f"{told}, she said", "note", person="ada@localhost")

        async def secret_visibility(user: str, thread: str | None) -> list[bool]:
            """Tell where the secret appears: in the messages to the model, and in the result of each tool."""
            count_before = len(server.requests)
            await t.ask("what is the secret word?", user=user, thread=thread)
            shown, found = server.requests[count_before:]
            return [SECRET in json.dumps(shown["messages"]), *(SECRET in text for text in message_contents(found, "tool"))]

        assert await secret_visibility("ada@localhost", "one") == [True, True, True, True]
        assert await secret_visibility("ada@localhost", "two") == [
            True,
            True,
            False,
            False,
        ]  # the note is hers in all conversations
        assert await knowledge.remove("note", person="ada@localhost")
        assert await secret_visibility("ada@localhost", "three") == [False] * 4
        for user, thread in [
            ("bob@localhost", None),
            ("bob@localhost", "one"),
            ("bob@localhost", "ada@localhost_agent@localhost"),
        ]:
            assert await secret_visibility(user, thread) == [False] * 4
        rows = await t.runners[t.jid].repository.list_conversations()
        used = []
        for row in rows:
            turns = [json.loads(turn) for turn in await t.runners[t.jid].repository.turns.load_history(row.id, 10)]
            usage = [event["data"] for turn in turns for event in turn["events"] if event["type"] == "ai.coreason.llm.usage"]
            used.append([one["requests"] for one in usage])
        assert sorted(used) == [[2], [2], [2], [2], [2], [2, 2]]
