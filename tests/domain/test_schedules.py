"""The times of schedules over the changes of clocks, and the decision about due times that nobody ran."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import ClassVar
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from spade_coreason.contracts import Missed
from spade_coreason.domain.initiative.schedules import CronTimes, DueDecision, check_zone, decide_missed
from tests.support.profiling import count_calls

BERLIN = "Europe/Berlin"  # 2026: forward on 29 March at 02:00, back on 25 October at 03:00
NEW_YORK = "America/New_York"  # 2026: forward on 8 March at 02:00, back on 1 November at 02:00
TOKYO = "Asia/Tokyo"
HAVANA = "America/Havana"  # 2026: forward on 8 March at 00:00, back on 1 November at 01:00
ZONES = [BERLIN, NEW_YORK, TOKYO]
CRONS = ["30 2 * * *", "*/30 2 * * *", "0 * * * *", "*/5 * * * *", "0 8 * * mon-fri", "0 */2 * * *", "0 0 29 2 *", "0 8 L * *"]
DAYS_OF_2026 = [date(2026, 1, 1) + timedelta(days=day) for day in range(365)]


def times_of(cron: str, zone: str, start: datetime, end: datetime) -> Iterator[datetime]:
    """Return the due times after `start` and before `end` in the zone, each asked for with the one before."""
    times, moment = CronTimes(cron, zone), start
    while (moment := times.next_after(moment)) < end:
        yield moment.astimezone(ZoneInfo(zone))


def year_of(cron: str, zone: str) -> list[datetime]:
    start, end = (datetime(year, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC) for year in (2026, 2027))
    return list(times_of(cron, zone, start - timedelta(seconds=1), end))


@pytest.mark.parametrize("zone", [*ZONES, HAVANA])
@pytest.mark.parametrize("cron", ["30 0 * * *", "30 1 * * *", "0 2 * * *", "30 2 * * *", "0 8 * * *", "59 23 * * *"])
def test_a_daily_schedule_runs_once_on_each_day_of_a_year(zone: str, cron: str) -> None:
    assert [due_at.date() for due_at in year_of(cron, zone)] == DAYS_OF_2026


@pytest.mark.parametrize("zone", ZONES)
def test_a_schedule_of_working_days_runs_at_its_local_time_on_each_of_them(zone: str) -> None:
    found = year_of("0 8 * * mon-fri", zone)
    assert [due_at.date() for due_at in found] == [day for day in DAYS_OF_2026 if day.weekday() < 5]
    assert {due_at.time().isoformat() for due_at in found} == {"08:00:00"}


@pytest.mark.parametrize("zone", ZONES)
def test_an_hourly_schedule_keeps_its_rhythm_for_a_year(zone: str) -> None:
    found = [due_at.astimezone(UTC) for due_at in year_of("0 * * * *", zone)]
    assert len(found) == 365 * 24
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(hours=1)}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(("first_day", "days"), [(date(2026, 3, 7), 24), (date(2026, 10, 24), 10)])  # the changes of both zones
def test_a_schedule_of_five_minutes_keeps_its_rhythm_through_the_changes(zone: str, first_day: date, days: int) -> None:
    start = datetime(first_day.year, first_day.month, first_day.day, 0, 0, tzinfo=UTC)
    found = [due_at.astimezone(UTC) for due_at in times_of("*/5 * * * *", zone, start, start + timedelta(days=days))]
    assert len(found) == days * 24 * 12 - 1  # without the start
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=5)}


@pytest.mark.parametrize("zone", ZONES)
def test_a_schedule_of_several_times_in_one_hour_runs_on_each_day_and_never_twice_at_one_time(zone: str) -> None:
    found = year_of("*/30 2 * * *", zone)
    days = Counter(due_at.date() for due_at in found)
    assert list(days) == DAYS_OF_2026
    assert len({due_at.replace(tzinfo=None) for due_at in found}) == len(found)
    assert {str(day) for day, count in days.items() if count != 2} == {BERLIN: {"2026-03-29"}, NEW_YORK: {"2026-03-08"}}.get(
        zone, set()
    )


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # A missing hour: once, right after the gap.
        ("30 2 * * *", BERLIN, "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("30 2 * * *", BERLIN, "2026-03-29T03:00+02:00", ["2026-03-30T02:30+02:00"]),
        ("*/30 2 * * *", BERLIN, "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"]),
        ("0 2,3 * * *", BERLIN, "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"]),
        ("0 0 * * *", HAVANA, "2026-03-07T12:00-05:00", ["2026-03-08T01:00-04:00", "2026-03-09T00:00-04:00"]),
        ("0 */2 * * *", BERLIN, "2026-03-28T23:30+01:00", ["2026-03-29T00:00+01:00", "2026-03-29T03:00+02:00"]),
        ("30 * * * *", BERLIN, "2026-03-29T01:00+01:00", ["2026-03-29T01:30+01:00", "2026-03-29T03:30+02:00"]),
        # A repeated hour: the first pass only, also for a question in the second.
        ("30 2 * * *", BERLIN, "2026-10-24T12:00+02:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("30 2 * * *", BERLIN, "2026-10-25T02:15+01:00", ["2026-10-26T02:30+01:00"]),
        ("0 */2 * * *", BERLIN, "2026-10-25T00:30+02:00", ["2026-10-25T02:00+02:00", "2026-10-25T04:00+01:00"]),
        # A schedule of all hours: both passes.
        ("30 * * * *", BERLIN, "2026-10-25T02:00+02:00", ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"]),
        ("0 0-23 * * *", BERLIN, "2026-10-25T01:30+02:00", ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00"]),
        ("15 */1 * * *", BERLIN, "2026-10-25T01:30+02:00", ["2026-10-25T02:15+02:00", "2026-10-25T02:15+01:00"]),
        # Names, the last day, both days limited.
        ("0 8 * jan Mon-Fri", "UTC", "2026-01-02T08:00+00:00", ["2026-01-05T08:00+00:00"]),
        ("0 8 L * *", "UTC", "2026-02-01T00:00+00:00", ["2026-02-28T08:00+00:00", "2026-03-31T08:00+00:00"]),
        ("0 8 29 2 *", "UTC", "2026-01-01T00:00+00:00", ["2028-02-29T08:00+00:00", "2032-02-29T08:00+00:00"]),
        ("0 8 13 * fri", "UTC", "2026-01-09T08:00+00:00", ["2026-01-13T08:00+00:00", "2026-01-16T08:00+00:00"]),
        # Not the moment itself, and whole minutes.
        ("0 8 * * *", "UTC", "2026-01-01T07:59:59.999999+00:00", ["2026-01-01T08:00+00:00"]),
        ("0 8 * * *", "UTC", "2026-01-01T08:00:00.000001+00:00", ["2026-01-02T08:00+00:00"]),
    ],
)
def test_due_times(cron: str, zone: str, after: str, expected: list[str]) -> None:
    times, moment = CronTimes(cron, zone), datetime.fromisoformat(after)
    found = []
    for _ in expected:
        moment = times.next_after(moment)
        assert moment.tzinfo is UTC
        found.append(moment)
    assert found == [datetime.fromisoformat(time) for time in expected]


def test_a_moment_in_a_missing_hour_counts_as_it_is_in_utc() -> None:
    missing = datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo(BERLIN), fold=1)
    assert missing.astimezone(UTC) == datetime(2026, 3, 29, 0, 30, tzinfo=UTC)  # 01:30, before the gap
    assert CronTimes("45 1 * * *", BERLIN).next_after(missing) == datetime(2026, 3, 29, 0, 45, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "zone", "message"),
    [
        ("0 8 * *", "UTC", "has 4 fields; use five: minute, hour, day-of-month, month, day-of-week"),
        ("0 0 8 * * *", "UTC", "has 6 fields"),
        ("", "UTC", "has 0 fields"),
        ("61 8 * * *", "UTC", 'minute "61" is wrong; use "*", 0-59, '),
        ("0 24 * * *", "UTC", 'hour "24" is wrong'),
        ("0 8 32 * *", "UTC", 'day-of-month "32" is wrong'),
        ("0 8 * foo *", "UTC", 'month "foo" is wrong; use "*", 1-12 or jan-dec'),
        ("0 8 * * fri-mon", "UTC", 'day-of-week "fri-mon" is wrong'),
        ("*/0 * * * *", "UTC", 'minute "*/0" is wrong'),
        (f"{'1' * 190} * * * *", "UTC", "is wrong"),
        (f"{'1' * 5000} * * * *", "UTC", "a cron text has at most 200 characters, not 5,008; write it shorter"),
        (f"{','.join('0' * 70_000)} * * * *", "UTC", "at most 200 characters, not 140,007"),
        ("0 8 * * *", "x" * 100_000, "use an IANA name"),
        ("0 8 30 2 *", "UTC", "never matches"),
        ("0 8 31 4,6,9,11 *", "UTC", "never matches"),
        ("0 8 */30 * mon#2", "UTC", "never matches"),
        ("0 8 * * *", "Europe/Berln", 'unknown time zone "Europe/Berln"; did you mean "Europe/Berlin"?'),
        ("0 8 * * *", "europe/berlin", 'did you mean "Europe/Berlin"?'),
        ("0 8 * * *", "New York", 'did you mean "America/New_York"?'),
        ("0 8 * * *", "", "use an IANA name"),
        ("0 8 * * *", "CEST", 'unknown time zone "CEST"; use an IANA name, such as "Europe/Berlin"'),
        ("0 8 * * *", "UTC+2", 'unknown time zone "UTC+2"; use an IANA name, such as "Europe/Berlin"'),
        ("0 8 * * *", "../../etc/passwd", "use an IANA name"),
        ("0 8 * * *", "localtime", 'unknown time zone "localtime"'),
    ],
)
def test_a_mistake_is_named_in_one_line_with_a_remedy(cron: str, zone: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        CronTimes(cron, zone)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("cron", ["7,7,7 2-4 * 1-11 mon-fri", "8,8,8 */1 1-30 * *"])
def test_an_expression_is_parsed_once_and_not_at_each_due_time(cron: str) -> None:
    first = CronTimes(cron, BERLIN).next_after(datetime(2026, 1, 1, tzinfo=UTC))
    with count_calls() as calls:
        for _ in range(10):
            times = CronTimes(cron, BERLIN)
            assert times.next_after(datetime(2026, 1, 1, tzinfo=UTC)) == first
            assert times.next_after(datetime(2026, 6, 1, tzinfo=UTC)) > first
    assert calls["next_after"] == 20
    assert calls["parse"] == 0


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        CronTimes("0 8 * * *").next_after(datetime(2026, 1, 1))


def test_every_known_zone_can_be_used() -> None:
    for zone in (*ZONES, "UTC", "Etc/GMT+2", "America/Argentina/Buenos_Aires", "Asia/Kathmandu"):
        assert check_zone(zone) == zone
        assert CronTimes("0 8 * * *", zone).next_after(datetime(2026, 1, 1, tzinfo=UTC))


def at(time: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-{time}+00:00")


@pytest.mark.parametrize(
    ("cron", "due_at", "now", "missed", "runs_at", "next_due"),
    [
        # In time, a little late, a little early.
        ("0 8 * * *", "05T08:00", "05T08:00", "skip", "05T08:00", "06T08:00"),
        ("0 8 * * *", "05T08:00", "05T08:05", "skip", "05T08:00", "06T08:00"),
        ("0 8 * * *", "05T08:00", "05T07:59:59", "once", "05T08:00", "06T08:00"),
        ("* * * * *", "05T08:00", "05T08:03:30", "skip", "05T08:03", "05T08:04"),
        # Late.
        ("0 8 * * *", "05T08:00", "05T08:05:01", "skip", None, "06T08:00"),
        ("0 8 * * *", "05T08:00", "05T20:00", "once", "05T08:00", "06T08:00"),
        # The platform was down for a day, and for some.
        ("*/5 * * * *", "05T08:00", "06T08:02", "once", "06T08:00", "06T08:05"),
        ("*/5 * * * *", "05T08:00", "06T08:02", "skip", None, "06T08:05"),
        ("*/5 * * * *", "05T08:00", "06T08:00", "once", "06T08:00", "06T08:05"),
        ("0 8 * * *", "05T08:00", "09T07:00", "once", "08T08:00", "09T08:00"),
        ("0 8 * * mon-fri", "09T08:00", "11T12:00", "once", "09T08:00", "12T08:00"),  # a weekend
        # One due time.
        (None, "05T08:00", "05T08:00", "skip", "05T08:00", None),
        (None, "05T08:00", "06T08:00", "skip", None, None),
        (None, "05T08:00", "06T08:00", "once", "05T08:00", None),
    ],
)
def test_what_is_run_of_missed_due_times(
    cron: str | None, due_at: str, now: str, missed: Missed, runs_at: str | None, next_due: str | None
) -> None:
    times = CronTimes(cron) if cron else None
    expected = DueDecision(at(runs_at) if runs_at else None, at(next_due) if next_due else None)
    assert decide_missed(times, at(due_at), at(now), missed) == expected


def test_the_delay_that_counts_as_missed_can_be_set() -> None:
    assert decide_missed(None, at("05T08:00"), at("05T08:01"), "skip", timedelta(seconds=30)).runs_at is None


@pytest.mark.parametrize("missed", ["once", "skip"])
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("change", ["2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01"])
def test_a_platform_that_was_down_over_a_change_of_the_clock_runs_at_most_once(zone: str, change: str, missed: Missed) -> None:
    due_at = datetime.fromisoformat(f"{change}T00:00+00:00")
    now = due_at + timedelta(days=1, minutes=2)
    decision = decide_missed(CronTimes("*/5 * * * *", zone), due_at, now, missed)
    assert decision.runs_at == (now - timedelta(minutes=2) if missed == "once" else None)
    assert decision.next_due == now + timedelta(minutes=3)


class CountedTimes(CronTimes):
    """Due times that count how often they are asked for."""

    asked: ClassVar[int] = 0

    def next_after(self, moment: datetime) -> datetime:
        CountedTimes.asked += 1
        return super().next_after(moment)


@pytest.mark.parametrize("cron", ["* * * * *", "* * * 1 *", "* 0 * * *", "0 0 29 2 *"])
def test_the_last_of_many_missed_due_times_is_found_in_few_steps(cron: str) -> None:
    CountedTimes.asked = 0
    now = datetime(2026, 12, 31, 12, 0, 30, tzinfo=UTC)
    decide_missed(CountedTimes(cron), datetime(2016, 1, 1, tzinfo=UTC), now, "once")  # five million minutes
    assert CountedTimes.asked < 100


moments = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))
changes = st.sampled_from(["2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01"]).flatmap(
    lambda day: st.integers(0, 24 * 3600).map(
        lambda second: datetime.fromisoformat(f"{day}T00:00+00:00") + timedelta(seconds=second)
    )
)
schedules = st.builds(CronTimes, st.sampled_from(CRONS), st.sampled_from([*ZONES, HAVANA, "Australia/Lord_Howe"]))


@given(schedules, moments | changes, moments | changes)
def test_a_due_time_is_later_than_the_moment_and_never_earlier_for_a_later_moment(
    times: CronTimes, one: datetime, other: datetime
) -> None:
    earlier, later = sorted((one, other))
    first, second = times.next_after(earlier), times.next_after(later)
    assert earlier < first <= second
    assert later < second
    assert first == second or first <= later  # nothing is due between a moment and the due time after it


@given(schedules, moments | changes, st.timedeltas(timedelta(0), timedelta(days=800)), st.sampled_from(["once", "skip"]))
def test_a_decision_leaves_nothing_to_decide_before_its_next_due_time(
    times: CronTimes, moment: datetime, down: timedelta, missed: Missed
) -> None:
    due_at = times.next_after(moment)
    now = due_at + down
    decision = decide_missed(times, due_at, now, missed)
    assert decision == decide_missed(times, due_at, now, missed)
    assert decision.next_due is not None
    assert decision.next_due > now
    if decision.runs_at is not None:
        assert due_at <= decision.runs_at <= now
        assert times.next_after(decision.runs_at) == decision.next_due  # it is the last of those that were due
        assert decide_missed(times, decision.runs_at, now, "once") == decision
