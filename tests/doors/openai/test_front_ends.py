"""What chat front ends ask of a model for themselves, and the questions of people that look like it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spade_coreason import AgentRequest, Response, Session
from spade_coreason.doors.openai.messages import UserMessage
from spade_coreason.doors.openai.tasks import answer_task
from tests.doors.openai.front_ends import CHAT, prompt_of, wrap
from tests.doors.openai.test_chat import ask, said, stream_of
from tests.support.door_agents import Desk
from tests.support.openai_door import MODEL, serve_agent

TITLE = "How do I reach the {agents}…"
ANSWERS: dict[str, object] = {
    "title": {"title": TITLE},
    "tags": {"tags": ["General"]},
    "image": {"prompt": ""},
    "follow-ups": {"follow_ups": []},
    "queries": {"queries": [CHAT[-1]]},
    "completion": {"text": ""},
    "librechat-title-and-language": {"language": "", "title": TITLE},
}
"""The answers that a front end reads as JSON."""
TEXTS = {
    "emoji": "",
    "compaction": "",
    "merging": "Take a {key}.\n\n---\n\nAsk the operator.",
    "librechat-title": TITLE,
}
"""The answers that it takes as they are."""
QUESTIONS = {
    "a heading of a person": "### Task:\nWrite a poem.",
    "a form of a person": '### Task:\nWrite two titles.\n### Output:\nJSON format: { "title": "…" }',
    "a tag of a person": "### Task:\nWhat is <chat_history>, and why does it end with </chat_history>",
    "documents": wrap("What is tea?", "Tea is a plant.", "Tea is a drink."),
    "a prompt as a document": wrap("What is this?", prompt_of("title")),
    "a search with a heading": wrap("### Task:\nWhat is tea?", "Tea is a plant."),
}


class Reader(Desk):
    """An agent that does nothing for the words of a text: those of a template are no orders."""

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer with the end of the text."""
        query = str(request.payload["query"])
        self.requests.append(request)
        self.seen.append((session.identity.id, query))
        await response.markdown(f"done: {query[-20:]}")


@pytest.mark.parametrize("name", [*ANSWERS, *TEXTS])
def test_a_prompt_of_a_front_end_gets_what_it_expects(name: str) -> None:
    answer = answer_task(UserMessage(prompt_of(name).strip()))
    assert answer is not None
    if name in TEXTS:
        assert answer == TEXTS[name]
    else:
        # Open WebUI reads queries from the last brace that opens, and the rest from the first one.
        assert json.loads(answer[answer.rfind("{") :] if name == "queries" else answer) == ANSWERS[name]


def test_the_tools_that_open_webui_may_run_are_none() -> None:
    for text in ("Query: tea", 'History:\nUSER: """hi"""\nQuery: tea'):
        assert answer_task(UserMessage(text, system_prompt=prompt_of("tools"))) == '{"tool_calls": []}'
        assert answer_task(UserMessage(text, system_prompt="You are a cook.")) is None


@pytest.mark.parametrize("text", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_is_no_prompt(text: str) -> None:
    assert answer_task(UserMessage(text)) is None


@pytest.mark.parametrize("name", [*ANSWERS, *TEXTS])
def test_a_prompt_that_a_person_shows_in_a_chat_is_a_question(name: str) -> None:
    message = UserMessage(prompt_of(name).strip(), earlier=[("user", "hi"), ("assistant", "hello")])
    assert answer_task(message) is None


async def test_prompts_of_a_front_end_never_reach_the_agent_and_questions_do(url: str) -> None:
    desk = Reader()
    async with serve_agent(url, desk) as door:
        for name in (*ANSWERS, *TEXTS):
            prompt = prompt_of(name)
            expected = answer_task(UserMessage(prompt.strip()))
            assert await ask(door, prompt) == expected
            stream = await stream_of(door, prompt)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == expected
            response = await door.client().responses.create(model=MODEL, input=prompt)
            assert response.output_text == expected
        messages: Any = [{"role": "system", "content": prompt_of("tools")}, {"role": "user", "content": "Query: tea"}]
        found = await door.client().chat.completions.create(model=MODEL, messages=messages)
        assert found.choices[0].message.content == '{"tool_calls": []}'
        assert desk.seen == []
        for text in QUESTIONS.values():
            assert await ask(door, text) == f"done: {text[-20:]}"
    assert [query for _, query in desk.seen] == list(QUESTIONS.values())


async def test_a_chat_without_an_id_goes_on_after_messages_with_documents(url: str) -> None:
    desk = Reader()
    document = "Tea is a plant.\n<context>\n</context>"
    async with serve_agent(url, desk) as door:
        chat: list[str] = []
        for question in ("What is tea?", "Where does it grow?\n\n<context> matters", "And coffee?"):
            answer = await ask(door, *chat, wrap(question, document))
            chat += [question, answer]
        await ask(door, *chat, "Thanks")
        assert len(set(desk.sessions)) == 1
        await ask(door, "What is coffee?", *chat[1:], "Thanks")
    assert len(set(desk.sessions)) == 2
    assert all(document in query for _, query in desk.seen[:3])


async def test_an_answer_to_a_question_of_the_agent_is_what_the_person_has_written(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        asked = await ask(door, "ask me")
        assert await ask(door, "ask me", asked, wrap("red", "A colour.")) == "painted red"


async def test_only_a_system_prompt_with_a_text_is_refused(url: str) -> None:
    async with serve_agent(url, Desk(), system_prompt="refuse") as door:
        messages: Any = [{"role": "system", "content": ""}, *said("hello")]
        found = await door.client().chat.completions.create(model=MODEL, messages=messages)
        assert found.choices[0].message.content == "done: hello"
