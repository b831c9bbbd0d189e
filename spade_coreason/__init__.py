"""Put a plain Python agent on any XMPP server: people chat with it, agents exchange messages, and it remembers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .contracts import *  # noqa: F403 - all of its __all__ is for users
from .contracts import __all__ as _contracts

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .authoring import agent as agent
    from .config import Settings as Settings
    from .config import load_settings as load_settings
    from .exceptions import ConfigError as ConfigError
    from .exceptions import ConnectError as ConnectError
    from .exceptions import CoReasonError as CoReasonError
    from .exceptions import DataDirectoryInUse as DataDirectoryInUse
    from .exceptions import FetchError as FetchError
    from .exceptions import FileError as FileError
    from .exceptions import KnowledgeError as KnowledgeError
    from .exceptions import LoginError as LoginError
    from .exceptions import MemoryFileError as MemoryFileError
    from .exceptions import MemoryFullError as MemoryFullError
    from .exceptions import ModelError as ModelError
    from .exceptions import PeerError as PeerError
    from .exceptions import PeerFailed as PeerFailed
    from .exceptions import PeerRefused as PeerRefused
    from .exceptions import PeerTimeout as PeerTimeout
    from .exceptions import PeerUnavailable as PeerUnavailable
    from .exceptions import RequestTooLong as RequestTooLong
    from .exceptions import ServerError as ServerError
    from .exceptions import StoreError as StoreError
    from .exceptions import UploadError as UploadError
    from .files import Fetched as Fetched
    from .files import Files as Files
    from .files import fetch as fetch
    from .knowledge import Found as Found
    from .knowledge import Knowledge as Knowledge
    from .own_commands import command as command
    from .peers import Answer as Answer
    from .peers import PeerEvent as PeerEvent
    from .peers import Peers as Peers
    from .runner import Policy as Policy
    from .runner import Runner as Runner
    from .service import Platform as Platform
    from .stores.memory import AgentInteractionMemory as AgentInteractionMemory
    from .stores.memory import MemoryLimits as MemoryLimits
    from .testing import AgentTester as AgentTester
    from .usage import Usage as Usage
    from .xmpp.client import AgentClient as AgentClient
    from .xmpp.host import HostedAgent as HostedAgent

# Imported when first used: SPADE alone takes half a second, and who writes an agent or a test needs none of it.
_LAZY = {
    "agent": "authoring",
    "Settings": "config",
    "load_settings": "config",
    "Fetched": "files",
    "Files": "files",
    "fetch": "files",
    "Found": "knowledge",
    "Knowledge": "knowledge",
    "command": "own_commands",
    "Answer": "peers",
    "PeerEvent": "peers",
    "Peers": "peers",
    "Policy": "runner",
    "Runner": "runner",
    "Platform": "service",
    "AgentInteractionMemory": "stores.memory",
    "MemoryLimits": "stores.memory",
    "AgentTester": "testing",
    "Usage": "usage",
    "AgentClient": "xmpp.client",
    "HostedAgent": "xmpp.host",
    "CoReasonError": "exceptions",
    "ConfigError": "exceptions",
    "ConnectError": "exceptions",
    "DataDirectoryInUse": "exceptions",
    "FetchError": "exceptions",
    "FileError": "exceptions",
    "KnowledgeError": "exceptions",
    "LoginError": "exceptions",
    "ModelError": "exceptions",
    "MemoryFileError": "exceptions",
    "MemoryFullError": "exceptions",
    "PeerError": "exceptions",
    "PeerFailed": "exceptions",
    "PeerRefused": "exceptions",
    "PeerTimeout": "exceptions",
    "PeerUnavailable": "exceptions",
    "RequestTooLong": "exceptions",
    "ServerError": "exceptions",
    "StoreError": "exceptions",
    "UploadError": "exceptions",
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
