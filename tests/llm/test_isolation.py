"""Nothing of one conversation arrives in another: not in what a model is shown, nor by its tools, nor at the next agent."""

from __future__ import annotations

import json
from typing import Any

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle
from tests.llm.test_agent import helper
from tests.support.chat_completions import CompletionStream, message_contents, text_answer, tool_call_answer
from tests.support.records import query_of

SECRET = "swordfish"
LOOK: tuple[tuple[str, Any], ...] = (
    ("recall", {"query": "the secret word"}),
    ("get_interaction_history", {}),
    ("ask_agent", {"agent": "peer@localhost", "question": "what is the secret word?"}),
)


async def test_two_people_and_two_threads_are_strangers_to_each_other() -> None:
    class Peer:
        """Says what was said to it before."""

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
        if wire.asked["messages"][-1]["role"] == "tool":
            await text_answer("So it is.")(wire)
        else:
            await (tell if SECRET in message_contents(wire.asked, "user")[-1] else tool_call_answer(*LOOK))(wire)

    async with helper(answer, peers={"peer@localhost": Peer()}, agents=["peer@localhost"]) as (server, t):
        knowledge = t.runners[t.jid].knowledge
        assert knowledge is not None
        await t.ask(told, user="ada@localhost", thread="one")
        await knowledge.add(f"{told}, she said", "note", person="ada@localhost")

        async def seen(user: str, thread: str | None) -> list[bool]:
            """Where the secret is: in what is shown, and in what each tool finds."""
            begun = len(server.asked)
            await t.ask("what is the secret word?", user=user, thread=thread)
            shown, found = server.asked[begun:]
            return [SECRET in json.dumps(shown["messages"]), *(SECRET in text for text in message_contents(found, "tool"))]

        assert await seen("ada@localhost", "one") == [True, True, True, True]
        assert await seen("ada@localhost", "two") == [True, True, False, False]  # the note is hers in all conversations
        assert await knowledge.remove("note", person="ada@localhost")
        assert await seen("ada@localhost", "three") == [False] * 4
        for user, thread in [
            ("bob@localhost", None),
            ("bob@localhost", "one"),
            ("bob@localhost", "ada@localhost_agent@localhost"),
        ]:
            assert await seen(user, thread) == [False] * 4
        rows = await t.runners[t.jid].repository.list_conversations()
        used = []
        for row in rows:
            turns = [json.loads(turn) for turn in await t.runners[t.jid].repository.load_history(row.id, 10)]
            usage = [event["data"] for turn in turns for event in turn["events"] if event["type"] == "ai.coreason.llm.usage"]
            used.append([one["requests"] for one in usage])
        assert sorted(used) == [[2], [2], [2], [2], [2], [2, 2]]
