"""The way of a request through one agent: gateway, mailboxes, turn, response, outbox, commands; and the port to a network."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "access_requests": ["AccessRequests"],
        "agent_factory": ["Injectables", "build_agent", "find_agents", "load_agent"],
        "commands.decorator": ["command"],
        "commands.dialogs": ["AdHocSessions"],
        "commands.model": ["CommandResult"],
        "expiry": ["OnConversationEnd"],
        "files": ["FetchedFile", "Files", "Progress", "UploadFile", "describe_connection_error", "fetch", "format_status"],
        "function_agent": ["agent"],
        "gateway": ["InboundGateway"],
        "metrics": ["MetricsSnapshot"],
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
        "runner": ["Runner"],
        "transport": [
            "PLAIN_PRESENTATION",
            "ClientFeatures",
            "OutboundMessage",
            "PresentationOptions",
            "SendMessages",
            "UnknownClientFeatures",
        ],
        "status": ["AgentCondition", "AgentStatus", "PlatformStatus"],
    },
)
