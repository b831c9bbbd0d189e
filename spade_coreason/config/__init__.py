"""The settings of a platform: YAML or TOML and the environment, read once into one frozen value."""

from .jid import parse_domain, parse_jid
from .loading import load_settings
from .settings import (
    AccessSettings,
    AgentSettings,
    ConversationSettings,
    LimitSettings,
    ServerSettings,
    Settings,
    StorageSettings,
    TlsSettings,
)

__all__ = [
    "AccessSettings",
    "AgentSettings",
    "ConversationSettings",
    "LimitSettings",
    "ServerSettings",
    "Settings",
    "StorageSettings",
    "TlsSettings",
    "load_settings",
    "parse_domain",
    "parse_jid",
]
