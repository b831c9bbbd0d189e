"""One request through one agent: gateway, admission, mailboxes, dispatcher, turn, response, outbox, commands."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "access_requests": ["Admissions"],
        "agent_factory": ["AgentParts", "build_agent", "find_agents", "load_agent"],
        "client_features": ["UnknownDevices"],
        "commands.decorator": ["command"],
        "commands.dialogs": ["Dialogues"],
        "commands.model": ["Outcome"],
        "expiry": ["OnConversationEnd"],
        "files": ["Fetched", "Files", "Progress", "Put", "connection_problem", "fetch", "status_in_words"],
        "function_agent": ["agent"],
        "gateway": ["Door"],
        "metrics": ["Recent"],
        "outbound": ["Tracked"],
        "peers": [
            "Answer",
            "MOST_BYTES",
            "OpenRequests",
            "PeerEvent",
            "Peers",
            "as_request",
            "collect",
            "command_request",
            "write_request",
        ],
        "policy": ["Policy"],
        "retention": ["Keep", "Retention"],
        "runner": ["Runner"],
        "status": ["AgentCondition", "AgentStatus", "PlatformStatus"],
    },
)
