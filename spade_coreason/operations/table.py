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
    memory,
    people,
    platform,
    requests,
    sessions,
)
from .definition import Operation
from .doors import keys, logins, webhooks
from .initiative import notifications, questions, schedules, topics

_MODULES = (
    platform,
    agents,
    access,
    conversations,
    sessions,
    people,
    memory,
    knowledge,
    requests,
    notifications,
    schedules,
    questions,
    incidents,
    topics,
    audit,
    keys,
    webhooks,
    logins,
)

OPERATIONS: Mapping[str, Operation[Any, Any]] = {
    found.name: found for module in _MODULES for found in vars(module).values() if isinstance(found, Operation)
}
"""All operations, by their names."""
