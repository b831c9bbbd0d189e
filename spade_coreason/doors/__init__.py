"""DoorAgents: agents behind HTTP, for callers with a key."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "a2a.routes": ["make_a2a_routes"],
        "addresses": ["LOOPBACK_NAMES", "split_host"],
        "authentication": ["FindCaller"],
        "backend": ["CallerRequests", "LocalAgentBackend"],
        "agents": ["DoorAgents"],
        "files": ["make_file_routes", "upload_to_page"],
        "keys": ["KeyRing"],
        "channel": ["DoorEvent", "DoorReply", "NOT_STORED"],
        "caller": ["TRACEPARENT", "Caller"],
        "openai.routes": ["make_openai_routes"],
        "mcp.routes": ["make_mcp_routes"],
        "page.routes": ["make_page_routes"],
        "server": ["DoorRoutes", "WebServer", "check_address"],
        "webhooks.ring": ["WebhookRing"],
        "webhooks.routes": ["make_webhook_routes"],
    },
)
