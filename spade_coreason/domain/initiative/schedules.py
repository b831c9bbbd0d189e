"""The due times of schedules, cron expressions in a time zone, and the decision about late ones: no clock, only zone files.

A schedule follows the clock of its zone. When that clock changes:

- **All hours** (`*/5 * * * *`, `0 * * * *`, `30 * * * *`): the schedule keeps its rhythm in real time. A repeated hour runs
  twice, as it lasts twice as long, and a missing hour has no real time to run in.
- **Given hours** (`30 2 * * *`, `*/30 2 * * *`, `0 */2 * * *`): the schedule follows the wall clock. Times in a missing hour
  run once together, right after the gap. Times in a repeated hour run in its first pass only.

So no day is left out and none runs twice.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple
from zoneinfo import ZoneInfo

import tzdata  # type: ignore[import-untyped]  # it has no stubs, and is data only
from cronsim import CronSim, CronSimError

from ...contracts import Missed

MAX_CRON_CHARACTERS = 200
"""The most characters of a cron expression."""

GRACE = timedelta(minutes=5)
"""The delay up to which a due time is not missed: a busy platform or a restart."""

FIELDS = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": '1-31, "L" (the last day) or "LW" (the last weekday)',
    "month": "1-12 or jan-dec",
    "day-of-week": '0-7 (0 and 7 are Sunday) or sun-sat, also "mon#1" (the first Monday) or "5L" (the last Friday)',
}
"""The fields of a cron expression in their order, with the values that each takes."""

_ANY_TIME = datetime(2000, 1, 1)
"""A start for an expression whose times are not asked for yet."""


@dataclass(frozen=True, slots=True)
class CronTimes:
    """The due times of a cron expression with five fields (minute, hour, day of month, month, day of week) in a time zone.

    Names as in `mon-fri` are read in upper and lower case. If the day of month and the day of week are both limited, one of
    them has to match; if either begins with `*`, both have to (as in the cron of Debian).

    Raises ValueError with the cause and a remedy if the expression is wrong or never matches, or the zone is unknown.
    """

    cron: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        check_zone(self.zone)
        _parse_cron(self.cron)

    def next_after(self, moment: datetime) -> datetime:
        """Return the first due time after an aware moment, in UTC. It is never the moment itself.

        Raises ValueError if the moment has no time zone, or if no time is due in the next 50 years.
        """
        if moment.utcoffset() is None:
            raise ValueError(f"{moment.isoformat()} has no time zone; use an aware time, such as datetime.now(timezone.utc)")
        moment, zone = moment.astimezone(UTC), ZoneInfo(self.zone)
        local = moment.astimezone(zone)
        # cronsim gets a zone for all hours only. With one, it follows real time if the minute or the hour begins with `*`, so
        # that `*/30 2 * * *` would be left out on one day and run four times on another. It would also return the first pass
        # of a repeated hour to a caller in the second.
        times = copy(_parse_cron(self.cron))
        times.dt = local.replace(microsecond=0)
        if not _has_all_hours(times):
            times.dt = times.dt.replace(tzinfo=None, fold=0)
        for time in times:
            due_at = _first_utc(time, zone)
            if due_at > moment:  # in the second pass of a repeated hour, its times are over
                return due_at
        raise ValueError(f'cron "{self.cron}": no time is due in the 50 years after {moment.isoformat()}')

    def last_until(self, due_at: datetime, now: datetime) -> datetime:
        """Return the last due time up to `now`, in UTC; `due_at`, a due time before, if there is none after it."""
        last, end = due_at.astimezone(UTC), now.astimezone(UTC)
        # By halves: a schedule of every minute has half a million due times in a year.
        while (following := self.next_after(last)) <= now:
            middle = following + (end - following) / 2
            candidate = self.next_after(middle)
            if candidate <= now:
                last = candidate
            else:
                last, end = following, middle
        return last


class DueDecision(NamedTuple):
    """The decision about a due time. Times are in UTC."""

    runs_at: datetime | None
    """The due time that is run now; None for no run."""
    next_due: datetime | None
    """The next due time, later than now; None if the schedule is over."""


def decide_missed(
    times: CronTimes | None,
    due_at: datetime,
    now: datetime,
    missed: Missed,
    grace: timedelta = GRACE,
    waited_until: datetime | None = None,
) -> DueDecision:
    """Decide about a due time that has come up. `times` is None for a schedule with one due time.

    With "once", all due times up to now are one run, that of the last one. With "skip", nothing runs if `due_at` is more
    than `grace` ago. Due times that passed within `grace` are one run too, with either.

    `waited_until` is the end of a delay that the running platform has set, such as that of a quota. Only the time after it
    counts as missed.
    """
    due_at = due_at.astimezone(UTC)
    now = max(due_at, now.astimezone(UTC))  # a timer may fire a little early
    last = times.last_until(due_at, now) if times else due_at
    is_skipped = missed == "skip" and now - max(due_at, waited_until or due_at) > grace
    return DueDecision(None if is_skipped else last, times.next_after(now) if times else None)


def check_zone(zone: str) -> str:
    """Return the IANA name of a time zone, such as "Europe/Berlin".

    Raises ValueError with the closest known name if there is no such zone. Files of the system that are no IANA names
    ("localtime", "posix/Europe/Berlin") are unknown.
    """
    known = _zones()
    if zone in known:
        return zone
    names = {name.rpartition("/")[2].lower(): name for name in known} | {name.lower(): name for name in known}
    # An abbreviation (CEST) or an offset (UTC+2) is like the name of another one.
    is_name = len(zone) > 4 and not re.search(r"\d", zone)
    near = get_close_matches(zone.strip().lower().replace(" ", "_"), names, n=1) if is_name else []
    hint = f'did you mean "{names[near[0]]}"?' if near else 'use an IANA name, such as "Europe/Berlin"'
    raise ValueError(f'unknown time zone "{zone:.100}"; {hint}')


@cache
def _zones() -> frozenset[str]:
    """Return the IANA names of all zones: the same on every system, in 1 ms instead of the 20 of `available_timezones`."""
    return frozenset(files(tzdata).joinpath("zones").read_text(encoding="utf-8").split())


@lru_cache(256)
def _parse_cron(cron: str) -> CronSim:
    """Return the times of an expression, without a start. ValueError for one that is wrong."""
    if len(cron) > MAX_CRON_CHARACTERS:
        raise ValueError(f"a cron text has at most {MAX_CRON_CHARACTERS} characters, not {len(cron):,}; write it shorter")
    fields = cron.split()
    if len(fields) != len(FIELDS):
        raise ValueError(f'cron "{cron}" has {len(fields)} fields; use five: {", ".join(FIELDS)}, such as "0 8 * * mon-fri"')
    for position, (name, values) in enumerate(FIELDS.items()):
        # One field at a time: of 30 February, each field is right.
        alone = ["*"] * len(FIELDS)
        alone[position] = fields[position]
        try:
            CronSim(" ".join(alone), _ANY_TIME)
        except CronSimError:
            hint = f'use "*", {values}, ranges (1-5), lists (1,3) or steps (*/2)'
            raise ValueError(f'cron "{cron}": {name} "{fields[position]}" is wrong; {hint}') from None
    try:
        next(times := CronSim(cron, _ANY_TIME))
    except (CronSimError, StopIteration):
        raise ValueError(f'cron "{cron}" never matches; change the day or the month, so that such a day exists') from None
    return CronSim(" ".join((fields[0], "*", *fields[2:])), _ANY_TIME) if _has_all_hours(times) else times


def _has_all_hours(times: CronSim) -> bool:
    return len(times.hours) == 24  # also `0-23` and `*/1`


def _first_utc(time: datetime, zone: ZoneInfo) -> datetime:
    """Return a local time in UTC: of a repeated time the first, of a missing one the end of the gap."""
    if time.tzinfo is not None:
        return time.astimezone(UTC)
    while (found := time.replace(tzinfo=zone).astimezone(UTC)).astimezone(zone).replace(tzinfo=None, fold=0) != time:
        time += timedelta(minutes=1)
    return found
