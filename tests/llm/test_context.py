"""The context of a model never exceeds its limit, and parts are dropped in a sensible order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spade_coreason import Interaction
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.llm.context import Context, ContextTooLongError
from spade_coreason.llm.prompts import Message
from spade_coreason.memory.tokens import counter_for
from tests.llm.test_agent import run_helper_agent
from tests.support.chat_completions import RequestBody, message_contents, text_answer, tool_call_answer

HEAD = [{"role": "system", "content": "h" * 10}]
LIMIT = 2000


def make_context(limit: int, *, facts: int = 0, turns: int = 0, summary: str = "") -> Context:
    """Build a context; each fact, question and answer has 90 to 100 characters, and a character is a token."""
    remembered: list[Message] = []
    if facts:
        lines = "\n".join(f"- fact {number:02} {'f' * 80}" for number in range(facts))
        remembered = [
            {"role": "system", "content": "data"},
            {"role": "system", "content": f"Previous interactions:\n{lines}"},
        ]
    window = [Interaction(input={"query": f"q{n} {'q' * 90}"}, output={"text": f"a{n} {'a' * 90}"}) for n in range(turns)]
    if summary:
        window.insert(0, Interaction(input=None, output={"text": summary}, meta={"summary": True}))
    return Context(HEAD, remembered, window, len, limit)


def count_tokens(messages: list[Message], beside: str = "") -> int:
    texts = [message["content"] or "" for message in messages]
    texts += [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", ())]
    return len(beside) + sum(len(text) + 4 for text in texts)


def as_json(messages: list[Message]) -> str:
    return json.dumps(messages)


def test_the_oldest_turns_go_first_then_the_summary_then_passages_then_facts() -> None:
    presence = []
    for limit in range(2600, 300, -20):
        context = make_context(limit, facts=4, turns=4, summary="summed up " + "s" * 90)
        context.passages = [f"passage {number} {'p' * 90}" for number in range(2)]
        context.tail.append({"role": "user", "content": "the question"})
        messages = context.messages()
        assert count_tokens(messages) <= limit
        text = as_json(messages)
        assert "the question" in text
        parts = [*(f"q{n} " for n in range(4)), "summed up", "passage 1", "passage 0", *(f"fact {n:02}" for n in range(4))]
        presence.append([part in text for part in parts])
    # The first that are missing are always a beginning of the list, but for facts, which have a fourth of the room at most.
    for one in presence:
        others = one[:7]
        assert others == sorted(others)
        assert one[7:] == sorted(one[7:])
    assert presence[0] == [True] * 11
    assert [sum(one) for one in presence] == sorted((sum(one) for one in presence), reverse=True)
    assert sum(presence[-1]) < 3


def test_facts_get_a_fourth_of_the_context_the_newest_first_and_turns_stay() -> None:
    context = make_context(LIMIT, facts=100, turns=3)
    context.tail.append({"role": "user", "content": "the question"})
    messages = context.messages()
    assert count_tokens(messages) <= LIMIT
    [remembered] = [one["content"] for one in messages if one["content"].startswith("Previous interactions:")]
    _heading, *facts = remembered.split("\n")
    assert [fact[:9] for fact in facts] == [f"- fact {number}" for number in range(100 - len(facts), 100)]
    assert 3 <= len(facts) <= 5
    assert all(f"q{n} " in as_json(messages) for n in range(3))


def test_tool_results_are_shortened_the_oldest_first_and_every_call_keeps_one() -> None:
    context = make_context(LIMIT, turns=2)
    context.tail.append({"role": "user", "content": "the question"})
    for number in range(6):
        call = {"id": f"c{number}", "function": {"name": "read", "arguments": json.dumps({"text": "x" * 300})}}
        context.tail.append({"role": "assistant", "content": None, "tool_calls": [call]})
        context.tail.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"r{number} " + "r" * 600})
        messages = context.messages("beside" * 10)
        assert count_tokens(messages, "beside" * 10) <= LIMIT
        assert [one["tool_call_id"] for one in messages if one["role"] == "tool"] == [f"c{n}" for n in range(number + 1)]
        lengths = [len(one["content"]) for one in messages if one["role"] == "tool"]
        assert lengths == sorted(lengths)
    assert lengths[-1] == 603
    assert lengths[0] < 200
    assert "cut here: there is no room for more" in messages[-3]["content"] or lengths[-2] == 603


def test_a_question_that_does_not_fit_is_one_clear_error() -> None:
    context = make_context(LIMIT, facts=9, turns=9)
    context.tail.append({"role": "user", "content": "x" * LIMIT})
    with pytest.raises(ContextTooLongError, match=r"too long for my language model: it has 2,\d\d\d tokens, and at most 2,000"):
        context.messages()


async def test_an_agent_with_much_of_everything_never_shows_more_than_the_limit() -> None:
    def read(part: int) -> str:
        """Reads a part of a document."""
        return f"{part} " + "result " * 3000

    limit = 3000

    def tokens(asked: RequestBody) -> int:
        beside = json.dumps([asked.get("tools"), asked.get("response_format")])
        texts = [beside, *(message["content"] or "" for message in asked["messages"])]
        return sum(map(counter_for("auto"), texts))

    rounds: list[Any] = [tool_call_answer(*(("read", {"part": part}) for part in range(4))) for _ in range(5)]
    limits = {"context_tokens": limit}
    async with run_helper_agent(text_answer("Noted."), tools=[read], limits=limits) as (server, t):
        memory, knowledge = t.runners[t.jid].executor.context.host.memory(t.jid), t.runtimes[t.jid].parts.knowledge
        assert memory is not None
        assert knowledge is not None
        for number in range(5):
            await knowledge.add(f"parts of the document {number}: " + "passage " * 110, f"p{number}")
        for number in range(8):
            await t.ask(f"{number} {'word ' * 300}")
        [conversation] = await t.conversations()
        for number in range(200):
            await memory.aadd_information(conversation.conversation_id, f"fact {number} {'x' * 100}")
        server.answers[:] = [*rounds, text_answer("Done.")]
        assert (await t.ask("parts of the document")).text == "Done."
        most = [tokens(asked) for asked in server.requests]
        assert max(most) <= limit
        assert max(most) > limit * 0.8
        assert "fact 199" in message_contents(server.requests[-1], "system")[-1]
        with pytest.raises(PeerFailedError, match=r"This is too long for my language model: .* Please send less\."):
            await t.ask("word " * 4000)
        server.answers[:] = [text_answer("yes")]
        assert (await t.ask("hi")).text == "yes"
