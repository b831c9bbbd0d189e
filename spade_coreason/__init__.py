"""Put a plain Python agent on any XMPP server: people chat with it, agents exchange messages, and it remembers."""

import lazy_loader

from ._version import __version__ as __version__

# Each name is imported when it is first used: SPADE alone takes half a second, and an agent or its test needs none of it.
# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "app": ["Platform"],
        "config": ["Settings", "load_manifest", "load_settings"],
        "contracts": [
            "AgentDefinition",
            "AgentInterface",
            "AgentRequest",
            "Identity",
            "Interaction",
            "LifecycleInterface",
            "MemoryConfig",
            "MemoryStrategy",
            "Response",
            "ResponseHandler",
            "Session",
            "SessionHandle",
            "Stream",
            "StreamHandle",
        ],
        "domain.cards": ["AgentCard", "Capability"],
        "exceptions": ["CoReasonError", "ConfigError", "FileError", "ModelError", "PeerError", "StoreError"],
        "memory": ["AgentInteractionMemory", "Knowledge", "MemoryLimits", "SearchHit", "Usage"],
        "runtime": ["Files", "PeerAnswer", "PeerEvent", "Peers", "People", "Retry", "agent", "command", "every", "subscribe"],
        "testing": ["AgentTester"],
        "xmpp": ["AgentClient"],
    },
)
