"""All operations, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import (
    access,
    agents,
    audit,
    conversations,
    incidents,
    knowledge,
    log_level,
    memory,
    requests,
    sessions,
    status,
    topics,
    turns,
)
from .definition import Operation

_MODULES = (
    status,
    turns,
    agents,
    access,
    log_level,
    conversations,
    sessions,
    memory,
    knowledge,
    requests,
    incidents,
    topics,
    audit,
)

OPERATIONS: Mapping[str, Operation[Any, Any]] = {
    found.name: found for module in _MODULES for found in vars(module).values() if isinstance(found, Operation)
}
"""All operations, by their names."""
