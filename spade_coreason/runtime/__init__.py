"""The way of a request through one agent: gateway, admission, mailboxes, dispatcher, turn, response, outbox, commands."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "access_requests": ["AccessRequests"],
        "agent_factory": ["Injectables", "build_agent", "find_agents", "load_agent"],
        "client_features": ["UnknownClientFeatures"],
        "commands.decorator": ["command"],
        "commands.dialogs": ["AdHocSessions"],
        "commands.model": ["CommandResult"],
        "expiry": ["OnConversationEnd"],
        "files": ["FetchedFile", "Files", "Progress", "UploadFile", "describe_connection_error", "fetch", "format_status"],
        "function_agent": ["agent"],
        "gateway": ["InboundGateway"],
        "metrics": ["MetricsSnapshot"],
        "outbound_stanza": ["OutboundStanza"],
        "peers": [
            "MAX_REQUEST_BYTES",
            "OpenRequests",
            "PeerAnswer",
            "PeerEvent",
            "Peers",
            "collect_answer",
            "command_request",
            "encode_request",
            "to_request",
        ],
        "policy": ["Keep", "Policy", "Retention"],
        "runner": ["Runner"],
        "status": ["AgentCondition", "AgentStatus", "PlatformStatus"],
    },
)
