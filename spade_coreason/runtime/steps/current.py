"""The request and the journal of the turn that runs in this task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from ...contracts import AgentRequest

if TYPE_CHECKING:  # it needs SQLAlchemy, which clients do without
    from .step_journal import StepJournal

CURRENT_REQUEST: ContextVar[AgentRequest | None] = ContextVar("current_request", default=None)
"""The request whose turn runs in this task."""

CURRENT_JOURNAL: ContextVar[StepJournal | None] = ContextVar("current_journal", default=None)
"""The journal of the turn that runs in this task. It is closed once the turn has ended."""
