"""The turn in which a record of the log is written, for logs that name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar

TURN_FIELDS: ContextVar[Callable[[], Mapping[str, str]] | None] = ContextVar("turn_fields", default=None)
"""The function that returns the agent, the conversation and the request of the turn in this task. Set if `names_turns`."""

_has_named_turns = False


def name_turns() -> None:
    """Set `TURN_FIELDS` in the turns of agents that are built from now on. Otherwise a turn costs nothing for it."""
    global _has_named_turns
    _has_named_turns = True


def names_turns() -> bool:
    """Return True if `name_turns` was called in this process."""
    return _has_named_turns
