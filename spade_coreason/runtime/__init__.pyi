from .access.access_requests import AccessRequests as AccessRequests
from .agent_factory import (
    build_agent as build_agent,
    find_agent as find_agent,
    find_agents as find_agents,
    load_agent as load_agent,
)
from .assembly import (
    AgentParts as AgentParts,
    AgentRules as AgentRules,
    AgentRuntime as AgentRuntime,
    BuildRuntime as BuildRuntime,
)
from .channels import (
    PLAIN_PRESENTATION as PLAIN_PRESENTATION,
    AgentNetwork as AgentNetwork,
    Channel as Channel,
    ChannelGateway as ChannelGateway,
    ClientFeatures as ClientFeatures,
    OutboundMessage as OutboundMessage,
    PresentationOptions as PresentationOptions,
    ReplyEncoder as ReplyEncoder,
    RequestState as RequestState,
    SendMessages as SendMessages,
    UnknownClientFeatures as UnknownClientFeatures,
)
from .commands.answers import (
    describe_outcome as describe_outcome,
)
from .commands.decorator import (
    command as command,
)
from .commands.dialogs import (
    AdHocSessions as AdHocSessions,
)
from .conversations.expiry import OnConversationEnd as OnConversationEnd
from .crash_guard import (
    CrashGuard as CrashGuard,
)
from .files import (
    FetchedFile as FetchedFile,
    FetchFile as FetchFile,
    Files as Files,
    Progress as Progress,
    UploadFile as UploadFile,
    UploadWarnings as UploadWarnings,
    describe_connection_error as describe_connection_error,
    describe_upload_problem as describe_upload_problem,
    fetch as fetch,
    format_status as format_status,
)
from .function_agent import (
    agent as agent,
)
from .garbage_collection import tune_gc as tune_gc
from .initiative.decorator import (
    every as every,
)
from .initiative.people import (
    People as People,
)
from .intake.gateway import (
    InboundGateway as InboundGateway,
)
from .interceptors import (
    InterceptorSource as InterceptorSource,
    load_interceptors as load_interceptors,
    make_interceptor as make_interceptor,
)
from .observability.metrics import HISTOGRAM_LIMITS_S as HISTOGRAM_LIMITS_S, Histogram as Histogram, Metrics as Metrics
from .observability.opentelemetry import (
    OpenTelemetryTracing as OpenTelemetryTracing,
)
from .peers.directory import (
    PlatformDirectory as PlatformDirectory,
)
from .peers.open_requests import OpenRequests as OpenRequests
from .peers.peer_answers import (
    PeerAnswer as PeerAnswer,
    PeerEvent as PeerEvent,
    collect_answer as collect_answer,
)
from .peers.peers import (
    FanOutLimit as FanOutLimit,
    PeerOptions as PeerOptions,
    Peers as Peers,
    Retry as Retry,
    command_request as command_request,
    to_request as to_request,
)
from .questions.turn_questions import (
    ApprovalCall as ApprovalCall,
    ApprovalDecision as ApprovalDecision,
)
from .replies.person_encoder import (
    LiveMessage as LiveMessage,
    PersonEncoder as PersonEncoder,
    PersonMessage as PersonMessage,
    TextForm as TextForm,
)
from .runner import (
    Runner as Runner,
)
from .steps.current import CURRENT_REQUEST as CURRENT_REQUEST
from .steps.steps import MAX_RESULT_BYTES as MAX_RESULT_BYTES
from .topics.decorator import (
    subscribe as subscribe,
)
from .topics.store import (
    TopicStore as TopicStore,
)
