"""The services that the turns of one agent share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ..concurrency import DeadlineTimers
from ..contracts import Next
from ..memory import HistoryWindows, Knowledge, Usage
from ..storage import AgentRepository
from .agent_lifecycle import AgentLifecycle
from .expiry import ConversationExpiry
from .long_answers import LongAnswers
from .mailboxes import Mailboxes
from .metrics import Metrics
from .outbox import Outbox
from .output import ReplyTimers
from .policy import Policy
from .transport import Transport


@dataclass(slots=True, eq=False, kw_only=True)
class TurnServices:
    """The services for all turns of one agent. The runner creates them, opens them and closes them."""

    assist: Next
    """The agent's `assist`, with the interceptors around it."""
    jid: str
    repository: AgentRepository
    policy: Policy
    clock: Callable[[], datetime]
    mailboxes: Mailboxes
    lifecycle: AgentLifecycle
    expiry: ConversationExpiry
    history_windows: HistoryWindows
    knowledge: Knowledge | None
    long_answers: LongAnswers
    outbox: Outbox
    transport: Transport
    reply_timers: ReplyTimers
    assist_timers: DeadlineTimers
    usage: Usage
    metrics: Metrics
    has_warned_of_return: bool = False
    """True once the log has warned that the return value of `assist` is not sent."""
