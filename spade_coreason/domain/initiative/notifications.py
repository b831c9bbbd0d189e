"""The decisions about notifications as pure tables: whether and when one is sent, and what follows when it comes back."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from ...contracts import NotificationState

NOTIFICATIONS_PER_DAY = 20
"""The number of notifications that one person gets from one agent in a day, unless the settings say otherwise."""
RETRY_AFTER = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 30, 120))
"""The delays after the first, second, third and fourth try. A fifth try that comes back is the last."""
_QUIET_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_MAX_QUOTED_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class QuietHours:
    """The hours of each day in which no notification is sent, from `begin` until before `end`, by the clock of a zone.

    They may go over midnight. An `end` that equals `begin` is a ValueError.
    """

    begin: time
    end: time

    def __post_init__(self) -> None:
        if self.begin == self.end:
            raise ValueError('quiet hours must not end when they begin; write them like "22:00-07:00"')

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Parse quiet hours such as "22:00-07:00". Raise ValueError with a remedy if the text is none."""
        found = _QUIET_HOURS.fullmatch(text)
        if found is None:
            raise ValueError(f'"{_shorten(text)}" is not a range of hours; write it like "22:00-07:00"')
        begin_hour, begin_minute, end_hour, end_minute = map(int, found.groups())
        return cls(time(begin_hour, begin_minute), time(end_hour, end_minute))

    def end_of(self, moment: datetime, zone: str) -> datetime | None:
        """Return the end (UTC) of the quiet hours in which a moment lies; None outside of them.

        `moment` is aware; `zone` is a known IANA name. Quiet hours begin and end at the first moment at which the clock of the
        zone shows the time or a later one. So a time that the clock skips means the moment after the gap, and of a time that
        it shows twice the first one counts.
        """
        clock = _zone(zone)
        today = moment.astimezone(clock).date()
        for date in (today - timedelta(days=1), today, today + timedelta(days=1)):  # tomorrow: a clock set back over midnight
            begin = _first_moment(datetime.combine(date, self.begin), clock)
            last_date = date if self.begin < self.end else date + timedelta(days=1)
            end = _first_moment(datetime.combine(last_date, self.end), clock)
            if begin <= moment < end:
                return end
        return None


