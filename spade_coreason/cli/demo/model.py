"""The language model of the demo's assistant: the one in the environment, else a script."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...domain.environment.installation import install_hint
from .script import is_assistant

if TYPE_CHECKING:
    from ...config import AgentSettings, Settings

_MODEL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_KEY")


def choose_model(settings: Settings) -> tuple[Settings, str]:
    """Return the settings with a model for the agent "assistant", or without that agent, and a line about the model."""
    agents = settings.agents
    assistants = [agent for agent in agents if is_assistant(agent)]
    if not assistants:
        return settings, ""
    if find_spec("openai") is None:
        line = f"none: assistant is not started, because the package openai is missing ({install_hint('llm')})"
        return _replace_agents(settings, (agent for agent in agents if agent not in assistants)), line
    if "endpoint" in assistants[0].options or any(map(os.environ.get, _MODEL_VARIABLES)):
        name = assistants[0].options.get("model") or os.environ.get("OPENAI_MODEL") or "the one in its manifest"
        return settings, f"{name}, asked by assistant"
    from ...llm import MODEL_NAME, REMEDY

    # The line says it once. The agent would log it at each start.
    logging.getLogger("spade_coreason.llm.agent").addFilter(lambda record: REMEDY not in (record.args or ()))
    scripted = (
        agent.model_copy(update={"options": MappingProxyType({**agent.options, "model": MODEL_NAME})})
        if agent in assistants
        else agent
        for agent in agents
    )
    return _replace_agents(settings, scripted), f"none: a script stands in for it. {REMEDY}"


def _replace_agents(settings: Settings, agents: Iterable[AgentSettings]) -> Settings:
    return settings.model_copy(update={"agents": tuple(agents)})
