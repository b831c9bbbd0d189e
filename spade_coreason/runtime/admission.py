"""Admission: the limits of the queues, of hops between agents and of a conversation; and the cancelling of requests."""

from __future__ import annotations

import asyncio
from datetime import datetime

from ..concurrency import RATE_INTERVAL_S
from ..contracts import ErrorCode
from ..domain import conversation
from ..domain.conversation import RUN, Decision, Rules
from ..domain.messages import InboundRequest, Refused, conversation_owner
from ..domain.value import replace
from ..memory import ActiveConversation
from ..storage import Inbox
from .mailbox import Mailboxes, QueuedRequest
from .thread_resolver import ThreadResolver


def decide_for_conversation(active: ActiveConversation, incoming: InboundRequest, now: datetime, rules: Rules) -> Decision:
    """Decide what a request does to its conversation: run it, refuse it, or refuse it with a notice.

    Counts in `active` how often the sender has echoed the last reply of the agent. Requests of programs are not counted.
    """
    decision = conversation.decide_on_message(active.record.status, now, rules)
    if incoming.channel == "program":
        return decision
    text = str(incoming.payload.get("query", ""))
    is_echo = bool(active.last_reply) and active.last_reply in text and decision.ended_state is None
    active.echo_count = active.echo_count + 1 if is_echo else 0
    if active.echo_count >= conversation.ECHOES_UNTIL_PAUSE and decision.outcome is RUN:
        uncounted = replace(decision.status, interaction_count=decision.status.interaction_count - 1)  # an echo gets no turn
        return conversation.refuse_echo(uncounted, now, rules)
    return decision


def refusal_notice(
    active: ActiveConversation, incoming: InboundRequest, now: datetime, rules: Rules, *, has_commands: bool
) -> Refused:
    """Build the notice that a conversation pauses: the reason, and how to go on.

    The runner sends it once to a person, and each time to a program, because a program waits for a reply.
    """
    status, limit = active.record.status, rules.max_interactions
    quiet_until = status.quiet_until
    retry_after_s = rules.cooldown.total_seconds() if quiet_until is None else (quiet_until - now).total_seconds()
    text = (
        f"That is all for now: {'1 message is' if limit == 1 else f'{limit} messages are'} the limit of a conversation."
        if limit and status.interaction_count >= limit
        else "I pause here: this conversation goes round in circles."
    )
    text += f" Write again in {_format_duration(retry_after_s)}, or begin another thread"
    text += " (or say /new)." if has_commands and incoming.may_be_command else "."
    return Refused(text, ErrorCode.TOO_MANY_REQUESTS, retry_after_s)


def _format_duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


MAX_HOPS = 16
"""Largest number of agents that a request may pass through.

Each agent asks in a conversation of its own, so no other limit would end a circle.
"""

_MAX_QUEUES_PER_SENDER = 10  # a sender may have as many queued requests as so many full mailboxes hold

_POLL_S = 1.0


class AdmissionControl:
    """The limits of the queues of one agent.

    At most `max_queued` requests of one conversation are queued, and ten times as many of one sender.
    """

    def __init__(self, mailboxes: Mailboxes, thread_resolver: ThreadResolver, inbox: Inbox, max_queued: int) -> None:
        self._mailboxes = mailboxes
        self._thread_resolver = thread_resolver
        self._inbox = inbox
        self._max_queued = max_queued

    def refusal(self, incoming: InboundRequest, sender: str) -> Refused | None:
        """Return the refusal for a request that is not stored; None if it is admitted."""
        if self.is_full(sender, incoming.thread):
            subject = f"{self._max_queued} messages of this conversation"
            if not self._is_mailbox_full(sender, incoming.thread):
                subject = f"{self._max_queued * _MAX_QUEUES_PER_SENDER} messages of yours"
            text = f"{subject} wait already; until some are answered no more are kept."
            return Refused(text, ErrorCode.TOO_MANY_REQUESTS, RATE_INTERVAL_S)
        if incoming.hops > MAX_HOPS:
            text = f"This was asked through {incoming.hops} agents one after the other: they seem to ask in a circle."
            return Refused(text, ErrorCode.TOO_MANY_REQUESTS)
        return None

    async def wait_for_capacity(self, incoming: InboundRequest) -> None:
        """Wait until the queues have room for a request."""
        sender = conversation_owner(incoming)
        while self.is_full(sender, incoming.thread):
            workers = [mailbox.worker for mailbox in self._mailboxes.of_sender(sender) if mailbox.worker is not None]
            if workers:
                await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(_POLL_S)  # the agent is paused; nothing here is called when the pause ends

    def cancel(self, sender: str, message_id: str) -> bool:
        """Remove a request of a sender (a bare JID) from its queue, or stop its turn. Return True if it was found."""
        for mailbox in self._mailboxes.of_sender(sender):
            if mailbox.current is not None and mailbox.current.has_message_id(message_id):
                return mailbox.cancel_current()
            for queued in mailbox.queue:
                if isinstance(queued, QueuedRequest) and queued.has_message_id(message_id):
                    mailbox.remove(queued)
                    self._inbox.close(queued.inbox_row)
                    return True
        if (unresolved := self._thread_resolver.cancel(sender, message_id)) is not None:
            self._inbox.close(unresolved.inbox_row)
            return True
        return False

    def is_full(self, sender: str, thread: str | None) -> bool:
        """Return True if no further request of a sender (a bare JID) may be queued on a thread."""
        queued_count = self._mailboxes.count_queued(sender) + self._thread_resolver.count_queued(sender)
        return queued_count >= self._max_queued and (
            queued_count >= self._max_queued * _MAX_QUEUES_PER_SENDER or self._is_mailbox_full(sender, thread)
        )

    def _is_mailbox_full(self, sender: str, thread: str | None) -> bool:
        mailbox = self._mailboxes.get(sender, thread)
        return mailbox is not None and len(mailbox.queue) >= self._max_queued
