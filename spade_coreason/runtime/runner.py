"""The runner of one agent: it is opened, drained and closed here, and answers what the platform and commands ask about it.

A request takes another way: `intake.gateway` lists it by module, and `turns.worker` answers it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..domain.texts.translation import translate
from ..storage import StoredAgent
from .agent_control import AgentControl
from .commands.executor import CommandExecutor
from .commands.model import Command, CommandResult
from .initiative.initiative import Initiative
from .intake.received_reactions import ReceivedReactions
from .intake.request_intake import RequestIntake
from .intake.revocation import AccessRevocation
from .turns.turn_services import TurnServices
from .turns.worker import MailboxWorkers
from .upkeep.retention_job import Purged, RetentionJob

log = logging.getLogger(__name__)


class Runner:
    """The runner of one agent: one turn at a time within a conversation, many conversations at once.

    Call `open` before the agent goes online. To stop, call `drain`, then `close`. Use all methods from one event loop.
    """

    def __init__(
        self,
        services: TurnServices,
        control: AgentControl,
        intake: RequestIntake,
        workers: MailboxWorkers,
        revocation: AccessRevocation,
        executor: CommandExecutor,
        reactions: ReceivedReactions,
        retention_job: RetentionJob,
    ) -> None:
        self._services = services
        self._recovery = control.recovery
        self._workers = workers
        self._revocation = revocation
        self._executor = executor
        self._reactions = reactions
        self._retention_job = retention_job
        self._mailboxes = services.mailboxes
        self.agent = executor.context.agent
        self.jid = services.jid
        """The bare JID of the agent."""
        self.repository = services.repository
        self.policy = services.policy
        self.metrics = services.metrics
        self.history_windows = services.history_windows
        self.intake = intake
        """The intake of requests."""
        self.languages = intake.languages
        """The languages that people have set."""
        self.commands = executor.commands
        self.command_context = executor.context
        self.quota_limit = control.quota_limit
        self.control = control
        """The running agent as operations use it."""

    @property
    def initiative(self) -> Initiative:
        """The notifications and schedules of the agent."""
        return self.control.initiative

    # Opening and closing

    async def open(self, stored: StoredAgent | None = None) -> None:
        """Load what the last run left unfinished, and begin to accept requests.

        Requests that were received before this call are queued behind the recovered ones. `stored` is what the repository has
        loaded for the agent since its last run; by default it is loaded now.
        """
        services = self._services
        await self.repository.inbox.open()
        stored = stored or await self.repository.load_agent()
        self.control.load(stored)
        self.quota_limit.load(stored)
        self.languages.load(stored)
        await services.expiry.open(stored)
        self._retention_job.open()
        await services.lifecycle.open()
        pending = await self.repository.inbox.load_pending()
        self._mailboxes.start(self._workers.run)
        self._recovery.recover(pending)
        self._revocation.open()
        await self.initiative.open(stored)

    def send_unsent(self) -> None:
        """Send the final replies that the last run stored and the server did not acknowledge, with the same ids.

        From now on, due notifications are sent, and due times run.
        """
        self._services.outbox.send_unsent(self._services.repository.questions.mark_shown)
        self.initiative.tasks.open()

    def hold(self, at_most_s: float) -> None:
        """Start no turns of people's requests until `release`, so that older requests of the archive go before them."""
        self._mailboxes.archive_hold.begin(at_most_s)

    def release(self) -> None:
        """Start the turns that `hold` has held."""
        self._mailboxes.release_when_resolved()

    async def drain(self, grace_s: float) -> bool:
        """Start no new turns, and wait up to `grace_s` for those that run. Return False if some were cancelled.

        Requests whose turn was cancelled or had not begun stay in the inbox, and run after the next start.
        """
        await self.initiative.tasks.close()
        return await self._mailboxes.drain(grace_s)

    async def abandon(self) -> None:
        """Start no new turns, cancel those that run, and wait until they have ended, if `drain` or `close` has failed."""
        await self._mailboxes.drain(0)
        await self._mailboxes.wait_until_idle()
        await self.initiative.tasks.close()

    async def close(self) -> None:
        """Close the agent, after `drain`: end the background tasks and run `shutdown()`."""
        services = self._services
        services.reply_timers.stop()
        services.assist_timers.abandon_all()
        for sender in self._mailboxes.cancel_workers():
            log.error("%s: a turn of %s ignores its cancellation, and is abandoned", self.jid, sender)
        await self._retention_job.close()
        await services.expiry.close()
        await self._mailboxes.wait_until_idle()
        self.initiative.tasks.abandon()
        await self._reactions.wait_until_idle()
        await self.history_windows.close()
        await services.lifecycle.close()

    # The state of the work

    @property
    def turns_in_flight(self) -> int:
        """Number of conversations with a turn that runs or waits."""
        return self._mailboxes.busy_count

    @property
    def waiting_count(self) -> int:
        """The number of stored requests that wait for their turn, or for the end of a pause."""
        return self._mailboxes.waiting_count

    @property
    def conversation_count(self) -> int:
        """The number of conversations in memory."""
        return len(self._mailboxes.conversations)

    @property
    def is_cancelling_turns(self) -> bool:
        """True while a stop cancels the running turns, whose requests run again after the next start."""
        return self._mailboxes.is_cancelling_turns

    @property
    def cut_off_rows(self) -> set[int]:
        """The rows in the inbox of the requests whose turns a stop has cancelled."""
        return self._mailboxes.cut_off_rows

    @property
    def without_channel(self) -> Counter[str]:
        """The number of stored requests and replies that wait for a channel which this agent does not have, by its name."""
        return self._recovery.without_channel

    def count_queued(self, sender: str) -> int:
        """Count the requests of a sender (a bare JID) that wait for their turn."""
        return self._mailboxes.count_queued(sender)

    async def wait_until_idle(self, *mailbox_key: str | None) -> None:
        """Wait until no turn runs or waits.

        `mailbox_key` limits that to one mailbox: its sender (a bare JID) and its thread.
        """
        await self._mailboxes.wait_until_idle(*mailbox_key)

    # Upkeep

    async def purge(self) -> Purged:
        """Delete permanently what `Policy.retention` does not keep. The runner does so at the start and once a day."""
        return await self._retention_job.run()

    async def expire_idle(self) -> None:
        """End the conversations that have been idle for the idle timeout. The runner does so when one is due."""
        await self._services.expiry.expire_idle()

    # What commands need

    async def run_command(
        self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None = None
    ) -> CommandResult:
        """Run a command of `owner` (a bare JID) outside of a turn, and return its result.

        The command applies to `conversation_id`, which must belong to `owner`; by default to the newest conversation of
        `owner`. A command that changes a conversation waits for its turn there. Raises `StoreError`; `FieldError` for a
        value that the command does not accept; `CancelledError` if the conversation is deleted while the command waits.
        """
        if not self._mailboxes.is_accepting:
            return CommandResult(translate("I am about to stop. Please try again later."), is_error=True)
        return await self._executor.run_command(owner, command, values, conversation_id)

    def send_command_result(self, owner: str, result: CommandResult) -> None:
        """Send the result of a command to `owner` (a bare JID), outside of a turn."""
        self._executor.send_command_result(owner, result)
