"""What the turns of one agent run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from ..codec import PLAIN, Manner, voice_for
from ..concurrency import Alarms
from ..contracts import AgentInterface
from ..memory import Governance, Knowledge, Memory, Usage
from ..storage import AgentStore
from .agent_lifecycle import Lifecycle
from .client_features import Devices
from .expiry import Ends
from .long_answers import Filing
from .mailbox import Lanes, Waiting
from .metrics import Activity
from .outbox import Outbox
from .policy import Policy
from .response import Response
from .stream import Pace


@dataclass(slots=True, eq=False, kw_only=True)
class Engine:
    """One for all turns of an agent; the runner makes it, opens what is in it, and closes it."""

    agent: AgentInterface
    jid: str
    store: AgentStore
    policy: Policy
    clock: Callable[[], datetime]
    lanes: Lanes
    lifecycle: Lifecycle
    ends: Ends
    governance: Governance
    knowledge: Knowledge | None
    filing: Filing
    outbox: Outbox
    devices: Devices
    pace: Pace
    assist_alarms: Alarms
    usage: Usage
    activity: Activity
    has_returned: bool = False
    """Whether `assist` gave something back, which nobody hears."""
    is_giving_up: bool = False
    """Whether the turns that still run are cancelled, to run again after the next start."""

    def response(self, waiting: Waiting, memory: Memory) -> Response:
        """What the agent answers a request through, as whoever asked wants to see it."""
        incoming, devices, person = waiting.incoming, self.devices, memory.row.owner
        prefers = memory.person.preferences
        thoughts = self.policy.thoughts if prefers.thoughts is None else prefers.thoughts
        grows = prefers.streaming is not False and devices.corrects(person)
        chained_to = partial(devices.chained_to, person) if grows else PLAIN.chained_to
        shows_steps = prefers.thoughts is not False
        manner = Manner(grows, chained_to, waiting.redelivered, thoughts, shows_steps, devices.refers(incoming.sender))
        voice = voice_for(incoming, waiting.key, self.jid, self.policy.stanza_bytes, manner)
        return Response(voice, self.outbox.send, waiting, self.store, self.pace, self.filing)
