"""The script that plays a language model in the demo, asked by the real client and by an agent."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal
from uuid import uuid4

import openai
import pytest

from agents.assistant import AssistantAgent, current_time
from spade_coreason import AgentRequest, AgentTester, Response, Session, agent
from spade_coreason.concurrency import DaemonThreads
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.llm import LLMAgent
from spade_coreason.llm.prompts import render_request
from spade_coreason.llm.script import NOTICE, REMEMBER_TOOL, ScriptedReply, choose_reply
from spade_coreason.llm.tools.function import build_tool
from tests.support.chat_completions import ChatCompletionsServer
from tests.support.script_server import script_answer


def opening_hours(day: str) -> str:
    """When the bakery is open on a day of the week."""
    return "closed" if day.lower() == "sunday" else "7:00 to 18:00"


def delivery(size: Literal["small", "large"], loaves: int = 1, note: str = "") -> str:
    """What the delivery of bread costs."""
    return "5 €"


def table(guests: int) -> str:
    """Whether a table is free."""
    return "yes"


def blend(flours: list[str]) -> str:
    """Whether flours can be mixed."""
    return "yes"


def describe_tools(*functions: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return the tools as the model is shown them, with that of the memory."""
    remember = {"name": REMEMBER_TOOL, "description": "Remember a day or a table", "parameters": {"type": "object"}}
    return [remember, *(build_tool(function, DaemonThreads()).schema["function"] for function in functions)]


def person_messages(text: str, *remembered: str) -> list[dict[str, Any]]:
    facts = "".join(f"\n- {fact}" for fact in remembered)
    system = [{"role": "system", "content": f"Previous interactions:{facts}"}] if remembered else []
    return [*system, {"role": "assistant", "content": "before"}, {"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (person_messages("Remember: I like tea"), ScriptedReply(tool=REMEMBER_TOOL, arguments={"information": "I like tea"})),
        (person_messages("I like tea"), ScriptedReply(tool=REMEMBER_TOOL, arguments={"information": "I like tea"})),
        (person_messages(""), ScriptedReply("Tell me something that I should remember.")),
        (person_messages("What do I like?", "I like tea", "My cat is Tom"), ScriptedReply('You told me: "I like tea"')),
        (person_messages("Who is my cat?", "I like tea", "My cat is Tom"), ScriptedReply('You told me: "My cat is Tom"')),
        (
            person_messages("Where is my dog?", "I like tea"),
            ScriptedReply("I know only what you tell me, and of that you told me nothing."),
        ),
    ],
)
def test_the_script_remembers_by_a_tool_and_answers_from_the_system_message(
    messages: list[dict[str, Any]], expected: ScriptedReply
) -> None:
    assert choose_reply(messages, describe_tools()) == expected


@pytest.mark.parametrize(
    ("question", "tool", "arguments"),
    [
        ("When are you open on Sunday?", "opening_hours", {"day": "Sunday"}),
        ("Is the bakery open on 24 December?", "opening_hours", {"day": "24 December"}),
        ("What is the time?", "current_time", {}),
        ("What does a Large delivery of 12 loaves cost?", "delivery", {"size": "large", "loaves": 12}),
        ("What does a small delivery cost?", "delivery", {"size": "small"}),
        ("Is there a table for 4?", "table", {"guests": 4}),
    ],
)
def test_a_question_calls_the_tool_whose_words_it_has(question: str, tool: str, arguments: dict[str, Any]) -> None:
    tools = describe_tools(opening_hours, current_time, delivery, table, blend)
    assert choose_reply(person_messages(question), tools) == ScriptedReply(tool=tool, arguments=arguments)


@pytest.mark.parametrize(
    "question",
    [
        "What does a delivery cost?",  # small or large?
        "Is there a table?",  # for how many?
        "Are there flours that can be mixed?",  # a list
        "When are you open?",  # on which day?
        "When is it?",
        "Where is my dog?",
    ],
)
def test_a_question_that_fits_no_tool_or_leaves_a_parameter_open_calls_none(question: str) -> None:
    reply = choose_reply(person_messages(question), describe_tools(opening_hours, delivery, table, blend))
    assert reply.tool == ""
    assert "what my tools say: opening_hours, delivery, table, blend." in reply.text


