"""How much may wait for an agent, how far a request may have come, and who takes one back."""

from __future__ import annotations

import asyncio
from datetime import datetime

from ..concurrency import RATE_INTERVAL_S
from ..contracts import ErrorCode
from ..domain import conversation
from ..domain.conversation import RUN, Decision, Rules
from ..domain.messages import InboundRequest, Refused, owner_of
from ..domain.value import replace
from ..memory import ActiveConversation
from ..storage import Inbox
from .mailbox import Mailboxes, QueuedRequest
from .thread_resolver import ThreadResolver


def decide(active: ActiveConversation, incoming: InboundRequest, now: datetime, rules: Rules) -> Decision:
    """What a request does to its conversation. Echoes of our own last answer are counted in `active`, but a program's."""
    received = conversation.decide_on_message(active.record.status, now, rules)
    if incoming.channel == "program":
        return received
    text = str(incoming.payload.get("query", ""))
    is_echo = bool(active.last_reply) and active.last_reply in text and received.ended_state is None
    active.echo_count = active.echo_count + 1 if is_echo else 0
    if active.echo_count >= conversation.ECHOES_UNTIL_PAUSE and received.outcome is RUN:
        uncounted = replace(received.status, interaction_count=received.status.interaction_count - 1)  # it gets no turn
        return conversation.refuse_echo(uncounted, now, rules)
    return received


def refusal_notice(
    active: ActiveConversation, incoming: InboundRequest, now: datetime, rules: Rules, *, has_commands: bool
) -> Refused:
    """Why a conversation pauses, and how to go on: a person hears it once, a program, which waits, each time."""
    life, most = active.record.status, rules.max_interactions
    quiet_until = life.quiet_until
    rest_s = rules.cooldown.total_seconds() if quiet_until is None else (quiet_until - now).total_seconds()
    text = (
        f"That is all for now: {'1 message is' if most == 1 else f'{most} messages are'} the limit of a conversation."
        if most and life.interaction_count >= most
        else "I pause here: this conversation goes round in circles."
    )
    text += f" Write again in {_format_duration(rest_s)}, or begin another thread"
    text += " (or say /new)." if has_commands and incoming.may_be_command else "."
    return Refused(text, ErrorCode.TOO_MANY_REQUESTS, rest_s)


def _format_duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


MAX_HOPS = 16

"""Through so many agents a request may go. Each asks in a conversation of its own, so nothing else would end a circle."""

_MAX_QUEUES_PER_SENDER = 10  # of full length; more may not wait of one person, on all threads together

_POLL_S = 1.0


class AdmissionControl:
    """For one agent; `max_queued` requests of one conversation may wait."""

    def __init__(self, mailboxes: Mailboxes, thread_resolver: ThreadResolver, inbox: Inbox, max_queued: int) -> None:
        self._mailboxes = mailboxes
        self._thread_resolver = thread_resolver
        self._inbox = inbox
        self._max_queued = max_queued

    def refusal(self, incoming: InboundRequest, sender: str) -> Refused | None:
        """What the sender of a request hears that is not kept; None for one that is."""
        if self.is_full(sender, incoming.thread):
            text = f"{self._max_queued} messages of this conversation wait already; until some are answered no more are kept."
            if not self._is_mailbox_full(sender, incoming.thread):
                text = f"{self._max_queued * _MAX_QUEUES_PER_SENDER} messages of yours wait already; until some are answered no more are kept."
            return Refused(text, ErrorCode.TOO_MANY_REQUESTS, RATE_INTERVAL_S)
        if incoming.hops > MAX_HOPS:
            text = f"This was asked through {incoming.hops} agents one after the other: they seem to ask in a circle."
            return Refused(text, ErrorCode.TOO_MANY_REQUESTS)
        return None

    async def wait_for_capacity(self, incoming: InboundRequest) -> None:
        """Waits until a request is not refused because too many wait."""
        sender = owner_of(incoming)
        while self.is_full(sender, incoming.thread):
            workers = [lane.worker for lane in self._mailboxes.of_sender(sender) if lane.worker is not None]
            if workers:
                await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(_POLL_S)  # a pause keeps them back, and tells nobody here when it ends

    def cancel(self, sender: str, message_id: str) -> bool:
        """Takes a request of a sender out, or stops its answer; whether there was one."""
        for lane in self._mailboxes.of_sender(sender):
            if lane.current is not None and lane.current.has_message_id(message_id):
                return lane.cancel_current()
            for waiting in lane.queue:
                if isinstance(waiting, QueuedRequest) and waiting.has_message_id(message_id):
                    lane.remove(waiting)
                    self._inbox.close(waiting.inbox_row)
                    return True
        if (unplaced := self._thread_resolver.cancel(sender, message_id)) is not None:
            self._inbox.close(unplaced.inbox_row)
            return True
        return False

    def is_full(self, sender: str, thread: str | None) -> bool:
        """Whether no more of somebody (a bare JID) may wait on a thread."""
        waiting = self._mailboxes.count_queued(sender) + self._thread_resolver.count_queued(sender)
        return waiting >= self._max_queued and (
            waiting >= self._max_queued * _MAX_QUEUES_PER_SENDER or self._is_mailbox_full(sender, thread)
        )

    def _is_mailbox_full(self, sender: str, thread: str | None) -> bool:
        lane = self._mailboxes.get(sender, thread)
        return lane is not None and len(lane.queue) >= self._max_queued
