"""The effect of a command's result on its conversation: a new episode, or a deletion."""

from __future__ import annotations

from dataclasses import replace

from ...domain import conversation
from ...domain.forms.commands import CommandResult
from ...exceptions import ConfigError
from ...memory import ActiveConversation
from ...operations.people import OfWholePerson, delete_person, describe_deletion
from ...operations.sessions import ClearSessions, clear_sessions, describe_deleted
from ..conversations.expiry import ConversationExpiry
from ..mailboxes.mailbox import ERASING_MAILBOX, Mailbox, MailboxTask
from ..mailboxes.withdrawal import Withdrawal
from ..questions.desk import QuestionDesk
from .context import CommandContext


class CommandEffects:
    """Applies the results of one agent's commands."""

    def __init__(self, context: CommandContext, desk: QuestionDesk, expiry: ConversationExpiry, withdrawal: Withdrawal) -> None:
        self._context = context
        self._desk = desk
        self._expiry = expiry
        self._withdrawal = withdrawal

    async def begin_episode(self, mailbox: Mailbox, active: ActiveConversation) -> None:
        """Let the next request begin a new episode, and end the requests that wait for an answer."""
        was_active = active.record.status.is_active
        active.record = active.record.with_status(conversation.allow_new_episode(active.record.status))
        active.echo_count = 0
        await self._desk.end_in_thread(*mailbox.key)
        if was_active:
            await self._expiry.on_ended(active.record.conversation_id, active.record.status.state)

    async def stop(self, mailbox: Mailbox) -> bool:
        """End what waits for an answer, and forget a turn that was cancelled. False if there is nothing to stop."""
        has_stopped = await self._desk.end_in_thread(*mailbox.key) or mailbox.has_cancelled_turn
        mailbox.has_cancelled_turn = False
        return has_stopped

    async def apply(
        self, mailbox: Mailbox, active: ActiveConversation, result: CommandResult, before_row: int
    ) -> CommandResult:
        """Apply the result of a command to a conversation. Requests before the row `before_row` are older than it."""
        if result.kind == "new":
            await self.begin_episode(mailbox, active)
        elif result.kind == "forget everywhere":
            self._drop_older(mailbox, before_row)
            ERASING_MAILBOX.set(mailbox)
            try:
                deletion = await self._context.perform(mailbox.sender, delete_person, OfWholePerson(person=mailbox.sender))
            except ConfigError as error:  # it is an agent, or is being deleted already
                return CommandResult(error.problem, is_error=True)
            return replace(result, text=describe_deletion(deletion))
        elif result.kind in ("forget this", "forget me"):
            self._drop_older(mailbox, before_row)
            wanted = (
                ClearSessions(agent=self._context.jid, person=mailbox.sender)
                if result.kind == "forget me"
                else ClearSessions(agent=self._context.jid, conversation=active.record.conversation_id)
            )
            clearance = await self._context.perform(mailbox.sender, clear_sessions, wanted)
            return replace(result, text=describe_deleted(clearance.erasures[0].report))
        return result

    def _drop_older(self, mailbox: Mailbox, before_row: int) -> None:
        """Drop older requests that a pause has held back."""
        for item in list(mailbox.queue):
            if isinstance(item, MailboxTask) or item.inbox_row < before_row:
                self._withdrawal.drop(mailbox, item)
