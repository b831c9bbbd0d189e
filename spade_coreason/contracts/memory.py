"""The memory policy in a manifest (seed: Memory Governance)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from .base import CoReasonBaseModel


class MemoryStrategy(StrEnum):
    """The treatment of turns above the limit of a window. The limit counts turns; for TOKEN_BUFFER it counts tokens."""

    ALL = "all"
    SLIDING_WINDOW = "sliding_window"
    TOKEN_BUFFER = "token_buffer"
    SUMMARY = "summary"
    VECTOR_STORE = "vector_store"


class MemoryConfig(CoReasonBaseModel):
    """The memory policy of an agent. `limit` counts turns, or tokens for TOKEN_BUFFER. SUMMARY needs a `summary_prompt`."""

    strategy: MemoryStrategy = MemoryStrategy.SLIDING_WINDOW
    limit: int = Field(default=20, gt=0)
    summary_prompt: str | None = None

    @model_validator(mode="after")
    def _require_summary_prompt(self) -> MemoryConfig:
        if self.strategy is MemoryStrategy.SUMMARY and not self.summary_prompt:
            raise ValueError("summary_prompt is required when strategy is SUMMARY")
        return self


def _reject_unknown_fields(value: object) -> object:
    if isinstance(value, dict) and (unknown := sorted(map(str, value.keys() - MemoryConfig.model_fields.keys()))):
        fields = ", ".join(MemoryConfig.model_fields)
        raise ValueError(f"unknown: {', '.join(unknown)}; the fields are {fields}")
    return value


ManifestMemory = Annotated[MemoryConfig, BeforeValidator(_reject_unknown_fields)]
"""A memory policy in a manifest, where an unknown field is an error."""
