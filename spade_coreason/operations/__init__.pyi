from .client import call_platform as call_platform
from .definition import (
    PLATFORM_TRAIL as PLATFORM_TRAIL,
    Actor as Actor,
    Arguments as Arguments,
    Call as Call,
    Caller as Caller,
    Operation as Operation,
    operation as operation,
)
from .endpoint import serve_operations as serve_operations
from .host import (
    ALL_AGENTS as ALL_AGENTS,
    OperationHost as OperationHost,
    RunningAgent as RunningAgent,
    describe_agents as describe_agents,
    select_agent as select_agent,
    select_agents as select_agents,
)
from .status import (
    AgentCondition as AgentCondition,
    AgentStatus as AgentStatus,
    MetricsSnapshot as MetricsSnapshot,
    PlatformStatus as PlatformStatus,
    ProcessStatus as ProcessStatus,
    QuotaUsage as QuotaUsage,
)
from .table import OPERATIONS as OPERATIONS
from .unix_socket import (
    PLATFORM_SOCKET as PLATFORM_SOCKET,
    user_name as user_name,
)
