"""The journal of the turn that runs in this task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it needs SQLAlchemy, which clients do without
    from .step_journal import StepJournal

CURRENT_JOURNAL: ContextVar[StepJournal | None] = ContextVar("current_journal", default=None)
"""The journal of the turn that runs in this task. It is closed once the turn has ended."""
