"""Events between agents: CloudEvents 1.0, and the data of streams."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar
from uuid import uuid4

from pydantic import ConfigDict, Field

from .base import CoReasonBaseModel, UtcDatetime, utc_now

T = TypeVar("T")


class CloudEvent(CoReasonBaseModel, Generic[T]):
    """A CloudEvent 1.0 in JSON form; extension attributes are kept."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="allow")

    specversion: Literal["1.0"] = "1.0"
    type: str
    source: str
    id: str = Field(default_factory=lambda: str(uuid4()))
    time: UtcDatetime = Field(default_factory=utc_now)
    datacontenttype: str = "application/json"
    data: T | None = None
    traceparent: str | None = None
    tracestate: str | None = None


class StreamStart(CoReasonBaseModel):
    """Data of `ai.coreason.stream.start`."""

    stream_id: str
    title: str | None = None


class StreamChunkData(CoReasonBaseModel):
    """Data of `ai.coreason.stream.chunk`; `seq` counts from 0."""

    stream_id: str
    seq: int = Field(ge=0)
    chunk: str


class StreamEnd(CoReasonBaseModel):
    """Data of `ai.coreason.stream.end`."""

    stream_id: str


class StreamAbort(CoReasonBaseModel):
    """Data of `ai.coreason.stream.abort`. A `replacement` stands in the place of all that the stream said."""

    stream_id: str
    reason: str
    replacement: str | None = None
