"""The services that the turns of one agent share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from ..concurrency import TimerGroup
from ..contracts import Next
from ..memory import ActiveConversation, HistoryWindows, Knowledge, Usage
from ..storage import AgentRepository
from .agent_lifecycle import AgentLifecycle
from .expiry import ConversationExpiry
from .long_answers import LongAnswers
from .mailboxes import Mailboxes, QueuedRequest
from .metrics import Metrics
from .outbox import Outbox
from .policy import Policy
from .response import TurnResponse
from .stream import ReplyTimers
from .transport import PLAIN_PRESENTATION, PresentationOptions, Transport


@dataclass(slots=True, eq=False, kw_only=True)
class TurnServices:
    """The services for all turns of one agent. The runner creates them, opens them and closes them."""

    assist: Next
    """The agent's `assist`, with the interceptors around it."""
    jid: str
    repository: AgentRepository
    policy: Policy
    clock: Callable[[], datetime]
    mailboxes: Mailboxes
    lifecycle: AgentLifecycle
    expiry: ConversationExpiry
    history_windows: HistoryWindows
    knowledge: Knowledge | None
    long_answers: LongAnswers
    outbox: Outbox
    transport: Transport
    reply_timers: ReplyTimers
    assist_timers: TimerGroup
    usage: Usage
    metrics: Metrics
    has_warned_of_return: bool = False
    """True once the log has warned that the return value of `assist` is not sent."""

    def make_response(self, queued: QueuedRequest, active: ActiveConversation) -> TurnResponse:
        """Create the response for a request, by the preferences of the person and the features of their clients."""
        incoming, client_features, person = queued.incoming, self.transport.client_features, active.record.owner
        preferences = active.person.preferences
        thoughts = self.policy.thoughts if preferences.thoughts is None else preferences.thoughts
        has_live_messages = preferences.streaming is not False and client_features.has_corrections(person)
        find_chained_device = (
            partial(client_features.find_chained_device, person)
            if has_live_messages
            else PLAIN_PRESENTATION.find_chained_device
        )
        shows_steps = preferences.thoughts is not False
        presentation = PresentationOptions(
            has_live_messages,
            find_chained_device,
            queued.is_redelivered,
            thoughts,
            shows_steps,
            client_features.has_replies(incoming.sender),
        )
        channel = self.transport.open_reply(incoming, queued.key, presentation)
        return TurnResponse(channel, self.outbox.send, queued, self.repository, self.reply_timers, self.long_answers)
