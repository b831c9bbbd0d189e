"""The script that plays a language model in the demo, asked by the real client and by an agent."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from typing import Any

import openai
import pytest

from agents.assistant import AssistantAgent
from spade_coreason import AgentTester
from spade_coreason.llm.scripted import NOTICE, REMEMBER_TOOL, TIME_TOOL, ScriptedModel, ScriptedReply, choose_reply
from tests.support.wait import TIMEOUT_S


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
        (person_messages("What is the time?"), ScriptedReply(tool=TIME_TOOL)),
    ],
)
def test_the_script_remembers_by_a_tool_and_answers_from_the_system_message(
    messages: list[dict[str, Any]], expected: ScriptedReply
) -> None:
    assert choose_reply(messages, (REMEMBER_TOOL, TIME_TOOL)) == expected


async def test_the_script_says_once_that_it_is_one_and_how_to_get_a_real_model() -> None:
    assert "OPENAI_API_KEY" in NOTICE
    assert "OPENAI_MODEL" in NOTICE
    async with ScriptedModel(delay_s=0) as model:
        endpoint = {"url": model.url}
        async with AgentTester(AssistantAgent, options={"model": "script", "endpoint": endpoint}) as t:
            first = await t.ask("My train leaves at noon")
            assert first.text == f'I will remember: "My train leaves at noon"\n\n{NOTICE}'
            assert (await t.ask("When does my train leave?")).text == 'You told me: "My train leaves at noon"'
            assert (await t.ask("What is the time?")).text.startswith("It is ")


async def test_the_server_of_the_script_speaks_to_the_real_client() -> None:
    messages: Any = person_messages("Where is my dog?")
    async with (
        ScriptedModel(delay_s=0.01) as model,
        openai.AsyncOpenAI(base_url=model.url, api_key="none", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model="script", messages=messages, stream=True)
        choices = [chunk.choices[0] async for chunk in stream]
        assert "".join(choice.delta.content or "" for choice in choices).startswith("I know only")
        assert len(choices) > 10
        assert choices[-1].finish_reason == "stop"


@pytest.mark.parametrize("port", ["many", "70000", "taken"])
def test_an_unusable_port_is_one_line(port: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = str(other.getsockname()[1]) if port == "taken" else port
        command = [sys.executable, "-m", "spade_coreason.llm.scripted", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    assert "error: " in ended.stderr.splitlines()[-1]
    assert port in ended.stderr.splitlines()[-1]
