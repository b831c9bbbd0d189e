"""The problems that `check` finds with language models without using a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from spade_coreason import AgentDefinition
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
