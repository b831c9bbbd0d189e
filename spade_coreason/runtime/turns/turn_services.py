"""The services that the turns of one agent share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ...concurrency import DeadlineTimers
from ...contracts import Agent, Interceptor, Next
from ...domain.policy import Policy
from ...memory import HistoryWindows, Usage
from ...storage import AgentRepository
from ..agent_lifecycle import AgentLifecycle
from ..crash_guard import CrashGuard
from ..handlers import route_to_handlers
from ..intake.mailboxes import Mailboxes
from ..upkeep.expiry import ConversationExpiry
from ..upkeep.incidents import IncidentRecorder
from ..upkeep.metrics import Metrics
from .interceptors import chain_around
from .long_answers import LongAnswers
from .outbox import Outbox
from .output import ReplyTimers

if TYPE_CHECKING:
    from ..initiative.initiative import Initiative

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class TurnServices:
    """The services for all turns of one agent. The runner creates them, opens them and closes them."""

    agent: Agent
    interceptors: Sequence[Interceptor]
    jid: str
    repository: AgentRepository
    policy: Policy
    clock: Callable[[], datetime]
    mailboxes: Mailboxes
    crash_guard: CrashGuard
    lifecycle: AgentLifecycle
    expiry: ConversationExpiry
    history_windows: HistoryWindows
    long_answers: LongAnswers
    outbox: Outbox
    reply_timers: ReplyTimers
    assist_timers: DeadlineTimers
    job_timers: DeadlineTimers
    """The timers of the work that `session.later` begins."""
    usage: Usage
    metrics: Metrics
    incidents: IncidentRecorder
    initiative: Initiative = field(init=False)
    """The notifications and schedules of the agent. They are built upon the services."""
    chain: Next | None = field(init=False)
    """The agent's `assist` with the interceptors around it; None if none is around it."""
    _warned_of_return: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.agent = route_to_handlers(self.agent)
        self.chain = chain_around(self.agent, self.interceptors, self.warn_of_return)

    def warn_of_return(self, name: str, returned: object) -> None:
        """Log once for each `assist` that its return value is not sent: to return the reply is the most natural mistake."""
        if name not in self._warned_of_return:
            self._warned_of_return.add(name)
            kind = type(returned).__name__
            log.warning(
                "%s: %s returned a %s; return values are ignored. Send it with `await response.markdown(…)`",
                self.jid,
                name,
                kind,
            )
