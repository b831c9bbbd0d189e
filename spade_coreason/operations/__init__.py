"""Operations: what people and programs do to a platform and its stored data, each written once."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "client": ["call_platform"],
        "endpoint": ["serve_operations"],
        "host": ["ALL_AGENTS", "OperationHost", "RunningAgent", "describe_agents", "select_agent", "select_agents"],
        "definition": ["Actor", "Arguments", "Call", "Caller", "Operation", "PLATFORM_TRAIL", "operation"],
        "status": ["AgentCondition", "AgentStatus", "MetricsSnapshot", "PlatformStatus", "ProcessStatus", "QuotaUsage"],
        "table": ["OPERATIONS"],
        "unix_socket": ["PLATFORM_SOCKET", "user_name"],
    },
)
