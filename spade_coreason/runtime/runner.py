"""The runner of one agent: its parts, opened, drained and closed here in the order in which they need each other.

A request takes another way: `intake.gateway` lists it by module, and `request_handler` answers it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..contracts import Agent
from ..domain.policy import Policy
from ..storage import AgentRepository, StoredAgent
from .access.revocation import AccessRevocation
from .agent_control import AgentControl
from .commands.executor import CommandExecutor
from .conversations.parts import ConversationParts
from .initiative.notifier import Notifier
from .intake.received_reactions import ReceivedReactions
from .intake.request_intake import RequestIntake
from .languages import PersonLanguages
from .mailboxes.mailboxes import Mailboxes, MailboxWorkers
from .observability.metrics import Metrics
from .tasks import TaskClock
from .turns.turn import TurnRunner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The runner of one agent: one turn at a time within a conversation, many conversations at once.

    Call `open` before the agent goes online. To stop, call `drain`, then `close`. Use all methods from one event loop.
    """

    agent: Agent
    repository: AgentRepository
    policy: Policy
    metrics: Metrics
    languages: PersonLanguages
    """The languages that people have set."""
    conversations: ConversationParts
    notifier: Notifier
    task_clock: TaskClock
    intake: RequestIntake
    """The intake of requests."""
    revocation: AccessRevocation
    reactions: ReceivedReactions
    control: AgentControl
    """The running agent as operations use it."""
    executor: CommandExecutor
    turn_runner: TurnRunner
    workers: MailboxWorkers

    @property
    def jid(self) -> str:
        """The bare JID of the agent."""
        return self.repository.agent

    @property
    def mailboxes(self) -> Mailboxes:
        """The requests that wait and run, and the conversations in memory."""
        return self.conversations.mailboxes

    async def open(self, stored: StoredAgent | None = None) -> None:
        """Load what the last run left unfinished, and begin to accept requests.

        Requests that were received before this call are queued behind the recovered ones. `stored` is what the repository has
        loaded for the agent since its last run; by default it is loaded now.
        """
        repository, control, conversations = self.repository, self.control, self.conversations
        await repository.inbox.open()
        stored = stored or await repository.load_agent()
        control.load(stored)
        conversations.quota_limit.load(stored)
        self.languages.load(stored)
        await conversations.expiry.open(stored)
        conversations.retention_job.open()
        await conversations.lifecycle.open()
        pending = await repository.inbox.load_pending()
        self.workers.start()
        control.recovery.recover(pending)
        self.revocation.open()
        self.task_clock.abandon()  # what was under way in an earlier run is handed over again
        control.questions.open(stored)
        if stored.next_due is not None:
            self.task_clock.tasks.alarm.wake_at(stored.next_due)
        await control.schedules.open(has_stored=stored.has_own_schedules)

    def send_unsent(self) -> None:
        """Send the final replies that the last run stored and the server did not acknowledge, with the same ids.

        From now on, due notifications are sent, and due times run.
        """
        self.conversations.outbox.send_unsent(self.repository.questions.mark_shown)
        self.task_clock.open()

    def hold(self, at_most_s: float) -> None:
        """Start no turns of people's requests until `release`, so that older requests of the archive go before them."""
        self.mailboxes.archive_hold.begin(at_most_s)

    def release(self) -> None:
        """Start the turns that `hold` has held."""
        self.mailboxes.release_when_resolved()

    async def drain(self, grace_s: float) -> bool:
        """Start no new turns, and wait up to `grace_s` for those that run. Return False if some were cancelled.

        Requests whose turn was cancelled or had not begun stay in the inbox, and run after the next start.
        """
        await self.task_clock.close()
        return await self.mailboxes.drain(grace_s)

    async def abandon(self) -> None:
        """Start no new turns, cancel those that run, and wait until they have ended, if `drain` or `close` has failed."""
        await self.mailboxes.drain(0)
        await self.mailboxes.wait_until_idle()
        await self.task_clock.close()

    async def close(self) -> None:
        """Close the agent, after `drain`: end the background tasks and run `shutdown()`."""
        conversations = self.conversations
        conversations.outputs.close()
        self.turn_runner.abandon_all()
        for sender in self.mailboxes.cancel_workers():
            log.error("%s: a turn of %s ignores its cancellation, and is abandoned", self.jid, sender)
        await conversations.retention_job.close()
        await conversations.expiry.close()
        await self.mailboxes.wait_until_idle()
        self.task_clock.abandon()
        await self.reactions.wait_until_idle()
        await conversations.history_windows.close()
        await conversations.lifecycle.close()
