"""The services that the turns of one agent share."""

from __future__ import annotations

import logging
from asyncio import Task
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from ...concurrency import DeadlineTimers
from ...contracts import Agent, AnyBlock, Interceptor, Next
from ...domain.messages import InboundRequest
from ...domain.policy import Policy
from ...memory import ActivePerson, HistoryWindows, SessionSchedules, Usage
from ...storage import AgentRepository, Commit, Rows
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
from .output import ReplyTimers, TurnOutput
from .step_journal import StepJournal

log = logging.getLogger(__name__)


class TurnInitiative(Protocol):
    """The notifications and schedules, as turns use them."""

    def open_schedules(self, incoming: InboundRequest, journal: StepJournal, person: ActivePerson) -> SessionSchedules:
        """Return the schedules of a turn."""
        ...

    def notify_of_job(self, incoming: InboundRequest, key: UUID, blocks: Sequence[AnyBlock]) -> Rows:
        """Return the rows of the notification with the reply of a job; none if no person is told, or nothing is said."""
        ...

    def forget(self, person: str, threads: Sequence[str | None] | None = None) -> None:
        """Send and run nothing more that is about a person (a bare JID), whose data are being deleted.

        With `threads`, only what is in these conversations of theirs.
        """
        ...

    def wake(self) -> None:
        """Look for what is due: a notification was stored."""
        ...


class TurnDesk(Protocol):
    """The questions to people, as turns use them."""

    @property
    def has_open(self) -> bool:
        """False if no question is open. Then no message is looked at as an answer."""
        ...

    def open(self, incoming: InboundRequest, journal: StepJournal, output: TurnOutput, task: Task[Any] | None) -> Any:
        """Return the questions of a turn. `task` is that of `assist`, None in a command."""
        ...

    def release(self, asked: Sequence[Any]) -> None:
        """Count questions (`AskedQuestion`) no more, because they will not be stored."""
        ...

    def park(self, turn: Any, started_at: datetime, reply: str | None) -> Commit[bool]:
        """Store the questions of a turn, and move its request out of the inbox. False if the request was erased before."""
        ...

    async def find_answer(self, queued: Any, mailbox: Any) -> Any:
        """Return the question (`StoredQuestion`) that a text answers without a command, and the `FoundAnswer`.

        None if it is a request.
        """
        ...

    async def end_in_thread(self, owner: str, thread: str | None) -> bool:
        """End the parked requests of an owner (a bare JID) in a thread. False without any. StoreError."""
        ...

    def end_of_messages(self, owner: str, message_ids: Sequence[str], author: str | None) -> Commit[Any] | None:
        """End the parked requests of an owner (a bare JID) with one of these message ids, by their author (None for any).

        None if no request waits for an answer.
        """
        ...


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
    initiative: TurnInitiative = field(init=False)
    """The notifications and schedules, which are built upon the services."""
    questions: TurnDesk = field(init=False)
    """The questions to people."""
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
