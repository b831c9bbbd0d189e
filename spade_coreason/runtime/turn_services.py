"""What the turns of one agent run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from ..codec import PLAIN_PRESENTATION, PresentationOptions, encoder_for
from ..concurrency import TimerGroup
from ..contracts import AgentInterface
from ..memory import ActiveConversation, HistoryWindow, Knowledge, Usage
from ..storage import AgentRepository
from .agent_lifecycle import AgentLifecycle
from .client_features import ClientFeatures
from .expiry import ConversationExpiry
from .long_answers import LongAnswers
from .mailbox import Mailboxes, QueuedRequest
from .metrics import Metrics
from .outbox import Outbox
from .policy import Policy
from .response import Response
from .stream import ReplyTimers


@dataclass(slots=True, eq=False, kw_only=True)
class TurnServices:
    """One for all turns of an agent; the runner makes it, opens what is in it, and closes it."""

    agent: AgentInterface
    jid: str
    store: AgentRepository
    policy: Policy
    clock: Callable[[], datetime]
    mailboxes: Mailboxes
    lifecycle: AgentLifecycle
    expiry: ConversationExpiry
    history_window: HistoryWindow
    knowledge: Knowledge | None
    long_answers: LongAnswers
    outbox: Outbox
    client_features: ClientFeatures
    reply_timers: ReplyTimers
    assist_timers: TimerGroup
    usage: Usage
    metrics: Metrics
    has_warned_of_return: bool = False
    """Whether `assist` gave something back, which nobody hears."""
    is_cancelling_turns: bool = False
    """Whether the turns that still run are cancelled, to run again after the next start."""

    def make_response(self, queued: QueuedRequest, active: ActiveConversation) -> Response:
        """What the agent answers a request through, as whoever asked wants to see it."""
        incoming, devices, person = queued.incoming, self.client_features, active.record.owner
        prefers = active.person.preferences
        thoughts = self.policy.thoughts if prefers.thoughts is None else prefers.thoughts
        grows = prefers.streaming is not False and devices.has_corrections(person)
        chained_to = partial(devices.find_chained_device, person) if grows else PLAIN_PRESENTATION.find_chained_device
        shows_steps = prefers.thoughts is not False
        manner = PresentationOptions(
            grows, chained_to, queued.is_redelivered, thoughts, shows_steps, devices.has_replies(incoming.sender)
        )
        voice = encoder_for(incoming, queued.key, self.jid, self.policy.stanza_bytes, manner)
        return Response(voice, self.outbox.send, queued, self.store, self.reply_timers, self.long_answers)
