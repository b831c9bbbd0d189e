"""Which of the tools that MCP servers offer there is room for."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...memory import TokenCounter
from .function import Tool

log = logging.getLogger(__name__)

_NAMED = 10
_MOST_CHARACTERS = 16
"""Of a token: a schema with more has no room, and is not counted."""


class _Count(NamedTuple):
    parameters: Mapping[str, Any]
    description: str
    tokens: int


class Fitting:
    """`room` is how many tokens the tools may have together, so that there is some for what `agent` is asked."""

    def __init__(self, agent: str, room: int, count: TokenCounter) -> None:
        self._agent = agent
        self._room = room
        self._count = count
        self._counted: dict[str, _Count] = {}
        self._left_out: list[str] = []

    def those(self, tools: Sequence[Tool]) -> list[Tool]:
        """Those that fit, in their order. Which do not is a line in the log, once."""
        self._counted = {tool.name: self._count_of(tool) for tool in tools}
        fitting, left_out, room = [], [], self._room
        for tool in tools:
            tokens = self._counted[tool.name].tokens
            if tokens <= room:
                fitting.append(tool)
                room -= tokens
            else:
                left_out.append(tool.name)
        if left_out and left_out != self._left_out:
            named = ", ".join(left_out[:_NAMED]) + (f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else "")
            remedy = "require those that are needed in the manifest (dependencies.tools), or raise limits.context_tokens"
            log.warning("%s: there is no room for these tools of MCP servers: %s; %s", self._agent, named, remedy)
        self._left_out = left_out
        return fitting

    def _count_of(self, tool: Tool) -> _Count:
        known = self._counted.get(tool.name)
        if known is not None and known.parameters is tool.parameters and known.description == tool.description:
            return known
        text = json.dumps(tool.schema, ensure_ascii=False)
        is_too_long = len(text) > _MOST_CHARACTERS * self._room
        return _Count(tool.parameters, tool.description, self._room + 1 if is_too_long else self._count(text))