async def test_a_question_with_the_name_of_an_agent_goes_to_that_agent() -> None:
    """The tutorial says that the bakery may ask the weather, and a script never did."""

    @agent
    async def weather(request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown(f"sunny in {request.payload['query']}")

    jid = "bus-weather@localhost"
    options = {"model": "script", "agents": [jid], "tools": [opening_hours]}
    async with AgentTester(LLMAgent, options=options, peers={jid: weather}) as t:
        await t.ask("The bus weather in Berlin is good")
        for question, rest in (("How is the bus weather in Berlin?", "Berlin"), ("Bus-Weather?", "Bus-Weather?")):
            answer = await t.ask(question)
            assert answer.text == f"My tool ask_agent (agent: {jid}, question: {rest}) says: sunny in {rest}"
        assert (await t.ask("When are you open on Sunday?")).text == "My tool opening_hours (day: Sunday) says: closed"


def test_what_was_told_is_repeated_where_it_has_more_words_of_the_question_than_a_tool() -> None:
    messages = person_messages("When do you open for my sister on Sunday?", "My sister comes on Sunday")
    assert choose_reply(messages, describe_tools(opening_hours)).text == 'You told me: "My sister comes on Sunday"'
    messages = person_messages("When are you open on Sunday?", "My sister comes on Sunday")
    assert choose_reply(messages, describe_tools(opening_hours)).tool == "opening_hours"


async def test_an_agent_whose_model_is_named_script_works_without_a_key_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_MODEL", "script")
    with caplog.at_level(logging.WARNING):
        async with AgentTester(LLMAgent, options={"tools": [opening_hours]}) as t:
            answer = await t.ask("When are you open on Sunday?")
            assert answer.text == f"My tool opening_hours (day: Sunday) says: closed\n\n{NOTICE}"
            assert (await t.ask("I cannot eat nuts")).text == 'I will remember: "I cannot eat nuts"'
            assert (await t.ask("What can I not eat?")).text == 'You told me: "I cannot eat nuts"'
            assert isinstance(t.agent, LLMAgent)
            assert await t.agent.examine_models() == []
    assert "a script stands in for the language model. For a real one set OPENAI_API_KEY" in caplog.text


async def test_a_server_that_is_named_is_asked_for_its_own_model_called_script(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{unused_tcp_port}/v1")
    options = {"model": "script", "endpoint": {"tries": 1}}
    async with AgentTester(LLMAgent, options=options) as t:
        with pytest.raises(PeerFailedError, match="My language model cannot be reached"):
            await t.ask("hi")


async def test_the_script_says_once_that_it_is_one_and_how_to_get_a_real_model() -> None:
    assert "OPENAI_API_KEY" in NOTICE
    assert "OPENAI_MODEL" in NOTICE
    async with ChatCompletionsServer(script_answer) as model:
        endpoint = {"url": model.url}
        async with AgentTester(AssistantAgent, options={"model": "script", "endpoint": endpoint}) as t:
            first = await t.ask("My train leaves at noon")
            assert first.text == f'I will remember: "My train leaves at noon"\n\n{NOTICE}'
            assert (await t.ask("When does my train leave?")).text == 'You told me: "My train leaves at noon"'
            assert (await t.ask("What is the time?")).text.startswith("My tool current_time says: ")


async def test_the_script_speaks_to_the_real_client_on_the_wire() -> None:
    messages: Any = person_messages("Where is my dog?")
    async with (
        ChatCompletionsServer(script_answer) as model,
        openai.AsyncOpenAI(base_url=model.url, api_key="none", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model="script", messages=messages, stream=True)
        choices = [chunk.choices[0] async for chunk in stream]
        assert "".join(choice.delta.content or "" for choice in choices).startswith("I know only")
        assert len(choices) > 10
        assert choices[-1].finish_reason == "stop"


@pytest.mark.parametrize("said", ["When are you open on Saturday?", 'Say "open"?\\nOr closed?', 'I like "tea"'])
def test_the_script_understands_what_is_said_in_a_room(said: str) -> None:
    """The frame around it ends in a quotation mark, so a question was taken for a statement."""
    metadata = {"room": "bakery@rooms.example.org", "nickname": 'm"e'}
    request = AgentRequest(session_id=uuid4(), payload={"query": said}, metadata=metadata)
    *context, question = person_messages(said)
    tools = describe_tools(opening_hours)
    assert choose_reply([*context, *render_request(request)], tools) == choose_reply([*context, question], tools)


def test_the_server_of_the_script_is_gone_and_says_what_to_use_instead() -> None:
    command = [sys.executable, "-m", "spade_coreason.llm.scripted"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: this server is gone; use the model `script` for an agent, ")
