"""The problems that `check` finds with agents that have a language model, without using a token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from spade_coreason import AgentDefinition
from spade_coreason.cli.checks import check_settings
from spade_coreason.config import load_settings
from spade_coreason.llm.agent import LLMAgent
from tests.support.chat_completions import ChatCompletionsServer, text_answer

MANIFEST = AgentDefinition.simple("thinker")


def llm_agent(url: str) -> LLMAgent:
    return LLMAgent(MANIFEST, model="small", fallback_model="large", endpoint={"url": url, "api_key": "sk-secret"})


@pytest.mark.parametrize(
    ("models", "problems"),
    [
        (["small", "large"], []),
        (["large", "other"], [("the server URL: has no model 'small'; it lists large, other", True)]),
        (404, []),  # not every server has a list
        (501, []),
        (401, [("the language model at URL: refuses the key (401)", False)]),
        (503, [("the language model at URL: fails (503)", True)]),
    ],
)
async def test_problems_of_a_model_are_found_before_the_first_request(
    models: list[str] | int, problems: list[tuple[str, bool]]
) -> None:
    async with ChatCompletionsServer(text_answer("never")) as server:
        server.models = models
        found: Sequence[Any] = await llm_agent(server.url).examine_models()
        assert [(str(one).replace(server.url, "URL"), one.is_transient) for one in found] == problems
        assert (server.keys, server.requests) == (["Bearer sk-secret"], [])
    [away] = await llm_agent(server.url).examine_models()
    assert str(away) == f"the language model at {server.url}: cannot be reached"


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        ("finance", ""),
        ("financ", 'there is no group "financ"; did you mean "finance"?'),
        ("everyone", 'the group "everyone" names no account that can be asked; add JIDs to access.groups.everyone'),
        ("others", 'bob@example.org of the group "others" cannot answer without access; add them to access.allow'),
    ],
)
async def test_approvers_that_cannot_answer_are_found(tmp_path: Path, group: str, problem: str) -> None:
    groups = {"finance": ["fred@localhost"], "everyone": ["localhost"], "others": ["fred@localhost", "bob@example.org"]}
    options = {"model": "script", "approvals": {"approvers": group}}
    agent = {"jid": "desk@localhost", "agent": "spade_coreason.llm:LLMAgent", "options": options}
    values = {"access": {"groups": groups}, "agents": [agent], "data_dir": str(tmp_path / "data")}
    (tmp_path / "platform.yaml").write_text(yaml.safe_dump(values))
    findings = await check_settings(load_settings(tmp_path / "platform.yaml", tmp_path, {}))
    found = [finding for finding in findings if "approvals.approvers" in finding.text]
    if not problem:
        assert found == []
        return
    [finding] = found
    assert (finding.verdict, finding.exit_code) == ("bad", 2)
    assert finding.text.endswith(f"agents[0].options.approvals.approvers: {problem}")
