"""The language model of the demo's assistant: the one in the environment, else a script."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...domain.environment.installation import install_hint
from .script import is_assistant

if TYPE_CHECKING:
    from ...config import AgentSettings, Settings

_MODEL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_KEY")


@asynccontextmanager
async def provide_model(settings: Settings) -> AsyncIterator[tuple[Settings, str]]:
    """Yield the settings with a model for the agent "assistant", or without that agent, and a line that describes the model."""
    agents = settings.agents
    assistants = [agent for agent in agents if is_assistant(agent)]
    if not assistants:
        yield settings, ""
    elif find_spec("openai") is None:
        line = f"none: assistant is not started, because the package openai is missing ({install_hint('llm')})"
        yield _replace_agents(settings, (agent for agent in agents if agent not in assistants)), line
    elif "endpoint" in assistants[0].options or any(map(os.environ.get, _MODEL_VARIABLES)):
        name = assistants[0].options.get("model") or os.environ.get("OPENAI_MODEL") or "the one in its manifest"
        yield settings, f"{name}, asked by assistant"
    else:
        from ...llm import MODEL_NAME, REMEDY, ScriptedModel

        async with ScriptedModel() as model:
            options = {"model": MODEL_NAME, "endpoint": {"url": model.url}}
            scripted = (_add_options(agent, options) if agent in assistants else agent for agent in agents)
            yield _replace_agents(settings, scripted), f"none: a script stands in for it. {REMEDY}"


def _replace_agents(settings: Settings, agents: Iterable[AgentSettings]) -> Settings:
    return settings.model_copy(update={"agents": tuple(agents)})


def _add_options(agent: AgentSettings, options: Mapping[str, object]) -> AgentSettings:
    return agent.model_copy(update={"options": MappingProxyType({**agent.options, **options})})
