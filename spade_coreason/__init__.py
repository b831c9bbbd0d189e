"""Put a plain Python agent on any XMPP server: people chat with it, agents exchange messages, and it remembers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .contracts import *
from .contracts import __all__ as _contracts

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .authoring import agent
    from .config import Settings, load_settings
    from .exceptions import (
        CodecError,
        ConfigError,
        ConnectError,
        CoReasonError,
        DataDirectoryInUse,
        LoginError,
        MemoryFileError,
        PeerError,
        PeerFailed,
        PeerRefused,
        PeerTimeout,
        PeerUnavailable,
        ServerError,
        StoreError,
    )
    from .peers import Answer, PeerEvent, Peers
    from .runner import Policy, Runner
    from .service import Platform
    from .stores.memory import AgentInteractionMemory
    from .testing import AgentTester
    from .xmpp.client import AgentClient
    from .xmpp.host import HostedAgent

# Imported when first used: SPADE alone takes half a second, and who writes an agent or a test needs none of it.
_LAZY = {
    "agent": "authoring",
    "Settings": "config",
    "load_settings": "config",
    "Answer": "peers",
    "PeerEvent": "peers",
    "Peers": "peers",
    "Policy": "runner",
    "Runner": "runner",
    "Platform": "service",
    "AgentInteractionMemory": "stores.memory",
    "AgentTester": "testing",
    "AgentClient": "xmpp.client",
    "HostedAgent": "xmpp.host",
    "CoReasonError": "exceptions",
    "CodecError": "exceptions",
    "ConfigError": "exceptions",
    "ConnectError": "exceptions",
    "DataDirectoryInUse": "exceptions",
    "LoginError": "exceptions",
    "MemoryFileError": "exceptions",
    "PeerError": "exceptions",
    "PeerFailed": "exceptions",
    "PeerRefused": "exceptions",
    "PeerTimeout": "exceptions",
    "PeerUnavailable": "exceptions",
    "ServerError": "exceptions",
    "StoreError": "exceptions",
}

__all__ = [*_contracts, *_LAZY]  # noqa: PLE0604 - both are lists of texts


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
