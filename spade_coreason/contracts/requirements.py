"""What an agent needs, may do and has recorded of it: the parts of a manifest that an engine enforces."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from .base import StrictModel

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
NonEmpty = Annotated[str, Field(min_length=1)]


class RiskLevel(StrEnum):
    """What a tool may do harm to."""

    SAFE = "safe"
    STANDARD = "standard"
    CRITICAL = "critical"


class ToolRequirement(StrictModel):
    """A tool from elsewhere; `hash` is SHA-256 in hex over what it offers."""

    uri: NonEmpty
    hash: Sha256
    scopes: list[str] = Field(default_factory=list)
    risk_level: RiskLevel = RiskLevel.STANDARD


class InlineToolDefinition(StrictModel):
    """A tool described in place; `parameters` is JSON Schema."""

    name: NonEmpty
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


def _tool_tag(value: Any) -> str:
    is_elsewhere = "uri" in value if isinstance(value, dict) else isinstance(value, ToolRequirement)
    return ToolRequirement.__name__ if is_elsewhere else InlineToolDefinition.__name__


# Told apart by `uri`, so that a mistake in one is not reported as a mistake in both.
Tool = Annotated[
    Annotated[ToolRequirement, Tag(ToolRequirement.__name__)]
    | Annotated[InlineToolDefinition, Tag(InlineToolDefinition.__name__)],
    Discriminator(_tool_tag),
]


class AgentDependencies(StrictModel):
    """What the agent needs."""

    tools: list[Tool] = Field(default_factory=list)
    libraries: tuple[str, ...] = ()


class PolicyConfig(StrictModel):
    """What the agent may do. `budget_caps` are limits by name, `human_in_the_loop` the ids of nodes that wait for a person."""

    budget_caps: dict[str, float] = Field(default_factory=dict)
    human_in_the_loop: list[str] = Field(default_factory=list)
    allowed_domains: list[str] = Field(default_factory=list)


class ObservabilityConfig(StrictModel):
    """What is recorded of it."""

    trace_level: Literal["full", "metadata_only", "none"] = "full"
    retention_policy: str = "30_days"
    encryption_key_id: str | None = None
