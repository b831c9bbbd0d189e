"""Events between agents: CloudEvents 1.0, the data of streams, and the events of a graph of nodes."""

from __future__ import annotations

import time
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import uuid4

from pydantic import ConfigDict, Field, TypeAdapter

from .base import CoReasonBaseModel, UtcDatetime
from .times import utc_now

T = TypeVar("T")


class CloudEvent(CoReasonBaseModel, Generic[T]):
    """A CloudEvent 1.0 in JSON form. Extension attributes are preserved. `time` is UTC."""

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
    """The data of `ai.coreason.stream.start`."""

    stream_id: str
    title: str | None = None


class StreamChunkData(CoReasonBaseModel):
    """The data of `ai.coreason.stream.chunk`. `seq` counts from 0."""

    stream_id: str
    seq: int = Field(ge=0)
    chunk: str


class StreamEnd(CoReasonBaseModel):
    """The data of `ai.coreason.stream.end`."""

    stream_id: str


class StreamAbort(CoReasonBaseModel):
    """The data of `ai.coreason.stream.abort`. A `replacement` replaces all text of the stream."""

    stream_id: str
    reason: str
    replacement: str | None = None


class GraphEventBase(CoReasonBaseModel):
    """Base class of the events of a graph. `timestamp` is in seconds since 1970 (UTC)."""

    run_id: str
    trace_id: str = "unknown"
    node_id: str
    timestamp: float = Field(default_factory=time.time)
    sequence_id: int | None = None
    visual_metadata: dict[str, Any] = Field(default_factory=dict)
    payload: dict[str, Any] = Field(default_factory=dict)


class NodeInit(GraphEventBase):
    """A node is registered."""

    event_type: Literal["NODE_INIT"] = "NODE_INIT"


class NodeStart(GraphEventBase):
    """A node starts."""

    event_type: Literal["NODE_START"] = "NODE_START"


class NodeStream(GraphEventBase):
    """A node produces a piece of output."""

    event_type: Literal["NODE_STREAM"] = "NODE_STREAM"


class NodeDone(GraphEventBase):
    """A node has finished."""

    event_type: Literal["NODE_DONE"] = "NODE_DONE"


class NodeSkipped(GraphEventBase):
    """A node is skipped because it is not needed."""

    event_type: Literal["NODE_SKIPPED"] = "NODE_SKIPPED"


class NodeRestored(GraphEventBase):
    """The result of a node is restored from an earlier run."""

    event_type: Literal["NODE_RESTORED"] = "NODE_RESTORED"


class EdgeActive(GraphEventBase):
    """An edge is followed."""

    event_type: Literal["EDGE_ACTIVE"] = "EDGE_ACTIVE"


class CouncilVote(GraphEventBase):
    """A member of a council votes."""

    event_type: Literal["COUNCIL_VOTE"] = "COUNCIL_VOTE"


class GraphError(GraphEventBase):
    """A node fails."""

    event_type: Literal["ERROR"] = "ERROR"


class ArtifactGenerated(GraphEventBase):
    """A node has produced an artifact."""

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
    # Built on first use: it costs as much as importing half of this package.
    return TypeAdapter(GraphEvent)


def read_graph_event(data: Any) -> GraphEventBase:
    """Parse an event of a graph from a JSON object; `event_type` names its class. Raise ValueError if `data` is none."""
    return _event_adapter().validate_python(data)
