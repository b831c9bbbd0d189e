"""The ready-made assistant and the bakery of the README, at a server that speaks the real API."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from agents.assistant import AssistantAgent
from spade_coreason import AgentTester, ConfigError, load_settings
from spade_coreason.loading import AgentParts, load_agent
from tests.llm.server import ChatServer, calls, contents, says

ROOT = Path(__file__).parents[2]


async def test_the_assistant_knows_the_time_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = calls(
        ("current_time", {"timezone": "Europe/Madrid"}),
        ("current_time", {"timezone": "Nowhere"}),
        ("remember_interaction_info", {"information": "Lives in Valencia"}),
    )
    async with ChatServer(wanted, says("It is late.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_MODEL", "small")
        async with AgentTester(AssistantAgent) as t:
            assert (await t.ask("I live in Valencia; how late is it?")).text == "It is late."
    assert server.asked[0]["model"] == "small"
    assert contents(server.asked[0], "system")[0] == AssistantAgent.default_prompt
    madrid, nowhere, remembered = [one["content"] for one in server.asked[1]["messages"][-3:]]
    assert re.search(r"\d\d:\d\d \(CES?T\)", madrid)
    assert "no time zone 'Nowhere'" in nowhere
    assert remembered == "Remembered: Lives in Valencia"


def test_the_configuration_of_the_assistant_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "config" / "assistant.yaml").read_text(encoding="utf-8")
    [agent] = load_settings(ROOT / "config" / "assistant.yaml", ROOT, {}).agents
    assert agent.options == {"model": "gpt-4o-mini"}
    # What is commented out is true, too.
    options = re.sub(r"^      # (?=[a-z_]+:|  )", "      ", text.partition("options:")[2], flags=re.M)
    monkeypatch.setenv("OPENAI_API_KEY", "sk")
    names = re.findall(r"^      (\w+):", options, re.M)
    assert set(names) == {
        "model",
        "fallback_model",
        "endpoint",
        "limits",
        "tools",
        "agents",
        "mcp",
        "show_tools",
        "termination_markers",
        "input_guardrails",
        "output_guardrails",
        "budgets",
    }
    made = load_agent(agent.agent, place="", project=ROOT, parts=AgentParts(memory=object), options=agent.options)
    assert made.manifest.metadata.name == "AssistantAgent"


def test_an_assistant_without_a_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"options.model: no model is named.*OPENAI_MODEL"):
        load_agent("agents.assistant:AssistantAgent", place="", project=ROOT, parts=AgentParts(), options={})


async def test_the_bakery_of_the_readme_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [text] = re.findall(r"^```python\n(# bakery\.py\n.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "bakery.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with ChatServer(calls(("opening_hours", {"day": "Sunday"})), says("We are closed.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_MODEL", "small")
        try:
            async with AgentTester(import_module("bakery").Bakery) as t:
                assert (await t.ask("On Sunday?")).text == "We are closed."
        finally:
            sys.modules.pop("bakery", None)
    assert server.asked[1]["messages"][-1]["content"] == "closed"
