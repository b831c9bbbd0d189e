"""Quotas: limits of the messages, bytes and turns of each person, room and domain, and of everybody together.

Limits of a minute are token buckets. Each holds one minute's worth and fills continuously. Limits of a day are counters. They
are stored in the transaction of the messages that they count, so they survive a restart. A day begins at midnight UTC.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from ...concurrency import RATE_INTERVAL_S, Semaphore
from ...contracts import Accept, ErrorCode, Interceptor, ReceivedRequest, Refuse
from ...domain.jid import bare_jid, jid_domain
from ...domain.messages import InboundRequest
from ...domain.quotas import Quota, Quotas, QuotaScope, QuotaUsage
from ...domain.texts.translation import N_, translate, translate_plural
from ...storage import MessageCount
from .archive_hold import ArchiveHold
from .mailbox import LARGE_CHARACTERS, MAX_LARGE_REQUESTS, SenderState

if TYPE_CHECKING:
    from ...storage import AgentRepository, StoredAgent

Limit: TypeAlias = Literal["messages_per_day", "bytes_per_day", "messages_per_minute", "bytes_per_minute"]

_MAX_QUEUES_PER_SENDER = 10  # a sender may have as many queued requests as so many full mailboxes hold
_POLL_S = 1.0
_ACCEPT = Accept()
_MINUTE_S = 60.0
_DAY = timedelta(days=1)
_MAX_COUNTERS = 100_000
_QUOTA_DIVISOR = 4  # one sender gets a quarter of an agent's turns at most, if nothing else is configured
_REFUSALS: Mapping[str, str] = {
    "person": N_("You have reached the limit of {limit}. Write again in {wait}."),
    "room": N_("This room has reached the limit of {limit}. Write again in {wait}."),
    "domain": N_("Your domain has reached the limit of {limit}. Write again in {wait}."),
    "total": N_("All people together have reached the limit of {limit}. Write again in {wait}."),
}


class _Counter(Semaphore):
    """The use of one holder: messages and bytes of the last minute and of today. It is also the semaphore of turns at once.

    A limit of a minute is one number: the time at which the bucket will be full again. A message moves it by the time that one
    of them takes to flow in. The bucket is empty if that is a minute ahead.
    """

    __slots__ = (
        "byte_s",
        "bytes",
        "bytes_due_s",
        "holder",
        "is_told",
        "max_bytes",
        "max_messages",
        "message_s",
        "messages",
        "messages_due_s",
        "outer",
        "quota",
        "refused",
        "role",
        "scope",
    )

    def __init__(
        self,
        scope: QuotaScope,
        holder: str,
        quota: Quota,
        turns: int,
        parent: Semaphore | None = None,
        role: str = "",
        outer: tuple[_Counter, ...] = (),
    ) -> None:
        super().__init__(turns, parent)
        self.scope, self.holder, self.quota, self.role = scope, holder, quota, role
        self.message_s = _MINUTE_S / quota.messages_per_minute if quota.messages_per_minute else 0.0
        self.byte_s = _MINUTE_S / quota.bytes_per_minute if quota.bytes_per_minute else 0.0
        self.max_messages: float = quota.messages_per_day or math.inf
        self.max_bytes: float = quota.bytes_per_day or math.inf
        self.messages_due_s = self.bytes_due_s = 0.0
        self.messages = self.bytes = self.refused = 0
        self.outer = outer
        """The counters of the domain and of everybody, which count the messages of a person or a room too."""
        self.is_told = False
        """True if the sender has been told that the quota is used up, and no message was accepted since."""

    def count(self, size: int, now_s: float, is_refusing: bool) -> Limit | None:
        """Count a message of `size` bytes. If the counter is refusing and it would exceed a limit, return that instead.

        A message that is larger than all bytes of a minute or a day takes them all.
        """
        messages_due_s, bytes_due_s, size_s = self.messages_due_s, self.bytes_due_s, size * self.byte_s
        messages_due_s = (messages_due_s if messages_due_s > now_s else now_s) + self.message_s
        bytes_due_s = (bytes_due_s if bytes_due_s > now_s else now_s) + (size_s if size_s < _MINUTE_S else _MINUTE_S)
        messages, size = self.messages + 1, self.bytes + size
        if is_refusing:
            if messages > self.max_messages:
                return "messages_per_day"
            if size > self.max_bytes and self.bytes:
                return "bytes_per_day"
            latest_s = now_s + _MINUTE_S
            if messages_due_s > latest_s:
                return "messages_per_minute"
            if bytes_due_s > latest_s:
                return "bytes_per_minute"
        self.messages_due_s, self.bytes_due_s = messages_due_s, bytes_due_s
        self.messages, self.bytes = messages, size
        return None

    def uncount(self, size: int) -> None:
        """Take back the message that was counted last, because another counter refuses it."""
        self.messages_due_s -= self.message_s
        self.bytes_due_s -= min(size * self.byte_s, _MINUTE_S)
        self.messages -= 1
        self.bytes -= size

    @property
    def usage(self) -> QuotaUsage:
        return QuotaUsage.of(self.scope, self.holder, self.role, self.quota, self.messages, self.bytes, self.refused)


class QuotaLimit:
    """Refuses the messages of a sender whose quota is used up, counts the others, and has the slots of turns.

    A message counts for the person it goes back to, if agents that are trusted have passed it on (`root_sender`). It also
    counts for the domain of that person, and for the total. Operators are counted; the quotas of domain and total do not
    refuse them.

    `max_turns` is the number of turns that the agent runs at once. `now` returns seconds and never goes back. `clock` returns
    the time of day. Call `load` before the agent goes online.
    """

    def __init__(
        self,
        repository: AgentRepository,
        quotas: Quotas,
        max_turns: int,
        clock: Callable[[], datetime],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.quotas = quotas
        self._repository = repository
        self._clock = clock
        self._now = now
        self._max_turns = min(max_turns, quotas.total.turns or max_turns)
        self._total = _Counter("total", "", quotas.total, self._max_turns)
        self._counters: dict[QuotaScope, dict[str, _Counter]] = {
            "total": {"": self._total},
            "domain": {},
            "room": {},
            "person": {},
        }
        self._evicted: weakref.WeakValueDictionary[tuple[QuotaScope, str], _Counter] = weakref.WeakValueDictionary()
        """The counters that had to make room for others while a mailbox or a turn in memory uses them."""
        self._unsaved: dict[_Counter, None] = {}
        self._day = _midnight(clock())
        self._day_check_due_s = 0.0
        self._is_loaded = False

    def load(self, stored: StoredAgent) -> None:
        """Take the stored counts of today, once. What was counted before is added, and stored only now."""
        self._check_day()
        if self._is_loaded:
            return
        self._is_loaded = True
        counts, today = stored.find_message_counts(), self._day.date()
        for count in counts:
            if count.day == today:
                counter = self._find_or_add(cast(QuotaScope, count.kind), count.holder)
                counter.messages += count.messages
                counter.bytes += count.bytes
        if self._unsaved:
            self._repository.inbox.save_message_counts(self._take_unsaved)
        if any(count.day != today for count in counts):
            self._repository.delete_message_counts(self._day)

    def forget(self, holder: str) -> None:
        """Store no count of a person or room until the next message. Call it before their stored count is deleted."""
        for scope in ("person", "room"):
            if (counter := self._counters[scope].get(holder)) is not None:
                self._unsaved.pop(counter, None)

    def slots_of(self, owner: str, *, is_room: bool) -> Semaphore:
        """Return the slots for the turns of a person or a room (a bare JID)."""
        return self._find_or_add("room" if is_room else "person", owner)

    def receive(self, request: InboundRequest) -> Accept | Refuse:
        """Count a message, or refuse it if the quota of its sender, their domain or the total is used up."""
        content = request.content
        size = len(content) if content.isascii() else len(content.encode(errors="surrogatepass"))
        # As `root_owner`, without the call.
        person = request.context.account or request.context.root_sender or request.owner
        own = self._find_or_add("room" if request.kind.is_room else "person", person)
        now_s, is_refusing, counters = self._now(), True, (own, *own.outer)
        if now_s >= self._day_check_due_s:
            self._check_day()
        for counter in counters:
            if (exceeded := counter.count(size, now_s, is_refusing)) is not None:
                for counted in counters[: counters.index(counter)]:
                    counted.uncount(size)
                return self._refuse(own, counter, exceeded, size, now_s, is_program=request.kind.is_program)
            is_refusing = own.role != "operator"
        own.is_told = False
        if own not in self._unsaved:
            if not self._unsaved and self._is_loaded:
                self._repository.inbox.save_message_counts(self._take_unsaved)
            self._unsaved.update(dict.fromkeys(counters))
        return _ACCEPT

    def _take_unsaved(self) -> list[MessageCount]:
        """Return the counts that have changed since the last call."""
        unsaved, self._unsaved = self._unsaved, {}
        day = self._day.date()
        return [MessageCount(counter.scope, counter.holder, day, counter.messages, counter.bytes) for counter in unsaved]

    def _refuse(self, own: _Counter, full: _Counter, exceeded: Limit, size: int, now_s: float, *, is_program: bool) -> Refuse:
        """Refuse a message of `own` because of a limit of `full`."""
        quota, wait_s = full.quota, (self._day + _DAY - self._clock()).total_seconds()
        for counter in (own, *own.outer):
            counter.refused += 1
        match exceeded:
            case "messages_per_day":
                limit = translate_plural("{number} message a day", "{number} messages a day", quota.messages_per_day)
            case "bytes_per_day":
                limit = translate_plural("{number} byte a day", "{number} bytes a day", quota.bytes_per_day)
            case "messages_per_minute":
                limit = translate_plural("{number} message a minute", "{number} messages a minute", quota.messages_per_minute)
                wait_s = full.messages_due_s + full.message_s - _MINUTE_S - now_s
            case "bytes_per_minute":
                limit = translate_plural("{number} byte a minute", "{number} bytes a minute", quota.bytes_per_minute)
                wait_s = full.bytes_due_s + min(size * full.byte_s, _MINUTE_S) - _MINUTE_S - now_s
        wait_s = max(1, math.ceil(wait_s))
        text = translate(_REFUSALS[full.scope], limit=limit, wait=_format_wait(wait_s))
        tells_people = not own.is_told
        own.is_told |= not is_program  # a program that asks for a person is told each time, and the person is not
        return Refuse(ErrorCode.TOO_MANY_REQUESTS, text, wait_s, tells_people=tells_people)

    # Usage

    def usage_of(self, person: str) -> QuotaUsage:
        """Return what a person (a bare JID) has used today. For an occupant of a room, it is what the room has used."""
        self._check_day()
        return self._find_or_add("person", person).usage

    def usage(self, limit: int = 100) -> list[QuotaUsage]:
        """Return what was used today: the total, then the domains, rooms and people that used most, at most `limit`."""
        self._check_day()
        others = itertools.chain.from_iterable(self._counters[scope].values() for scope in ("domain", "room", "person"))
        most = heapq.nlargest(limit, others, key=lambda counter: counter.messages)
        return [self._total.usage, *(counter.usage for counter in most if counter.messages or counter.refused)]

    # Counters

    def _find_or_add(self, scope: QuotaScope, holder: str) -> _Counter:
        counters = self._counters[scope]
        if (counter := counters.get(holder)) is not None:
            return counter
        if "/" in holder:  # an occupant who writes privately counts for the room
            return self._find_or_add("room", bare_jid(holder))
        if len(counters) >= _MAX_COUNTERS:  # the count of the first begins anew, unless it is in use
            first = next(iter(counters))
            self._evicted[scope, first] = counters.pop(first)
        counter = counters[holder] = self._evicted.get((scope, holder)) or self._make_counter(scope, holder)
        return counter

    def _make_counter(self, scope: QuotaScope, holder: str) -> _Counter:
        quotas, max_turns = self.quotas, self._max_turns
        role, quota = quotas.quota_of(scope, holder)
        if scope == "domain":
            return _Counter(scope, holder, quota, quota.turns or max_turns, self._total)
        turns = max(1, max_turns // _QUOTA_DIVISOR) if quota.turns is None else quota.turns or max_turns
        domain = self._find_or_add("domain", jid_domain(holder))
        parent = domain if quotas.domain.turns and role != "operator" else self._total
        return _Counter(scope, holder, quota, min(turns, max_turns), parent, role, (domain, self._total))

    def _check_day(self) -> None:
        """Begin a new day if it has come. While messages arrive, this is checked every second, and at midnight."""
        now = self._clock()
        # A clock that is set back a little does not begin a day twice; one that was days ahead must not stop the days.
        if not self._day - _DAY <= now < self._day + _DAY:
            self._day = _midnight(now)
            for counter in itertools.chain(self._evicted.values(), *map(dict.values, self._counters.values())):
                counter.messages = counter.bytes = counter.refused = 0
            self._repository.delete_message_counts(self._day)
        self._day_check_due_s = self._now() + min(1.0, (self._day + _DAY - now).total_seconds())


def _midnight(now: datetime) -> datetime:
    """Return the time at which a day began (UTC)."""
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _format_wait(seconds: int) -> str:
    if seconds >= 7200:
        return translate_plural("{number} hour", "{number} hours", math.ceil(seconds / 3600))
    return f"{math.ceil(seconds / 60)} min" if seconds >= 120 else f"{seconds} s"


class MailboxCapacity(Interceptor):
    """Refuses a request if the mailboxes of its sender have no room for it.

    At most `max_queued` requests of one conversation are queued, and ten times as many of one sender.
    """

    def __init__(self, senders: Mapping[str, SenderState], archive_hold: ArchiveHold, max_queued: int) -> None:
        self._senders = senders
        self._archive_hold = archive_hold
        self._max_queued = max_queued
        self._max_queued_per_sender = max_queued * _MAX_QUEUES_PER_SENDER

    def receive(self, request: ReceivedRequest) -> Accept | Refuse:
        """Refuse a request of a sender who waits for too many answers."""
        state, is_large = self._senders.get(request.owner), len(request.content) > LARGE_CHARACTERS
        if state is None or (state.queued_count < self._max_queued and not is_large):
            return _ACCEPT
        if not self._is_full(state, request.thread):
            if not is_large or state.count_large() < MAX_LARGE_REQUESTS:
                return _ACCEPT
            text = translate(
                "You already have {number} long messages waiting. New ones are not accepted until one is answered.",
                number=MAX_LARGE_REQUESTS,
            )
            return Refuse(ErrorCode.TOO_MANY_REQUESTS, text, RATE_INTERVAL_S)
        if state.queued_count >= self._max_queued_per_sender:
            text = translate_plural(
                "You already have {number} message waiting. New ones are not accepted until it is answered.",
                "You already have {number} messages waiting. New ones are not accepted until some are answered.",
                self._max_queued_per_sender,
            )
        else:
            text = translate_plural(
                "This conversation already has {number} message waiting. New ones are not accepted until it is answered.",
                "This conversation already has {number} messages waiting. New ones are not accepted until some are answered.",
                self._max_queued,
            )
        return Refuse(ErrorCode.TOO_MANY_REQUESTS, text, RATE_INTERVAL_S)

    async def wait(self, incoming: InboundRequest) -> None:
        """Wait until there is room for a request, so that it is not refused for the length of its queue."""
        hold, is_large = self._archive_hold, len(incoming.content) > LARGE_CHARACTERS
        while (state := self._senders.get(incoming.owner)) is not None and (
            self._is_full(state, incoming.thread) or (is_large and state.count_large() >= MAX_LARGE_REQUESTS)
        ):
            if workers := [one.worker for one in state.mailboxes.values() if one.worker is not None]:
                await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            elif hold.rows:
                hold.release()  # they fill the queues, and wait for the archive, which waits for room
            else:
                await asyncio.sleep(_POLL_S)  # the agent is paused; nothing here is called when the pause ends

    def _is_full(self, state: SenderState, thread: str | None) -> bool:
        mailbox = state.mailboxes.get(thread)
        is_mailbox_full = mailbox is not None and len(mailbox.queue) >= self._max_queued
        return is_mailbox_full or state.queued_count >= self._max_queued_per_sender
