"""The vocabulary of CoReason: frozen values and structural Protocols. Imports nothing of ours but the errors."""

from .audit import GENESIS_HASH, AuditEntry
from .base import CoReasonBaseModel
from .blocks import AnyBlock, Block, DataBlock, MarkdownBlock, ThinkingBlock, UserErrorBlock
from .conversation import ConversationRecord, ConversationState
from .errors import ErrorCode, ErrorDomain
from .events import CloudEvent, StreamAbort, StreamChunkData, StreamEnd, StreamStart
from .graph import (
    ArtifactGenerated,
    CouncilVote,
    EdgeActive,
    GraphError,
    GraphEvent,
    GraphEventBase,
    NodeDone,
    NodeInit,
    NodeRestored,
    NodeSkipped,
    NodeStart,
    NodeStream,
    read_graph_event,
)
from .identity import Identity
from .manifest import AgentCapability, AgentDefinition, AgentMetadata, AgentRuntimeConfig, ModelConfig
from .memory import MemoryConfig, MemoryStrategy
from .protocols import AgentInterface, EventSink, LifecycleInterface, ResponseHandler, SessionHandle, StreamHandle
from .request import AgentRequest, ClientCapabilities
from .requirements import (
    AgentDependencies,
    InlineToolDefinition,
    ObservabilityConfig,
    PolicyConfig,
    RiskLevel,
    ToolRequirement,
)
from .session import AttachedFile, ContentPart, Interaction, LineageMetadata, MultiModalInput, SessionState

__all__ = [
    "GENESIS_HASH",
    "AgentCapability",
    "AgentDefinition",
    "AgentDependencies",
    "AgentInterface",
    "AgentMetadata",
    "AgentRequest",
    "AgentRuntimeConfig",
    "AnyBlock",
    "ArtifactGenerated",
    "AttachedFile",
    "AuditEntry",
    "Block",
    "ClientCapabilities",
    "CloudEvent",
    "CoReasonBaseModel",
    "ContentPart",
    "ConversationRecord",
    "ConversationState",
    "CouncilVote",
    "DataBlock",
    "EdgeActive",
    "ErrorCode",
    "ErrorDomain",
    "EventSink",
    "GraphError",
    "GraphEvent",
    "GraphEventBase",
    "Identity",
    "InlineToolDefinition",
    "Interaction",
    "LifecycleInterface",
    "LineageMetadata",
    "MarkdownBlock",
    "MemoryConfig",
    "MemoryStrategy",
    "ModelConfig",
    "MultiModalInput",
    "NodeDone",
    "NodeInit",
    "NodeRestored",
    "NodeSkipped",
    "NodeStart",
    "NodeStream",
    "ObservabilityConfig",
    "PolicyConfig",
    "ResponseHandler",
    "RiskLevel",
    "SessionHandle",
    "SessionState",
    "StreamAbort",
    "StreamChunkData",
    "StreamEnd",
    "StreamHandle",
    "StreamStart",
    "ThinkingBlock",
    "ToolRequirement",
    "UserErrorBlock",
    "read_graph_event",
]
