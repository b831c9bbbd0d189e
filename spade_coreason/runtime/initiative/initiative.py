"""The initiative of one agent: its notifier, its scheduler and their clock, opened and closed with its runner."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid5

from ...contracts import AnyBlock
from ...domain.identifiers import NOTIFICATION_NAMESPACE
from ...domain.messages import REPLY_THREAD, InboundRequest
from ...memory import ActivePerson
from ...storage import Rows, StoredAgent
from ..questions.desk import QuestionDesk
from ..turns.step_journal import StepJournal
from ..turns.turn_services import TurnServices
from .due_times import DueTimes
from .notifier import Notifier
from .people import dump_reply_blocks
from .scheduler import Scheduler
from .turn_schedules import TurnSchedules


class Initiative:
    """The notifications and schedules of one agent (`TurnInitiative`)."""

    def __init__(self, services: TurnServices, notifier: Notifier, scheduler: Scheduler, questions: QuestionDesk) -> None:
        self._services = services
        self._questions = questions
        self.notifier = notifier
        self.scheduler = scheduler
        sources = (scheduler, notifier, questions)
        self.due_times = DueTimes(services.jid, sources, services.clock, services.policy.timings.retry_s)
        notifier.due_times = scheduler.due_times = questions.due_times = self.due_times

    async def open(self, stored: StoredAgent) -> None:
        """Store the due times of `@every`. StoreError."""
        self.notifier.reset()
        self._questions.has_open = stored.has_questions
        if stored.next_due is not None:
            self.due_times.wake_at(stored.next_due)
        if stored.has_rights:
            self._questions.review()
        await self.scheduler.open(has_stored=stored.has_own_schedules)

    def begin(self) -> None:
        """Begin to hand over what is due: the agent is online."""
        self.due_times.open()

    async def close(self) -> None:
        """Hand over nothing more, and wait for what is being stored."""
        await self.due_times.close()

    @property
    def is_busy(self) -> bool:
        """True while something due is handed over, or the state of a notification is stored."""
        return self.due_times.is_due or self.notifier.is_storing

    async def wait_until_idle(self) -> None:
        """Hand over what is due now, and wait until the states of notifications are stored. Turns may still run."""
        await self.due_times.catch_up()
        await self.notifier.wait_until_stored()

    def forget(self, person: str, threads: Sequence[str | None] | None = None) -> None:
        """Send and run nothing more that is about a person (a bare JID), whose data are being deleted.

        With `threads`, only what is in these conversations of theirs.
        """
        self.notifier.forget(person, threads)
        self.scheduler.forget()

    def open_schedules(self, incoming: InboundRequest, journal: StepJournal, person: ActivePerson) -> TurnSchedules:
        """Return the schedules of a turn."""
        zone = person.preferences.zone or self._services.policy.notifications.zone
        return TurnSchedules(self.scheduler, journal, incoming, zone, self._services.clock)

    def notify_of_job(self, incoming: InboundRequest, key: UUID, blocks: Sequence[AnyBlock]) -> Rows:
        """Return the rows of the notification with the reply of a job; none if no person is told, or nothing is said."""
        if not blocks or REPLY_THREAD not in incoming.metadata:
            return ()
        notifications, thread = self._services.repository.notifications, incoming.metadata[REPLY_THREAD]
        notification_id = str(uuid5(NOTIFICATION_NAMESPACE, f"job\0{key}"))
        owner, now = incoming.owner, self._services.clock()
        root = incoming.stored_root or ""
        new = notifications.make(notification_id, owner, thread, "" if root == owner else root, dump_reply_blocks(blocks), now)
        return (notifications.add_row(new),)

    def wake(self) -> None:
        """Look for what is due: a notification was stored."""
        self.due_times.wake_at(self._services.clock())
