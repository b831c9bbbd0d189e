from .audit import (
    GENESIS_HASH as GENESIS_HASH,
    AuditEntry as AuditEntry,
)
from .authoring import (
    Agent as Agent,
    Response as Response,
    Session as Session,
    Stream as Stream,
)
from .base import (
    CoReasonBaseModel as CoReasonBaseModel,
)
from .blocks import (
    AnyBlock as AnyBlock,
    Block as Block,
    DataBlock as DataBlock,
    MarkdownBlock as MarkdownBlock,
    ThinkingBlock as ThinkingBlock,
    UserErrorBlock as UserErrorBlock,
)
from .errors import (
    ErrorCode as ErrorCode,
    ErrorDomain as ErrorDomain,
)
from .events import (
    ArtifactGenerated as ArtifactGenerated,
    CloudEvent as CloudEvent,
    CouncilVote as CouncilVote,
    EdgeActive as EdgeActive,
    GraphError as GraphError,
    GraphEvent as GraphEvent,
    GraphEventBase as GraphEventBase,
    NodeDone as NodeDone,
    NodeInit as NodeInit,
    NodeRestored as NodeRestored,
    NodeSkipped as NodeSkipped,
    NodeStart as NodeStart,
    NodeStream as NodeStream,
    StreamAbort as StreamAbort,
    StreamChunkData as StreamChunkData,
    StreamEnd as StreamEnd,
    StreamStart as StreamStart,
    read_graph_event as read_graph_event,
)
from .initiative import (
    Missed as Missed,
    Notification as Notification,
    NotificationState as NotificationState,
    Schedule as Schedule,
)
from .interceptors import (
    Accept as Accept,
    Interceptor as Interceptor,
    Next as Next,
    ReceivedRequest as ReceivedRequest,
    Refuse as Refuse,
    ResponseWrapper as ResponseWrapper,
)
from .manifest import (
    AgentCapability as AgentCapability,
    AgentDefinition as AgentDefinition,
    AgentDependencies as AgentDependencies,
    AgentMetadata as AgentMetadata,
    AgentRuntimeConfig as AgentRuntimeConfig,
    InlineToolDefinition as InlineToolDefinition,
    ModelConfig as ModelConfig,
    ObservabilityConfig as ObservabilityConfig,
    PolicyConfig as PolicyConfig,
    RiskLevel as RiskLevel,
    ToolRequirement as ToolRequirement,
)
from .memory import (
    MemoryConfig as MemoryConfig,
    MemoryStrategy as MemoryStrategy,
)
from .protocols import (
    AgentInterface as AgentInterface,
    EventSink as EventSink,
    LifecycleInterface as LifecycleInterface,
    ResponseHandler as ResponseHandler,
    SessionHandle as SessionHandle,
    StreamHandle as StreamHandle,
)
from .questions import (
    PersonAnswer as PersonAnswer,
    QuestionState as QuestionState,
)
from .request import (
    AgentRequest as AgentRequest,
    ClientCapabilities as ClientCapabilities,
    Identity as Identity,
)
from .session import (
    AttachedFile as AttachedFile,
    ContentPart as ContentPart,
    ConversationRecord as ConversationRecord,
    ConversationState as ConversationState,
    Interaction as Interaction,
    LineageMetadata as LineageMetadata,
    MultiModalInput as MultiModalInput,
    SessionState as SessionState,
)

__all__: list[str]