@dataclass(frozen=True, slots=True)
class NotificationPolicy:
    """The notifications of an agent: how many one person gets in a day, and when none are sent.

    `zone` is the IANA name of the time zone of people who have not chosen one.
    """

    per_day: int = NOTIFICATIONS_PER_DAY
    quiet: QuietHours | None = None
    zone: str = "UTC"

    def count_today(self, own: int, of_others: int, *, is_own: bool, is_room: bool) -> int:
        """Return how many notifications of the day count for another one, which is refused from `per_day` on.

        Others are people who cause notifications to a person. All together they take at most half of a day, at least one. What
        they cause besides, such as questions, takes nothing of the rest. A room has no half of its own.
        """
        half = self.per_day if is_room else max(1, self.per_day // 2)
        return self.per_day if not is_own and of_others >= half else own + min(of_others, half)


class NotificationDecision(NamedTuple):
    """The decision on a notification: `WAITING` until `due_at`, or `REFUSED`.

    `reason` is a code that `describe_reason` explains: "no_access", "switched_off" or "too_many"; "" while it waits.
    """

    state: NotificationState
    due_at: datetime
    reason: str = ""


def decide_notification(
    *, is_allowed: bool, is_on: bool, count_today: int | None, policy: NotificationPolicy, zone: str, now: datetime
) -> NotificationDecision:
    """Decide whether a notification is sent, and when. The first row that applies decides:

    | condition | state | due at | reason |
    |---|---|---|---|
    | the person has no access | refused | now | no_access |
    | the person has switched notifications off | refused | now | switched_off |
    | the day has `per_day` others already | refused | now | too_many |
    | it is one of the quiet hours | waiting | their end | |
    | else | waiting | now | |

    `count_today` is that of `NotificationPolicy`; None does not count, for one that was counted before.
    `zone` is the time zone of the person.
    """
    if not is_allowed:
        return NotificationDecision(NotificationState.REFUSED, now, "no_access")
    if not is_on:
        return NotificationDecision(NotificationState.REFUSED, now, "switched_off")
    if count_today is not None and count_today >= policy.per_day:
        return NotificationDecision(NotificationState.REFUSED, now, "too_many")
    quiet_until = None if policy.quiet is None else policy.quiet.end_of(now, zone)
    return NotificationDecision(NotificationState.WAITING, quiet_until or now)


def decide_bounce(attempts: int, *, is_temporary: bool, now: datetime) -> tuple[NotificationState, datetime | None]:
    """Decide the state of a notification that came back after so many tries, and when it is sent again.

    | error | tries | state | due after |
    |---|---|---|---|
    | permanent | any | bounced | |
    | temporary | 1, 2, 3, 4 | waiting | 1, 5, 30, 120 minutes |
    | temporary | 5 or more | failed | |
    """
    if not is_temporary:
        return NotificationState.BOUNCED, None
    if attempts > len(RETRY_AFTER):
        return NotificationState.FAILED, None
    return NotificationState.WAITING, now + RETRY_AFTER[max(attempts, 1) - 1]


_CONTACTS_ONLY = "the server accepts messages of contacts only; ask the person to add this agent to their contacts"
_NO_DELIVERY = (
    "there is no such account, or it accepts messages of contacts only; check the address,"
    " and ask the person to add this agent to their contacts"
)
_WRONG_ADDRESS = "there is no such address; check it"
_UNREACHABLE = "the server of the person cannot be reached; check the address, and the connections between the servers"
_OVERLOADED = "the server of the person cannot take it now; send it again later"
DECISION_REASONS = {
    "no_access": (
        "the person has no access to this agent; give it by access.allow, or /admit by an operator. A room must be joined first"
    ),
    "switched_off": "the person has switched notifications off; they can send /settings notifications on",
    "too_many": "the person had as many notifications today as notifications.per_day permits; raise it, or send fewer",
}
"""The reasons of decisions by code: why, and what to do."""
BOUNCE_REASONS = {
    # Servers reject messages of people who are no contacts with different conditions: ejabberd (mod_block_strangers) with
    # policy-violation, Tigase with not-acceptable (XEP-0191), others with service-unavailable, as for an unknown account.
    "policy-violation": _CONTACTS_ONLY,
    "not-acceptable": _CONTACTS_ONLY,
    "subscription-required": _CONTACTS_ONLY,
    "service-unavailable": _NO_DELIVERY,
    "forbidden": "this agent may not write there; ask the person to add it to their contacts, or the room's owner for voice",
    "not-allowed": "the server does not permit it; ask its operator to permit messages of this agent",
    "item-not-found": _WRONG_ADDRESS,
    "jid-malformed": _WRONG_ADDRESS,
    "gone": "the account has gone; ask the person for their new address",
    "redirect": "the account has another address; ask the person for it",
    "recipient-unavailable": "the person is offline, and their server stores nothing for them; send it again later",
    "remote-server-not-found": _UNREACHABLE,
    "remote-server-timeout": _UNREACHABLE,
    "internal-server-error": _OVERLOADED,
    "resource-constraint": _OVERLOADED,
}
"""The reasons of bounces by condition of the stanza error (RFC 6120, 8.3.3): why, and what to do."""


def describe_reason(reason: str, text: str = "") -> str:
    """Describe in one line why a notification is in its state, and what to do.

    `reason` is a code of `decide_notification`, or the condition of the error with which it came back; `text` is the text of
    that error. Any other reason is returned as it is, in one line.
    """
    if reason in DECISION_REASONS:
        return DECISION_REASONS[reason]
    cause = ": ".join(filter(None, map(_shorten, (reason, text))))
    return f"{BOUNCE_REASONS[reason]} ({cause})" if reason in BOUNCE_REASONS else cause


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_QUOTED_CHARACTERS else f"{line[:_MAX_QUOTED_CHARACTERS]}…"


@cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _first_moment(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the first moment (UTC, whole seconds) at which the clock of a zone shows a time or a later one."""
    early, late = sorted(int(local.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))

    def is_reached(second: int) -> bool:
        return datetime.fromtimestamp(second, zone).replace(tzinfo=None) >= local

    # If the clock skips the time, its two readings lie on both sides of the gap. Else the early one shows the time.
    gap = range(early, early if is_reached(early) else late)
    return datetime.fromtimestamp(early + bisect_left(gap, True, key=is_reached), UTC)
