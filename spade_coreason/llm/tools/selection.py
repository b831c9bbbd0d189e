"""The selection of MCP servers' tools that fit into the context."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...memory import TokenCounter
from .function import Tool

log = logging.getLogger(__name__)

_MAX_NAMED = 10
_MAX_CHARACTERS_PER_TOKEN = 16
"""The limit above which a schema does not fit, and is not counted."""


class _ToolTokens(NamedTuple):
    parameters: Mapping[str, Any]
    description: str
    tokens: int


class ToolSelection:
    """Select tools up to `max_tokens` in total, so that there is room left for the conversation of `agent`."""

    def __init__(self, agent: str, max_tokens: int, count_tokens: TokenCounter) -> None:
        self._agent = agent
        self._max_tokens = max_tokens
        self._count_tokens = count_tokens
        self._tokens_by_tool: dict[str, _ToolTokens] = {}
        self._omitted_names: list[str] = []

    def select(self, tools: Sequence[Tool]) -> list[Tool]:
        """Select the tools that fit, in their order. A change of those left out is logged once."""
        self._tokens_by_tool = {tool.name: self._count_tool(tool) for tool in tools}
        fitting, omitted, max_tokens = [], [], self._max_tokens
        for tool in tools:
            tokens = self._tokens_by_tool[tool.name].tokens
            if tokens <= max_tokens:
                fitting.append(tool)
                max_tokens -= tokens
            else:
                omitted.append(tool.name)
        if omitted and omitted != self._omitted_names:
            names = ", ".join(omitted[:_MAX_NAMED]) + (
                f" and {len(omitted) - _MAX_NAMED} more" if len(omitted) > _MAX_NAMED else ""
            )
            remedy = "list the tools that you need in the manifest (dependencies.tools), or raise limits.context_tokens"
            log.warning("%s: the context has no room for these tools of MCP servers: %s; %s", self._agent, names, remedy)
        self._omitted_names = omitted
        return fitting

    def _count_tool(self, tool: Tool) -> _ToolTokens:
        cached = self._tokens_by_tool.get(tool.name)
        if cached is not None and cached.parameters is tool.parameters and cached.description == tool.description:
            return cached
        text = json.dumps(tool.schema, ensure_ascii=False)
        is_too_long = len(text) > _MAX_CHARACTERS_PER_TOKEN * self._max_tokens
        return _ToolTokens(tool.parameters, tool.description, self._max_tokens + 1 if is_too_long else self._count_tokens(text))
