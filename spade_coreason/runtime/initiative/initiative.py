"""The initiative of one agent: its notifier, its scheduler and the clock of its tasks, opened with its runner."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid5

from ...contracts import AnyBlock
from ...domain.identifiers import NOTIFICATION_NAMESPACE
from ...domain.messages import REPLY_THREAD, InboundRequest
from ...memory import ActivePerson
from ...storage import NOTIFICATION, QUESTION, SCHEDULE, Rows, StoredAgent, addition_of
from ..questions.desk import QuestionDesk
from ..tasks import TaskRunner
from ..turns.step_journal import StepJournal
from ..turns.turn_services import TurnServices
from .notifier import Notifier
from .people import dump_reply_blocks
from .scheduler import Scheduler
from .turn_schedules import TurnSchedules


class Initiative:
    """The notifications and schedules of one agent (`TurnInitiative`), and the clock of its tasks."""

    def __init__(
        self, services: TurnServices, notifier: Notifier, scheduler: Scheduler, questions: QuestionDesk, tasks: TaskRunner
    ) -> None:
        self._services = services
        self._questions = questions
        self.notifier = notifier
        self.scheduler = scheduler
        self.tasks = tasks
        tasks.handlers |= {NOTIFICATION: notifier, SCHEDULE: scheduler, QUESTION: questions}
        tasks.reviews.append(questions.look_again)

    async def open(self, stored: StoredAgent) -> None:
        """Store the due times of `@every`. StoreError."""
        self.tasks.abandon()  # what was under way in an earlier run is handed over again
        self._questions.has_open = stored.has_questions
        if stored.next_due is not None:
            self.tasks.wake_at(stored.next_due)
        if stored.has_rights:
            self._questions.review()
        await self.scheduler.open(has_stored=stored.has_own_schedules)

    def forget(self, person: str, threads: Sequence[str | None] | None = None) -> None:
        """Send and run nothing more that is about a person (a bare JID), whose data are being deleted.

        With `threads`, only what is in these conversations of theirs.
        """
        self.tasks.forget(
            lambda task: (
                person in (task.owner, task.root) if threads is None else task.owner == person and task.thread in threads
            )
        )

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
        root, content, now = incoming.stored_root or "", dump_reply_blocks(blocks), self._services.clock()
        return (addition_of(notifications.make_notification(notification_id, incoming.owner, thread, root, content, now)),)

    def wake(self) -> None:
        """Look for what is due: a notification was stored."""
        self.tasks.wake_at(self._services.clock())
