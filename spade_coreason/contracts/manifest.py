"""The manifest of an agent: its identity, capabilities and requirements, readable before the agent runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from .base import StrictModel, UtcDatetime
from .memory import ManifestMemory, MemoryConfig
from .times import utc_now

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
NonEmpty = Annotated[str, Field(min_length=1)]

_NUMBER = r"(?:0|[1-9][0-9]*)"
_PRE_RELEASE = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD = r"[0-9A-Za-z-]+"
_SEMVER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE_RELEASE}(\.{_PRE_RELEASE})*)?(\+{_BUILD}(\.{_BUILD})*)?")


def _check_semantic_version(version: str) -> str:
    version = version.lstrip("vV")
    if not _SEMVER.fullmatch(version):
        raise ValueError(f'"{version}" is not a semantic version such as 1.0.0')
    return version


Version = Annotated[str, AfterValidator(_check_semantic_version)]


def derive_agent_id(name: str) -> UUID:
    """Derive the id of an agent from its name. It is the same after a restart (UUID version 5)."""
    return uuid5(NAMESPACE_URL, f"urn:spade-coreason:agent:{name}")


class AgentMetadata(StrictModel):
    """The identity of an agent: its name, version and author.

    Without an `id`, one is derived from the name. `version` is a semantic version (SemVer 2.0.0); a leading v is dropped.
    If `requires_auth` is set, every capability must inject `user_context`.
    """

    id: UUID = Field(default_factory=uuid4)
    version: Version
    name: NonEmpty
    author: NonEmpty
    created_at: UtcDatetime = Field(default_factory=utc_now)
    requires_auth: bool = False

    @model_validator(mode="before")
    @classmethod
    def _default_id_from_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and "id" not in data and isinstance(data.get("name"), str):
            return {**data, "id": derive_agent_id(data["name"])}
        return data


class AgentCapability(StrictModel):
    """One thing that an agent can do. `inputs` and `outputs` are JSON Schemas."""

    name: NonEmpty
    type: Literal["atomic", "streaming"] = "atomic"
    description: str = ""
    inputs: dict[str, Any] = Field(default_factory=dict)
    outputs: dict[str, Any] = Field(default_factory=dict)
    delivery_mode: Literal["request_response", "server_sent_events"] = "request_response"
    events: list[str | dict[str, Any]] = Field(default_factory=list)
    injected_params: list[str] = Field(default_factory=list)

    def validate_input(self, payload: Mapping[str, Any]) -> None:
        """Check `payload` against the JSON Schema in `inputs`. Raise ValueError with the mistake and its place.

        References of the schema are never fetched from the network. The call blocks for about 3 ms, and at most for 2 s of
        processor time; what takes longer does not fit. Call it with `asyncio.to_thread` if a pattern of the schema may
        backtrack.
        """
        from .json_schema import find_problem  # here, because few manifests are used like this

        if (problem := find_problem(payload, self.inputs)) is not None:
            raise ValueError(f"{self.name}: {problem}")


class ModelConfig(StrictModel):
    """The language model that an agent requests. `temperature` is between 0 and 2."""

    model: NonEmpty
    temperature: float = Field(default=1.0, ge=0, le=2)
    system_prompt: str | None = None
    persona: str | dict[str, Any] | None = None


class AgentRuntimeConfig(StrictModel):
    """The runtime configuration of an agent. `llm_config` is called `model_config` in JSON and YAML."""

    nodes: list[Any] = Field(default_factory=list)
    edges: list[Any] = Field(default_factory=list)
    entry_point: str | None = None
    llm_config: ModelConfig | None = Field(default=None, alias="model_config")
    system_prompt: str | None = None
    memory: ManifestMemory | None = None


class RiskLevel(StrEnum):
    """The risk of a tool."""

    SAFE = "safe"
    STANDARD = "standard"
    CRITICAL = "critical"


class ToolRequirement(StrictModel):
    """A tool that another system offers at `uri`. `hash` is SHA-256 over what it offers, in 64 hex digits."""

    uri: NonEmpty
    hash: Sha256
    scopes: list[str] = Field(default_factory=list)
    risk_level: RiskLevel = RiskLevel.STANDARD


class InlineToolDefinition(StrictModel):
    """A tool that is described in the manifest itself. `parameters` is a JSON Schema."""

    name: NonEmpty
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


def _tool_tag(value: Any) -> str:
    is_remote = "uri" in value if isinstance(value, dict) else isinstance(value, ToolRequirement)
    return ToolRequirement.__name__ if is_remote else InlineToolDefinition.__name__


# `uri` tells the two apart, so that a mistake in one is not reported as a mistake in both.
Tool = Annotated[
    Annotated[ToolRequirement, Tag(ToolRequirement.__name__)]
    | Annotated[InlineToolDefinition, Tag(InlineToolDefinition.__name__)],
    Discriminator(_tool_tag),
]


class AgentDependencies(StrictModel):
    """The tools and libraries that an agent needs."""

    tools: list[Tool] = Field(default_factory=list)
    libraries: tuple[str, ...] = ()


class PolicyConfig(StrictModel):
    """The permissions of an agent.

    `budget_caps` are limits by name, `human_in_the_loop` the ids of the nodes that wait for a person.
    """

    budget_caps: dict[str, float] = Field(default_factory=dict)
    human_in_the_loop: list[str] = Field(default_factory=list)
    allowed_domains: list[str] = Field(default_factory=list)


class ObservabilityConfig(StrictModel):
    """The settings for recording what an agent does."""

    trace_level: Literal["full", "metadata_only", "none"] = "full"
    retention_policy: str = "30_days"
    encryption_key_id: str | None = None


class AgentDefinition(StrictModel):
    """The manifest of an agent.

    It has at least one capability, and capability names are unique. A published manifest needs its `integrity_hash` (64 hex
    digits).
    """

    metadata: AgentMetadata
    capabilities: list[AgentCapability] = Field(min_length=1)
    config: AgentRuntimeConfig = Field(default_factory=AgentRuntimeConfig)
    dependencies: AgentDependencies = Field(default_factory=AgentDependencies)
    policy: PolicyConfig | None = None
    deployment: dict[str, Any] | None = None
    observability: ObservabilityConfig | None = None
    custom_metadata: dict[str, Any] | None = None
    status: Literal["draft", "published"] = "draft"
    integrity_hash: Sha256 | None = None

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        names = [capability.name for capability in self.capabilities]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f'capability names must be unique; "{duplicates[0]}" is listed twice')
        if self.status == "published" and self.integrity_hash is None:
            raise ValueError("a published manifest needs its integrity_hash (64 hex digits)")
        if self.metadata.requires_auth:
            for capability in self.capabilities:
                if "user_context" not in capability.injected_params:
                    raise ValueError(f'requires_auth: capability "{capability.name}" must inject "user_context"')
        return self

    def validate_input(self, capability: str, payload: Mapping[str, Any]) -> None:
        """Check `payload` against the JSON Schema of `capability`.

        Raise ValueError with the mistake and its place, or if there is no such capability.
        """
        for candidate in self.capabilities:
            if candidate.name == capability:
                return candidate.validate_input(payload)
        raise ValueError(f'no capability "{capability}"; there is {", ".join(c.name for c in self.capabilities)}')

    @classmethod
    def simple(
        cls,
        name: str,
        *,
        version: str = "0.1.0",
        description: str = "",
        author: str = "unknown",
        system_prompt: str | None = None,
        memory: MemoryConfig | None = None,
        examples: Sequence[str] = (),
    ) -> Self:
        """Build a valid manifest from a name: its one capability "chat" takes `{"query": text}`.

        The id is derived from the name, so the agent has the same id after a restart. `examples` are messages that the page in
        the browser offers as buttons.
        """
        query = {"type": "object", "properties": {"query": {"type": "string"}}}
        return cls(
            metadata=AgentMetadata(id=derive_agent_id(name), version=version, name=name, author=author),
            capabilities=[AgentCapability(name="chat", description=description, inputs=query)],
            config=AgentRuntimeConfig(system_prompt=system_prompt, memory=memory),
            custom_metadata={"examples": list(examples)} if examples else None,
        )
