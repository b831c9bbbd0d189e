"""The tools that a key opens: one for each capability of its agents, with a name, a schema and arguments of the door."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mcp_types import Tool

from ...contracts import AgentCapability
from ..agents import DoorAgent

_MAX_NAME = 60
"""The most characters of a name. Some clients allow 64, and others put the name of the server in front."""
_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_DIGITS = 6
_MAX_ID = 128
_QUERY = {"type": "object", "properties": {"query": {"type": "string", "description": "The request, in plain words."}}}
_DOOR_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "conversation": {
        "type": "string",
        "minLength": 1,
        "maxLength": _MAX_ID,
        "description": "The conversation to go on with, as an earlier result names it. Without it, a new one begins.",
    },
    "request_id": {
        "type": "string",
        "minLength": 1,
        "maxLength": _MAX_ID,
        "description": (
            "An id of your choice. The same id with the same arguments is the same request: it runs once, and its answer can "
            "be fetched for seven days."
        ),
    },
    "answer": {
        "type": "string",
        "minLength": 1,
        "description": "The answer to a question of the agent. Give `request_id` and `question` of the result that asks too.",
    },
    "question": {
        "type": "string",
        "minLength": 1,
        "maxLength": _MAX_ID,
        "description": "The question that `answer` answers, as the result that asks names it.",
    },
}


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """The arguments of a call: those for the agent, and those for the door."""

    payload: Mapping[str, Any]
    conversation: str | None
    request_id: str | None
    answer: str | None
    question: str | None


@dataclass(frozen=True)
class AgentTool:
    """One capability of an agent as a tool."""

    name: str
    agent: DoorAgent
    capability: AgentCapability

    @property
    def outputs(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the structured content, or None. MCP knows objects only."""
        outputs = self.capability.outputs
        return outputs if outputs.get("type") == "object" else None

    @property
    def needs_arguments(self) -> bool:
        """True if a call without arguments asks nothing."""
        return bool(self._inputs.get("properties"))

    @cached_property
    def argument_names(self) -> Mapping[str, str]:
        """The names of the door's arguments in this tool, with a prefix where the capability has such an argument itself."""
        own = self._inputs.get("properties", {})
        return {name: f"door_{name}" if name in own else name for name in _DOOR_ARGUMENTS}

    def describe(self) -> Tool:
        """Return the tool as clients see it."""
        inputs = self._inputs
        added = {self.argument_names[name]: dict(schema) for name, schema in _DOOR_ARGUMENTS.items()}
        schema = {**inputs, "type": "object", "properties": {**inputs.get("properties", {}), **added}}
        agent = self.agent.manifest.metadata.name
        return Tool(
            name=self.name,
            title=agent if len(self.agent.manifest.capabilities) == 1 else f"{agent}: {self.capability.name}",
            description=self.capability.description or f"Ask the agent {agent}.",
            input_schema=schema,
            output_schema=None if self.outputs is None else dict(self.outputs),
        )

    def read(self, arguments: Mapping[str, Any] | None) -> ToolArguments:
        """Divide the arguments of a call. Raise ValueError if one of the door is malformed."""
        payload = dict(arguments or {})
        found = {name: payload.pop(own, None) for name, own in self.argument_names.items()}
        for name, value in found.items():
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ValueError(f"{self.argument_names[name]} must be a text that is not empty")
        for name in ("conversation", "request_id"):
            value = found[name]
            if value is not None and (len(value) > _MAX_ID or not value.isprintable()):
                raise ValueError(f"{self.argument_names[name]} must have at most {_MAX_ID} printable characters")
        return ToolArguments(payload, **found)

    def validate(self, payload: Mapping[str, Any]) -> None:
        """Check the arguments for the agent against the schema that clients see. Raise ValueError with the mistake."""
        self.capability.model_copy(update={"inputs": self._inputs}).validate_input(payload)

    @cached_property
    def _inputs(self) -> Mapping[str, Any]:
        inputs = self.capability.inputs
        inputs = inputs if inputs and inputs.get("type", "object") == "object" else _QUERY
        is_query = "query" in inputs.get("properties", {}) and "required" not in inputs  # most manifests leave it out
        return {**inputs, "required": ["query"]} if is_query else inputs


def make_tools(agents: Iterable[DoorAgent]) -> dict[str, AgentTool]:
    """Return the tools of agents by their names.

    A name is that of the agent and that of the capability. If two are the same, or one is too long, a hash follows, so that no
    name depends on the order of the agents.
    """
    pairs = [(agent, capability) for agent in agents for capability in agent.manifest.capabilities]
    counts = Counter(_plain_name(agent, capability).lower() for agent, capability in pairs)
    tools = (
        AgentTool(
            _unique_name(agent, capability, is_alone=counts[_plain_name(agent, capability).lower()] == 1), agent, capability
        )
        for agent, capability in pairs
    )
    return {tool.name: tool for tool in tools}


def _plain_name(agent: DoorAgent, capability: AgentCapability) -> str:
    return _OTHER_CHARACTERS.sub("_", f"{agent.name}_{capability.name}")


def _unique_name(agent: DoorAgent, capability: AgentCapability, *, is_alone: bool) -> str:
    name = _plain_name(agent, capability)
    if is_alone and len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(f"{agent.jid}\n{capability.name}".encode()).hexdigest()[:_HASH_DIGITS]
    return f"{name[: _MAX_NAME - _HASH_DIGITS - 1]}_{digest}"
