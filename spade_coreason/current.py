"""Which request the task at hand answers."""

from __future__ import annotations

from contextvars import ContextVar

from .contracts import AgentRequest

CURRENT_REQUEST: ContextVar[AgentRequest | None] = ContextVar("current_request", default=None)
"""The request whose turn runs in this task."""
