"""The conversations of one agent with what holds them: built once, and used by its intake, its turns and its control."""

from __future__ import annotations

from dataclasses import dataclass

from ...memory import HistoryWindows
from ..mailboxes.limits import QuotaLimit
from ..mailboxes.mailboxes import Mailboxes
from ..mailboxes.withdrawal import Withdrawal
from ..replies.outbox import Outbox
from ..replies.output import TurnOutputs
from .agent_lifecycle import AgentLifecycle
from .conversation_loader import ConversationLoader
from .expiry import ConversationExpiry
from .retention_job import RetentionJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationParts:
    """The parts of one agent that others share."""

    mailboxes: Mailboxes
    withdrawal: Withdrawal
    quota_limit: QuotaLimit
    lifecycle: AgentLifecycle
    expiry: ConversationExpiry
    history_windows: HistoryWindows
    loader: ConversationLoader
    retention_job: RetentionJob
    outbox: Outbox
    outputs: TurnOutputs
