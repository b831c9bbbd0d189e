"""The ready-made assistant and the bakery of the tutorial, at a server that speaks the real API."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from agents.assistant import AssistantAgent
from spade_coreason import AgentTester, ConfigError, load_settings
from spade_coreason.runtime.agent_factory import Injectables, load_agent
from tests.support.chat_completions import ChatCompletionsServer, message_contents, text_answer, tool_call_answer
from tests.support.mcp_servers.servers import legacy_server

ROOT = Path(__file__).parents[2]


async def test_the_assistant_uses_time_memory_documents_and_mcp_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tool_call_answer(
        ("current_time", {"timezone": "Europe/Madrid"}),
        ("current_time", {"timezone": "Nowhere"}),
        ("remember_interaction_info", {"information": "Lives in Valencia"}),
        ("recall", {"query": "office"}),
        ("files__say", {"text": "hello"}),
    )
    async with ChatCompletionsServer(wanted, text_answer("It is late.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_MODEL", "small")
        options = {"mcp": {"files": legacy_server(tmp_path / "log")}}
        async with AgentTester(AssistantAgent, options=options) as t:
            knowledge = t.runtimes[t.jid].parts.knowledge
            assert knowledge is not None
            await knowledge.add("The office opens at nine.", "office.txt")
            assert (await t.ask("I live in Valencia; how late is it?")).text == "It is late."
            assert (await t.ask("When does the office open?")).text == "It is late."
    assert server.requests[0]["model"] == "small"
    assert message_contents(server.requests[0], "system")[0] == AssistantAgent.default_prompt
    madrid, nowhere, remembered, found, said = [one["content"] for one in server.requests[1]["messages"][-5:]]
    assert re.search(r"\d\d:\d\d \(CES?T\)", madrid)
    assert "no time zone 'Nowhere'" in nowhere
    assert remembered == "Remembered: Lives in Valencia"
    assert "The office opens at nine." in found
    assert said == "say hello"
    assert message_contents(server.requests[2], "system")[-1] == "Previous interactions:\n- Lives in Valencia"
    assert any("The office opens at nine." in text for text in message_contents(server.requests[2], "user"))


def opening_hours(day: str) -> str:
    """When we are open."""
    return "closed"


def test_the_configuration_of_the_assistant_is_read(tmp_path: Path) -> None:
    text = (ROOT / "config" / "assistant.yaml").read_text(encoding="utf-8")
    [agent] = load_settings(ROOT / "config" / "assistant.yaml", ROOT, {}).agents
    assert agent.options == {"model": "gpt-4o-mini"}
    # What is commented out is true, too.
    (tmp_path / "key").write_text("sk-secret")
    uncommented = re.sub(r"^      # (?=[a-z_]+:|  )", "      ", text, flags=re.M)
    uncommented = uncommented.replace("shop:opening_hours", f"{__name__}:opening_hours").replace(
        "/run/secrets/model-key", f"{tmp_path}/key"
    )
    (tmp_path / "all.yaml").write_text(uncommented)
    [agent] = load_settings(tmp_path / "all.yaml", tmp_path, {}).agents
    assert set(agent.options) == {
        "model",
        "fallback_model",
        "endpoint",
        "limits",
        "pictures",
        "tools",
        "agents",
        "mcp",
        "show_tools",
        "termination_markers",
        "input_guardrails",
        "output_guardrails",
        "budgets",
    }
    injectables = Injectables(memory=object, peers=object, usage=object)
    assistant = load_agent(agent.agent, place="", project=ROOT, injectables=injectables, options=agent.options)
    assert assistant.manifest.metadata.name == "AssistantAgent"


def test_an_assistant_without_a_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"options.model: no model is named.*OPENAI_MODEL"):
        load_agent("agents.assistant:AssistantAgent", place="", project=ROOT, injectables=Injectables(), options={})


async def test_the_bakery_of_the_tutorial_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "tutorial" / "5-language-model.md").read_text(encoding="utf-8")
    [text] = re.findall(r'^```python title="bakery\.py"\n(.*?)^```$', page, re.M | re.S)
    (tmp_path / "bakery.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with ChatCompletionsServer(
        tool_call_answer(("opening_hours", {"day": "Sunday"})), text_answer("We are closed.")
    ) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_MODEL", "small")
        try:
            async with AgentTester(import_module("bakery").Bakery) as t:
                assert (await t.ask("On Sunday?")).text == "We are closed."
        finally:
            sys.modules.pop("bakery", None)
    assert server.requests[1]["messages"][-1]["content"] == "closed"
