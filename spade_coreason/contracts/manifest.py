"""What an agent is and can do: the static part, readable before it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from pydantic import AfterValidator, Field, ValidationError, model_validator

from ..exceptions import ConfigError
from .base import StrictModel, utc_now
from .memory import MemoryConfig

_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


def _semantic(version: str) -> str:
    version = version.removeprefix("v").removeprefix("V")
    if not _SEMVER.fullmatch(version):
        raise ValueError(f'"{version}" is no semantic version, such as 1.0.0')
    return version


Version = Annotated[str, AfterValidator(_semantic)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
NonEmpty = Annotated[str, Field(min_length=1)]


class AgentMetadata(StrictModel):
    """Who made which agent, and when."""

    id: UUID = Field(default_factory=uuid4)
    version: Version
    name: NonEmpty
    author: NonEmpty
    created_at: datetime = Field(default_factory=utc_now)
    requires_auth: bool = False


class AgentCapability(StrictModel):
    """One thing the agent can do; `inputs` and `outputs` are JSON Schema."""

    name: NonEmpty
    type: Literal["atomic", "streaming"] = "atomic"
    description: str = ""
    inputs: dict[str, Any] = Field(default_factory=dict)
    outputs: dict[str, Any] = Field(default_factory=dict)
    delivery_mode: Literal["request_response", "server_sent_events"] = "request_response"
    events: list[str] = Field(default_factory=list)
    injected_params: list[str] = Field(default_factory=list)


class ModelConfig(StrictModel):
    """The language model that an agent asks for. `temperature` is 0 to 2."""

    model: NonEmpty
    temperature: float = Field(default=1.0, ge=0, le=2)
    system_prompt: str | None = None
    persona: str | None = None


class AgentRuntimeConfig(StrictModel):
    """How the agent runs."""

    nodes: list[Any] = Field(default_factory=list)
    edges: list[Any] = Field(default_factory=list)
    entry_point: str | None = None
    llm_config: ModelConfig | None = Field(default=None, alias="model_config")
    system_prompt: str | None = None
    memory: MemoryConfig | None = None


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


class AgentDependencies(StrictModel):
    """What the agent needs."""

    tools: list[ToolRequirement | InlineToolDefinition] = Field(default_factory=list)
    libraries: tuple[str, ...] = ()


class PolicyConfig(StrictModel):
    """What the agent may do."""

    budget_caps: dict[str, float] = Field(default_factory=dict)
    human_in_the_loop: list[str] = Field(default_factory=list)
    allowed_domains: list[str] = Field(default_factory=list)


class ObservabilityConfig(StrictModel):
    """What is recorded of it."""

    trace_level: Literal["full", "metadata_only", "none"] = "full"
    retention_policy: str = "30_days"
    encryption_key_id: str | None = None


class AgentDefinition(StrictModel):
    """The manifest of an agent. A published one has its integrity hash (64 hex digits)."""

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
    def _consistent(self) -> Self:
        names = [capability.name for capability in self.capabilities]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f'capability names must be unique; "{twice[0]}" is there twice')
        if self.status == "published" and not self.integrity_hash:
            raise ValueError("a published manifest needs its integrity_hash (64 hex digits)")
        if self.metadata.requires_auth:
            for capability in self.capabilities:
                if "user_context" not in capability.injected_params:
                    raise ValueError(f'requires_auth: capability "{capability.name}" must inject "user_context"')
        return self

    def validate_input(self, capability: str, payload: Mapping[str, Any]) -> None:
        """Checks `payload` against the JSON Schema of `capability`; `ValueError` names what is wrong."""
        import jsonschema  # here, since it takes longer to import than all the rest

        found = next((c for c in self.capabilities if c.name == capability), None)
        if found is None:
            raise ValueError(f'no capability "{capability}"; there is {", ".join(c.name for c in self.capabilities)}')
        try:
            jsonschema.validate(payload, found.inputs)
        except jsonschema.ValidationError as error:
            where = ".".join(str(part) for part in error.absolute_path) or "payload"
            raise ValueError(f"{capability}: {where}: {error.message}") from error

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
    ) -> AgentDefinition:
        """A valid manifest from little: one capability "chat" that takes `{"query": text}`.

        The id derives from the name, so the same agent has the same one after a restart.
        """
        query = {"type": "object", "properties": {"query": {"type": "string"}}}
        return cls(
            metadata=AgentMetadata(
                id=uuid5(NAMESPACE_URL, f"urn:spade-coreason:agent:{name}"), version=version, name=name, author=author
            ),
            capabilities=[AgentCapability(name="chat", description=description, inputs=query)],
            config=AgentRuntimeConfig(system_prompt=system_prompt, memory=memory),
        )

    @classmethod
    def from_file(cls, path: str | Path) -> AgentDefinition:
        """The manifest in a YAML or JSON file; `ConfigError` names the file, the field and the cause."""
        import yaml

        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
            data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except OSError as error:
            raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
        except (ValueError, yaml.YAMLError) as error:
            raise ConfigError(str(path), f"is no {path.suffix[1:] or 'YAML'}: {' '.join(str(error).split())}") from error
        if not isinstance(data, dict):
            raise ConfigError(str(path), "holds no manifest: an object with metadata and capabilities is expected")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(str(path), f"{where}: {first['msg']}" if where else first["msg"]) from error
