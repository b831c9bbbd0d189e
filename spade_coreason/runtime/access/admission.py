"""Admission: the decision on a request before it is stored, and on its conversation before the turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from ...concurrency import RATE_INTERVAL_S, RateLimiter
from ...contracts import Accept, ErrorCode, Interceptor, ReceivedRequest, Refuse
from ...domain.messages import NO_CONTEXT, Failed, InboundRequest, Refused
from ...domain.texts.translation import N_, translate, translate_plural
from ...storage import Commit
from ..interceptors import overrides
from ..mailboxes.limits import MailboxCapacity, QuotaLimit
from ..observability.incidents import IncidentRecorder
from ..observability.metrics import Metrics, RefusalReason

log = logging.getLogger(__name__)

_ACCEPT = Accept()

DELETION_NOTICE = N_("The data of the person behind this request are being deleted. Please try again when that is done.")

MAX_HOPS = 16
"""Largest number of agents that a request may pass through.

Each agent asks in a conversation of its own, so no other limit would end a circle.
"""

MAX_COMMANDS_PER_MINUTE = 600
"""Largest number of commands of the platform that one sender may send within a minute."""

_MAX_REFUSALS = 300


class HopLimit(Interceptor):
    """Refuses a request that has passed through too many agents, or through the agent `jid` (a bare JID) itself."""

    def __init__(self, jid: str) -> None:
        self._jid = jid.lower()

    def receive(self, request: ReceivedRequest) -> Accept | Refuse:
        """Refuse a request of more than `MAX_HOPS` hops, or one that came in a circle."""
        if self._jid in request.chain:
            chain = " → ".join((*request.chain, self._jid))
            return Refuse(ErrorCode.BAD_REQUEST, translate("Agents ask each other in a circle: {chain}.", chain=chain))
        if request.hops <= MAX_HOPS:
            return _ACCEPT
        text = translate_plural(
            "This request came through {number} agent. They seem to ask each other in a circle.",
            "This request came through {number} agents. They seem to ask each other in a circle.",
            request.hops,
        )
        return Refuse(ErrorCode.TOO_MANY_REQUESTS, text)


class CommandLimit(Interceptor):
    """Refuses commands of the platform if a sender has sent too many within a minute."""

    def __init__(self) -> None:
        self._rate_limiter = RateLimiter(MAX_COMMANDS_PER_MINUTE)

    def receive(self, request: ReceivedRequest) -> Accept | Refuse:
        """Refuse a command of a sender who has sent `MAX_COMMANDS_PER_MINUTE` of them."""
        if self._rate_limiter.allow(request.owner):
            return _ACCEPT
        text = translate(
            "You have sent too many commands: the limit is {number} a minute. Try again in a minute.",
            number=MAX_COMMANDS_PER_MINUTE,
        )
        return Refuse(ErrorCode.TOO_MANY_REQUESTS, text, RATE_INTERVAL_S)


class FloodLimit:
    """Recognises senders whose requests are refused by the hundred. Further ones are dropped at once.

    300 refusals of a person within a minute are a flood, or 3,000 of a program, which is told each time. A long request counts
    as one for each 4,096 characters. The flood is over when that minute is.
    """

    @staticmethod
    def make_notice() -> Refused:
        """Return the notice to the sender when a flood begins."""
        text = translate("I had to refuse too many of your messages. I ignore what you send for a minute.")
        return Refused(text, ErrorCode.TOO_MANY_REQUESTS, RATE_INTERVAL_S)

    def __init__(self) -> None:
        self.has_refusals = False
        """True once a request was refused. Until then there is no flood."""
        self._people = RateLimiter(_MAX_REFUSALS)
        self._programs = RateLimiter(10 * _MAX_REFUSALS)

    def is_flood(self, incoming: InboundRequest) -> bool:
        """Return True for a request of a sender who floods the agent. It is to be dropped."""
        return (self._programs if incoming.kind.is_program else self._people).is_exceeded(incoming.owner)

    def record_refusal(self, incoming: InboundRequest) -> bool:
        """Count a request that was refused. Return True if a flood begins with it."""
        return self._count(incoming, 1 + len(incoming.content) // 4096)

    def begin(self, incoming: InboundRequest) -> bool:
        """Count the sender of a request as one who floods the agent. Return True if the flood begins with it."""
        return self._count(incoming, 10 * _MAX_REFUSALS)

    def _count(self, incoming: InboundRequest, refusals: int) -> bool:
        self.has_refusals = True
        limiter = self._programs if incoming.kind.is_program else self._people
        if limiter.is_exceeded(incoming.owner):
            return False
        limiter.allow(incoming.owner, refusals)
        return limiter.is_exceeded(incoming.owner)


class Refusal(NamedTuple):
    """The decision not to accept a request.

    `problem` is the reply to the sender. If an interceptor failed, the sender is told when `incident` is done.
    """

    problem: Refused | Failed
    incident: Commit[None] | None = None

    def when_recorded(self, tell: Callable[[], object]) -> None:
        """Call `tell` once the incident is stored, or cannot be; at once if there is none."""
        if self.incident is None:
            tell()
            return
        self.incident.on_stored(lambda _: tell())
        self.incident.on_failed(lambda _: tell())


class Admission:
    """Decides on the requests of the agent `jid` (a bare JID): the limits of the platform, then `interceptors`."""

    def __init__(
        self,
        jid: str,
        capacity: MailboxCapacity,
        quota_limit: QuotaLimit,
        incidents: IncidentRecorder,
        metrics: Metrics,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        self._jid = jid
        self.metrics = metrics
        """The metrics, which count refusals."""
        self._incidents = incidents
        self.erased_people: dict[str, asyncio.Event] = {}
        """The people (bare JIDs) whose data are being deleted, each with the end of that: no request of theirs is accepted."""
        self._check_way, self._check_capacity = HopLimit(jid).receive, capacity.receive
        self._check_for_agent, self._check_for_commands = quota_limit.receive, CommandLimit().receive
        self._receivers = tuple(i.receive for i in interceptors if overrides(i.receive, Interceptor.receive))

    def refuse(self, incoming: InboundRequest, *, is_for_agent: bool, may_be_duplicate: bool = False) -> Refusal | None:
        """Ask the limits that hold for every request; unless it may be a duplicate, then as `refuse_new`.

        Return the refusal of the first that refuses, or None.
        """
        reason: RefusalReason = "hops"
        verdict = _ACCEPT if incoming.context is NO_CONTEXT else self._check_way(incoming)
        if not isinstance(verdict, Refuse):
            reason = "queue"
            verdict = self._check_capacity(incoming)
        if self.erased_people and not self.erased_people.keys().isdisjoint((incoming.owner, incoming.stored_root)):
            self.metrics.refusals["deletion"] += 1
            return Refusal(refuse_for_deletion(incoming, self.erased_people, RATE_INTERVAL_S))
        if isinstance(verdict, Refuse):
            self.metrics.refusals[reason] += 1
            return _as_refused(verdict)
        if may_be_duplicate:
            return None
        verdict = self._check_for_agent(incoming) if is_for_agent else self._check_for_commands(incoming)
        if isinstance(verdict, Refuse) or self._receivers:
            return self._decide(incoming, verdict, is_for_agent=is_for_agent)
        return None

    def refuse_new(self, incoming: InboundRequest, *, is_for_agent: bool) -> Refusal | None:
        """Ask the quotas about a request that is no duplicate, then the interceptors. Return the first refusal, or None.

        Commands of the platform have a limit of their own instead.
        """
        verdict = self._check_for_agent(incoming) if is_for_agent else self._check_for_commands(incoming)
        return self._decide(incoming, verdict, is_for_agent=is_for_agent)

    def _decide(self, incoming: InboundRequest, verdict: Accept | Refuse, *, is_for_agent: bool) -> Refusal | None:
        if isinstance(verdict, Refuse):
            self.metrics.refusals["quota" if is_for_agent else "commands"] += 1
            return _as_refused(verdict)
        return self.ask_interceptors(incoming) if is_for_agent and self._receivers else None

    def ask_interceptors(self, incoming: InboundRequest) -> Refusal | None:
        """Ask the interceptors about a request, as `refuse_new` does. A fault of one is an incident, and refuses."""
        if (refusal := self._ask(incoming)) is not None:
            self.metrics.refusals["interceptor"] += 1
        return refusal

    def _ask(self, incoming: InboundRequest) -> Refusal | None:
        # A view, because another part of the request may be stored later.
        request = replace(
            incoming,
            payload=MappingProxyType(incoming.payload),  # type: ignore[arg-type]  # read-only, as `ReceivedRequest` says
            metadata=MappingProxyType(dict(incoming.metadata)),
        )
        try:
            for receive in self._receivers:
                verdict = receive(request)
                if isinstance(verdict, Refuse):
                    return _as_refused(verdict)
                if not isinstance(verdict, Accept):
                    raise TypeError(f"{receive.__qualname__} returned {verdict!r}, neither Accept nor Refuse")
        except BaseException as error:  # code of the user, which may call sys.exit()
            incident = self._incidents.make_number()
            text, extra = "%s: incident %s: a request of %s is refused", {"incident": incident}
            log.exception(text, self._jid, incident, incoming.sender, extra=extra)
            text = translate("Something went wrong on my side (incident {incident}).", incident=incident)
            failure = Failed(text, ErrorCode.INTERNAL, True, incident)
            return Refusal(failure, self._incidents.record(incident, error, incoming.stored_root or incoming.owner))
        return None


def refuse_for_deletion(incoming: InboundRequest, people: Container[str], retry_after_s: float | None = None) -> Refused:
    """Refuse a request of one of the people (bare JIDs) whose data are being deleted.

    Only the person is told the reason. An agent that has passed it on is not; a room, where all read it, is told nothing.
    """
    is_own = incoming.owner in people and not incoming.is_from_room
    text = translate(DELETION_NOTICE if is_own else "I cannot do this at the moment. Please try again later.")
    return Refused(text, ErrorCode.UNAVAILABLE, retry_after_s, tells_people=not incoming.kind.is_room)


def _as_refused(verdict: Refuse) -> Refusal:
    return Refusal(Refused(verdict.text, verdict.code, verdict.retry_after_s, verdict.tells_people))
