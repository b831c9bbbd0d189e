"""The way of a request through one agent: gateway, mailboxes, turn, response, outbox, commands; and the port to a network."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "assembly": ["AgentParts", "AgentRuntime", "BuildRuntime"],
        "isolation.agent": ["IsolatedAgent", "load_isolated_agent", "spec_of"],
        "isolation.description": ["Isolation", "IsolationTimings"],
        "interceptors": ["InterceptorSource", "load_interceptors", "make_interceptor"],
        "access_requests": ["AccessRequests"],
        "agent_factory": ["build_agent", "find_agents", "load_agent"],
        "commands.decorator": ["command"],
        "commands.dialogs": ["AdHocSessions"],
        "commands.model": ["CommandResult"],
        "crash_guard": ["CrashGuard"],
        "expiry": ["OnConversationEnd"],
        "files": [
            "FetchedFile",
            "Files",
            "Progress",
            "UploadFile",
            "UploadWarnings",
            "describe_connection_error",
            "describe_upload_problem",
            "fetch",
            "format_status",
        ],
        "function_agent": ["agent"],
        "gateway": ["InboundGateway"],
        "peers": [
            "OpenRequests",
            "PeerAnswer",
            "PeerEvent",
            "Peers",
            "collect_answer",
            "command_request",
            "to_request",
        ],
        "policy": ["Keep", "Policy", "Retention", "RunnerTimings"],
        "quotas": ["QuotaUsage"],
        "runner": ["Runner"],
        "transport": [
            "PLAIN_PRESENTATION",
            "ClientFeatures",
            "OutboundMessage",
            "PresentationOptions",
            "ReplyChannel",
            "SendMessages",
            "Transport",
            "UnknownClientFeatures",
        ],
        "topics.decorator": ["subscribe"],
        "topics.store": ["TopicStore"],
        "status": ["AgentCondition", "AgentStatus", "PlatformStatus"],
    },
)
