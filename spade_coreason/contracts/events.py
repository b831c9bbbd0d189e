"""Events between agents: CloudEvents 1.0, and the data of streams."""

from __future__ import annotations

import time
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import uuid4

from pydantic import ConfigDict, Field, TypeAdapter

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


class GraphEventBase(CoReasonBaseModel):
    """What every event of a graph has. `timestamp` is in seconds since 1970."""

    run_id: str
    trace_id: str = "unknown"
    node_id: str
    timestamp: float = Field(default_factory=time.time)
    sequence_id: int | None = None
    visual_metadata: dict[str, Any] = Field(default_factory=dict)
    payload: dict[str, Any] = Field(default_factory=dict)


class NodeInit(GraphEventBase):
    """A node is known."""

    event_type: Literal["NODE_INIT"] = "NODE_INIT"


class NodeStart(GraphEventBase):
    """A node begins."""

    event_type: Literal["NODE_START"] = "NODE_START"


class NodeStream(GraphEventBase):
    """A node says something."""

    event_type: Literal["NODE_STREAM"] = "NODE_STREAM"


class NodeDone(GraphEventBase):
    """A node is done."""

    event_type: Literal["NODE_DONE"] = "NODE_DONE"


class NodeSkipped(GraphEventBase):
    """A node is not needed."""

    event_type: Literal["NODE_SKIPPED"] = "NODE_SKIPPED"


class NodeRestored(GraphEventBase):
    """A node's result is taken from before."""

    event_type: Literal["NODE_RESTORED"] = "NODE_RESTORED"


class EdgeActive(GraphEventBase):
    """An edge is taken."""

    event_type: Literal["EDGE_ACTIVE"] = "EDGE_ACTIVE"


class CouncilVote(GraphEventBase):
    """A member of a council votes."""

    event_type: Literal["COUNCIL_VOTE"] = "COUNCIL_VOTE"


class GraphError(GraphEventBase):
    """A node fails."""

    event_type: Literal["ERROR"] = "ERROR"


class ArtifactGenerated(GraphEventBase):
    """A node made something."""

    event_type: Literal["ARTIFACT_GENERATED"] = "ARTIFACT_GENERATED"


GraphEvent = Annotated[
    NodeInit
    | NodeStart
    | NodeStream
    | NodeDone
    | NodeSkipped
    | NodeRestored
    | EdgeActive
    | CouncilVote
    | GraphError
    | ArtifactGenerated,
    Field(discriminator="event_type"),
]


@cache
def _event_adapter() -> TypeAdapter[GraphEventBase]:
    # Built when first needed: it costs as much as importing half of this package.
    return TypeAdapter(GraphEvent)


def read_graph_event(data: Any) -> GraphEventBase:
    """The event that `data` is, by its `event_type`; `ValueError` where it is none."""
    return _event_adapter().validate_python(data)
