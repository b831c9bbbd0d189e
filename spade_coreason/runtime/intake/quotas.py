"""Quotas: limits of the messages, bytes and turns of each person, room and domain, and of everybody together.

Limits of a minute are token buckets. Each holds one minute's worth and fills continuously. Limits of a day are counters. They
are stored in the transaction of the messages that they count, so they survive a restart. A day begins at midnight UTC.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from ...contracts import Accept, ErrorCode, Refuse
from ...domain.jid import bare_jid, jid_domain
from ...domain.messages import InboundRequest
from ...domain.quotas import Quota, Quotas
from ...domain.texts.translation import N_, translate, translate_plural
from ...storage import AgentRepository, MessageCount

Scope: TypeAlias = Literal["person", "room", "domain", "total"]

_ACCEPT = Accept()
_MINUTE_S = 60.0
_MAX_COUNTERS = 100_000
_MAX_IN_ADVANCE, _BYTES_IN_ADVANCE = 255, 1024
_SHARE_IN_ADVANCE = 0.01
_IN_ADVANCE_S = 1.0
_REFUSALS: Mapping[str, str] = {
    "person": N_("You have reached the limit of {limit}. Write again in {wait}."),
    "room": N_("This room has reached the limit of {limit}. Write again in {wait}."),
    "domain": N_("Your domain has reached the limit of {limit}. Write again in {wait}."),
    "total": N_("All people together have reached the limit of {limit}. Write again in {wait}."),
}


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """The use of one quota today (UTC). Limits are 0 if there is none."""

    scope: str
    """person, room, domain or total."""
    holder: str
    """The bare JID or the domain; empty for the total."""
    role: str
    """The role of a person; empty for others."""
    messages: int
    bytes: int
    messages_per_day: int
    messages_per_minute: int
    bytes_per_day: int
    refused: int
    """The number of messages refused since the platform started or the day began."""

    def __str__(self) -> str:
        number, limit = self.messages, self.messages_per_day
        counted = (
            translate_plural("{used} of {number} message", "{used} of {number} messages", limit, used=number)
            if limit
            else translate_plural("{number} message", "{number} messages", number)
        )
        return translate("{messages} ({refused} refused)", messages=counted, refused=self.refused) if self.refused else counted


class _Counter:
    """The messages and bytes of one holder: in the last minute, as token buckets, and today."""

    __slots__ = (
        "byte_s",
        "bytes",
        "bytes_due_s",
        "bytes_full_s",
        "holder",
        "is_unsaved",
        "max_bytes",
        "max_messages",
        "message_s",
        "messages",
        "messages_due_s",
        "messages_full_s",
        "quota",
        "refused",
        "role",
        "scope",
    )

    def __init__(self, scope: Scope, holder: str, quota: Quota, role: str = "") -> None:
        self.scope = scope
        self.holder = holder
        self.quota = quota
        self.role = role
        # A bucket is one number: the time at which it will be full again. A message moves it by the time that one of them takes
        # to flow in. The bucket is empty if that is a minute ahead.
        self.message_s = _MINUTE_S / quota.messages_per_minute if quota.messages_per_minute else 0.0
        self.byte_s = _MINUTE_S / quota.bytes_per_minute if quota.bytes_per_minute else 0.0
        self.max_messages: float = quota.messages_per_day or math.inf
        self.max_bytes: float = quota.bytes_per_day or math.inf
        self.messages_due_s = self.bytes_due_s = 0.0
        self.messages_full_s = self.bytes_full_s = 0.0  # the last time at which the bucket was full
        self.messages = self.bytes = self.refused = 0
        self.is_unsaved = False

    def count(self, messages: int, size: int, now_s: float) -> None:
        """Count messages of `size` bytes in all. A single one that is larger than the bucket takes all of it."""
        if self.messages_due_s < now_s:
            self.messages_due_s = self.messages_full_s = now_s
        if self.bytes_due_s < now_s:
            self.bytes_due_s = self.bytes_full_s = now_s
        self.messages_due_s += messages * self.message_s
        self.bytes_due_s += min(size * self.byte_s, _MINUTE_S)
        self.messages += messages
        self.bytes += size

    def give_back(self, messages: int, size: int, counted_at_s: float) -> None:
        """Take back a part of what was counted at that time. A bucket that has been full since has it back already."""
        if counted_at_s >= self.messages_full_s:
            self.messages_due_s -= messages * self.message_s
        if counted_at_s >= self.bytes_full_s:
            self.bytes_due_s -= size * self.byte_s
        self.messages -= messages
        self.bytes -= size

    def has_room_for(self, size: int, now_s: float) -> bool:
        """Return True if a message of `size` bytes does not exceed the quota."""
        latest_s = now_s + _MINUTE_S
        return (
            self.messages_due_s + self.message_s <= latest_s
            and self.bytes_due_s + min(size * self.byte_s, _MINUTE_S) <= latest_s
            and self.messages < self.max_messages
            and not self.exceeds_day(size)
        )

    def exceeds_day(self, size: int) -> bool:
        """Return True if a message of `size` bytes exceeds the bytes of today. One that is larger than them takes them all."""
        return self.bytes + min(size, self.max_bytes) > self.max_bytes

    def count_free(self, now_s: float) -> tuple[float, float]:
        """Return the number of messages and of bytes for which there is room."""
        latest_s = now_s + _MINUTE_S
        messages, size = self.max_messages - self.messages, self.max_bytes - self.bytes
        if self.message_s:
            messages = min(messages, (latest_s - max(self.messages_due_s, now_s)) / self.message_s)
        if self.byte_s:
            size = min(size, (latest_s - max(self.bytes_due_s, now_s)) / self.byte_s)
        return messages, size

    @property
    def usage(self) -> QuotaUsage:
        quota = self.quota
        return QuotaUsage(
            self.scope,
            self.holder,
            self.role,
            self.messages,
            self.bytes,
            quota.messages_per_day,
            quota.messages_per_minute,
            quota.bytes_per_day,
            self.refused,
        )


class _Sender:
    """A person or a room, with the counters of their messages, and what these have counted in advance.

    Asking three counters for each message would cost some per cent of a turn.
    """

    __slots__ = ("bytes_left", "counted_at_s", "counters", "expires_s", "in_advance", "is_told", "messages_left")

    def __init__(self, own: _Counter, domain: _Counter, total: _Counter) -> None:
        self.counters = own, domain, total
        self.messages_left = self.bytes_left = 0
        self.in_advance = 0
        """The number of messages that were counted in advance the last time."""
        self.counted_at_s = self.expires_s = 0.0
        """The time of the count in advance, and the time until which it may be used."""
        self.is_told = False
        """True if the sender has been told that the quota is used up, and no message was accepted since."""

    def count_in_advance(self, now_s: float) -> int:
        """Return the number of messages to count in advance with the next one. Call it before the last ones are given back."""
        used = self.in_advance - self.messages_left if now_s < self.expires_s + _IN_ADVANCE_S else 0
        return min(2 * used + (now_s < self.expires_s), _MAX_IN_ADVANCE)


class QuotaLimit:
    """Refuses the messages of a sender whose quota is used up, and counts the others.

    A message counts for the person it goes back to, if agents that are trusted have passed it on (`root_sender`). It also
    counts for the domain of that person, and for the total. Operators are counted; the quotas of domain and total do not
    refuse them.

    Of a sender whose messages follow each other within a second, some are counted in advance for a second: twice as many as
    were sent of the last ones, at most 256, and at most a hundredth of what is left. What was not sent is given back, at the
    latest before a domain or the total would refuse a message. So no quota is ever exceeded, and a process that dies has
    counted some too many rather than too few.

    `now` returns seconds and never goes back. `clock` returns the time of day. Call `load` before the agent goes online, and
    `close` when it is offline.
    """

    def __init__(
        self,
        repository: AgentRepository,
        quotas: Quotas,
        clock: Callable[[], datetime],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.quotas = quotas
        self._repository = repository
        self._clock = clock
        self._now = now
        self._total = _Counter("total", "", quotas.total)
        self._domains: dict[str, _Counter] = {}
        self._people: dict[str, _Sender] = {}
        self._rooms: dict[str, _Sender] = {}
        self._in_advance: dict[_Sender, None] = {}
        """The senders whose messages are counted in advance."""
        self._unsaved: list[_Counter] = []
        self._stored: dict[tuple[str, str], tuple[int, int]] = {}
        """The stored counts of today, by scope and holder, of those who have sent nothing since the start."""
        self._day = clock().astimezone(UTC).date()

    async def load(self) -> None:
        """Load the counts of today."""
        self._check_day()
        self._stored = await self._repository.load_message_counts(self._day)
        for counter in self._counters():
            self._add_stored(counter)
            self._stored.pop((counter.scope, counter.holder), None)
        self._delete_older_counts()

    def close(self) -> None:
        """Store the exact counts with the next transaction."""
        self._give_all_back()

    def forget(self, holder: str) -> None:
        """Store no count of a person or room until the next message. Call it before their stored count is deleted."""
        for senders in (self._people, self._rooms):
            if (sender := senders.get(holder)) is not None:
                self._give_back(sender)
                if (own := sender.counters[0]).is_unsaved:
                    own.is_unsaved = False
                    self._unsaved.remove(own)

    def receive(self, request: InboundRequest) -> Accept | Refuse:
        """Count a message, or refuse it if the quota of its sender, their domain or the total is used up."""
        owner, content = request.root_sender or request.owner, request.content
        size = len(content) if content.isascii() else len(content.encode(errors="surrogatepass"))
        sender = (self._rooms if request.kind.is_room else self._people).get(owner)
        if sender is None:
            sender = self._find_or_add_sender(owner, is_room=request.kind.is_room)
        now_s = self._now()
        if sender.messages_left and sender.bytes_left >= size and now_s < sender.expires_s:
            sender.messages_left -= 1
            sender.bytes_left -= size
            return _ACCEPT
        return self._decide(sender, size, now_s)

    def _decide(self, sender: _Sender, size: int, now_s: float) -> Accept | Refuse:
        """Refuse a message, or count it with some more in advance."""
        self._check_day()
        wanted = sender.count_in_advance(now_s)
        self._give_back(sender)
        deciding = sender.counters[:1] if sender.counters[0].role == "operator" else sender.counters
        full = _find_full(deciding, size, now_s)
        if full is not None and full is not sender.counters[0]:
            self._give_all_back()
            full = _find_full(deciding, size, now_s)
        if full is not None:
            return self._refuse(sender, full, size, now_s)
        messages, extra_size = wanted, wanted * _BYTES_IN_ADVANCE
        for counter in deciding:
            free_messages, free_size = counter.count_free(now_s)
            messages = int(min(messages, (free_messages - 1) * _SHARE_IN_ADVANCE))
            extra_size = int(min(extra_size, max(0.0, free_size - size) * _SHARE_IN_ADVANCE))
        if messages:
            sender.messages_left, sender.bytes_left = messages, extra_size
            self._in_advance[sender] = None
        else:
            extra_size = 0
        sender.in_advance = messages
        sender.counted_at_s, sender.expires_s = now_s, now_s + min(_IN_ADVANCE_S, self._until_next_day_s())
        for counter in sender.counters:
            counter.count(1 + messages, size + extra_size, now_s)
        self._save(sender)
        sender.is_told = False
        return _ACCEPT

    def _give_back(self, sender: _Sender) -> None:
        """Take back what was counted in advance and is not used."""
        if sender in self._in_advance:
            del self._in_advance[sender]
            for counter in sender.counters:
                counter.give_back(sender.messages_left, sender.bytes_left, sender.counted_at_s)
            sender.messages_left = sender.bytes_left = 0
            self._save(sender)

    def _give_all_back(self) -> None:
        for sender in list(self._in_advance):
            self._give_back(sender)

    def _save(self, sender: _Sender) -> None:
        """Store the counters of a sender with the next transaction."""
        if not self._unsaved:
            self._repository.save_message_counts(self._take_unsaved)
        for counter in sender.counters:
            if not counter.is_unsaved:
                counter.is_unsaved = True
                self._unsaved.append(counter)

    def _take_unsaved(self) -> list[MessageCount]:
        """Return the counts that have changed since the last call."""
        unsaved, self._unsaved = self._unsaved, []
        for counter in unsaved:
            counter.is_unsaved = False
        return [MessageCount(counter.scope, counter.holder, self._day, counter.messages, counter.bytes) for counter in unsaved]

    def _refuse(self, sender: _Sender, full: _Counter, size: int, now_s: float) -> Refuse:
        """Refuse a message because the quota of `full` is used up."""
        quota, latest_s = full.quota, now_s + _MINUTE_S
        for counter in sender.counters:
            counter.refused += 1
        if full.messages >= full.max_messages:
            limit = translate_plural("{number} message a day", "{number} messages a day", quota.messages_per_day)
            wait_s = self._until_next_day_s()
        elif full.exceeds_day(size):
            limit = translate_plural("{number} byte a day", "{number} bytes a day", quota.bytes_per_day)
            wait_s = self._until_next_day_s()
        elif full.messages_due_s + full.message_s > latest_s:
            limit = translate_plural("{number} message a minute", "{number} messages a minute", quota.messages_per_minute)
            wait_s = full.messages_due_s + full.message_s - latest_s
        else:
            limit = translate_plural("{number} byte a minute", "{number} bytes a minute", quota.bytes_per_minute)
            wait_s = full.bytes_due_s + min(size * full.byte_s, _MINUTE_S) - latest_s
        wait_s = max(1, math.ceil(wait_s))
        text = translate(_REFUSALS[full.scope], limit=limit, wait=_format_wait(wait_s))
        tells_people, sender.is_told = not sender.is_told, True
        return Refuse(ErrorCode.TOO_MANY_REQUESTS, text, wait_s, tells_people=tells_people)

    # Usage

    def usage_of(self, person: str) -> QuotaUsage:
        """Return what a person (a bare JID) has used today. For an occupant of a room, it is what the room has used."""
        self._check_day()
        sender = self._find_or_add_sender(person, is_room=False)
        self._give_back(sender)
        return sender.counters[0].usage

    def usage(self, limit: int = 100) -> list[QuotaUsage]:
        """Return what was used today: the total, then the domains, rooms and people that used most, at most `limit`."""
        self._check_day()
        self._give_all_back()
        others = [counter for counter in self._counters() if counter is not self._total]
        others += [self._make_counter(scope, name) for scope, name in self._stored]  # type: ignore[arg-type]
        most = heapq.nlargest(limit, others, key=lambda counter: counter.messages)
        return [self._total.usage, *(counter.usage for counter in most if counter.messages or counter.refused)]

    # Counters

    def _find_or_add_sender(self, owner: str, *, is_room: bool) -> _Sender:
        if "/" in owner:  # an occupant who writes privately counts for the room: another nickname is no other person
            owner, is_room = bare_jid(owner), True
        senders = self._rooms if is_room else self._people
        if (found := senders.get(owner)) is not None:
            return found
        if len(senders) >= _MAX_COUNTERS:
            self._give_back(senders.pop(next(iter(senders))))  # its count begins anew
        domain = jid_domain(owner)
        if domain not in self._domains:
            if len(self._domains) >= _MAX_COUNTERS:
                del self._domains[next(iter(self._domains))]
            self._domains[domain] = self._make_counter("domain", domain)
        own = self._make_counter("room" if is_room else "person", owner)
        self._stored.pop((own.scope, owner), None)
        self._stored.pop(("domain", domain), None)
        sender = senders[owner] = _Sender(own, self._domains[domain], self._total)
        return sender

    def _make_counter(self, scope: Scope, holder: str) -> _Counter:
        if scope == "person":
            role, quota = self.quotas.role_of(holder)
            counter = _Counter(scope, holder, quota, role)
        else:
            counter = _Counter(scope, holder, self.quotas.room if scope == "room" else self.quotas.domain)
        self._add_stored(counter)
        return counter

    def _add_stored(self, counter: _Counter) -> None:
        messages, size = self._stored.get((counter.scope, counter.holder), (0, 0))
        counter.messages += messages
        counter.bytes += size

    def _counters(self) -> Iterator[_Counter]:
        yield self._total
        yield from self._domains.values()
        for senders in (self._rooms, self._people):
            for sender in senders.values():
                yield sender.counters[0]

    # Days

    def _check_day(self) -> None:
        today = self._clock().astimezone(UTC).date()
        # A clock that is set back a little does not begin a day twice; one that was days ahead must not stop the days.
        if today > self._day or self._day - today > timedelta(days=1):
            self._day = today
            self._stored.clear()
            self._give_all_back()
            for counter in self._counters():
                counter.messages = counter.bytes = counter.refused = 0
            self._delete_older_counts()

    def _delete_older_counts(self) -> None:
        self._repository.delete_message_counts(datetime(self._day.year, self._day.month, self._day.day, tzinfo=UTC))

    def _until_next_day_s(self) -> float:
        now = self._clock().astimezone(UTC)
        return (datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1) - now).total_seconds()


def _find_full(counters: Sequence[_Counter], size: int, now_s: float) -> _Counter | None:
    """Return the first counter whose quota a message of `size` bytes would exceed; None if there is none."""
    return next((counter for counter in counters if not counter.has_room_for(size, now_s)), None)


def _format_wait(seconds: int) -> str:
    if seconds >= 7200:
        return translate_plural("{number} hour", "{number} hours", math.ceil(seconds / 3600))
    return f"{math.ceil(seconds / 60)} min" if seconds >= 120 else f"{seconds} s"
