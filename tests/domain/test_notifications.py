"""The decisions about notifications: quiet hours over changes of clocks, limits, tries, and their reasons."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from spade_coreason.contracts import NotificationState
from spade_coreason.domain.initiative.notifications import (
    NotificationDecision,
    NotificationPolicy,
    QuietHours,
    decide_bounce,
    decide_notification,
    describe_reason,
)

NIGHT = QuietHours(time(22), time(7))
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 6, 1, 0, tzinfo=UTC)
BERLIN, LORD_HOWE, HAVANA = "Europe/Berlin", "Australia/Lord_Howe", "America/Havana"
ZONES = ["UTC", BERLIN, "America/New_York", LORD_HOWE, HAVANA, "Asia/Kathmandu"]

NO_ACCESS = "the person has no access to this agent; give it by access.allow, or /admit by an operator"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("22:00-07:00", time(22), time(7)),
        ("00:00-23:59", time(0), time(23, 59)),
        ("12:30-13:45", time(12, 30), time(13, 45)),
    ],
)
def test_quiet_hours_are_read(text: str, begin: time, end: time) -> None:
    assert QuietHours.parse(text) == QuietHours(begin, end)


@pytest.mark.parametrize("text", ["", "22-7", "22:00", "22:00-24:00", "22:60-07:00", "22:00-07:00\n", "22:00–07:00", "x" * 999])
def test_what_is_no_range_of_hours_is_one_line_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match='is not a range of hours; write it like "22:00-07:00"') as raised:
        QuietHours.parse(text)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_quiet_hours_that_end_when_they_begin_are_refused() -> None:
    with pytest.raises(ValueError, match="must not end when they begin"):
        QuietHours.parse("07:00-07:00")


@pytest.mark.parametrize(
    ("hours", "zone", "moment", "end"),
    [
        ("22:00-07:00", "UTC", "2026-06-01 21:59:59", None),
        ("22:00-07:00", "UTC", "2026-06-01 22:00", "2026-06-02 07:00"),
        ("22:00-07:00", "UTC", "2026-06-02 06:59:59", "2026-06-02 07:00"),
        ("22:00-07:00", "UTC", "2026-06-02 07:00", None),
        ("12:00-13:00", "UTC", "2026-06-01 12:30", "2026-06-01 13:00"),
        ("12:00-13:00", "UTC", "2026-06-01 23:00", None),
        ("22:00-07:00", BERLIN, "2026-06-01 20:00", "2026-06-02 05:00"),
        ("22:00-07:00", BERLIN, "2026-12-01 20:30", None),
        ("22:00-07:00", BERLIN, "2026-12-01 21:00", "2026-12-02 06:00"),
        # 2026-03-29: 02:00 CET is 03:00 CEST, at 01:00 UTC
        ("22:00-07:00", BERLIN, "2026-03-28 22:00", "2026-03-29 05:00"),
        ("22:00-02:30", BERLIN, "2026-03-29 00:59:59", "2026-03-29 01:00"),
        ("22:00-02:30", BERLIN, "2026-03-29 01:00", None),
        ("02:30-05:00", BERLIN, "2026-03-29 00:59", None),
        ("02:30-05:00", BERLIN, "2026-03-29 01:00", "2026-03-29 03:00"),
        ("02:10-02:50", BERLIN, "2026-03-29 01:00", None),
        # 2026-10-25: 03:00 CEST is 02:00 CET, at 01:00 UTC
        ("22:00-07:00", BERLIN, "2026-10-24 22:00", "2026-10-25 06:00"),
        ("22:00-02:30", BERLIN, "2026-10-25 00:29", "2026-10-25 00:30"),
        ("22:00-02:30", BERLIN, "2026-10-25 01:10", None),
        ("02:30-05:00", BERLIN, "2026-10-25 01:10", "2026-10-25 04:00"),
        # 2026-11-01: 01:00 CDT is 00:00 CST, at 05:00 UTC
        ("00:30-06:00", HAVANA, "2026-11-01 05:10", "2026-11-01 11:00"),
        # 2026-03-08: 00:00 CST is 01:00 CDT, at 05:00 UTC, so that the minute that is not quiet does not come
        ("00:01-00:00", HAVANA, "2026-03-08 00:00", "2026-03-08 05:00"),
        ("00:01-00:00", HAVANA, "2026-03-08 05:00", "2026-03-09 04:00"),
        # 2026-10-04: 02:00 is 02:30, at 15:30 UTC of the day before
        ("22:00-02:15", LORD_HOWE, "2026-10-03 15:20", "2026-10-03 15:30"),
    ],
)
def test_quiet_hours_follow_the_clock_of_the_zone(hours: str, zone: str, moment: str, end: str | None) -> None:
    assert QuietHours.parse(hours).end_of(utc(moment), zone) == (None if end is None else utc(end))


minutes = st.integers(0, 24 * 60 - 1).map(lambda minute: time(minute // 60, minute % 60))
quiet_hours = st.tuples(minutes, minutes).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: QuietHours(*pair))
moments = st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)
CHANGES = [date(2026, 3, 29), date(2026, 10, 25), date(2026, 3, 8), date(2026, 11, 1), date(2026, 4, 5), date(2026, 10, 4)]
near_changes = st.builds(
    lambda day, second: datetime.combine(day, time(), UTC) + timedelta(seconds=second),
    st.sampled_from(CHANGES),
    st.integers(-86_400, 2 * 86_400),
)


@given(quiet_hours, moments | near_changes, st.sampled_from(ZONES))
def test_quiet_hours_end_at_the_first_moment_at_or_after_their_local_end(
    hours: QuietHours, moment: datetime, zone: str
) -> None:
    clock = ZoneInfo(zone)
    end = hours.end_of(moment, zone)
    if end is None:
        return
    assert end.tzinfo is UTC
    assert moment < end <= moment + timedelta(hours=25)
    shown, before = end.astimezone(clock), (end - timedelta(seconds=1)).astimezone(clock)
    planned, next_begin = (datetime.combine(shown.date(), time_) for time_ in (hours.end, hours.begin))
    # The next ones may begin in the hour that the clock leaves out.
    assert hours.end_of(end, zone) is None or planned < next_begin <= shown.replace(tzinfo=None)
    assert before.replace(tzinfo=None) < planned <= shown.replace(tzinfo=None)
    assert hours.end_of(end - timedelta(seconds=1), zone) == end


@given(quiet_hours, moments | near_changes, st.sampled_from(ZONES))
def test_far_from_a_change_of_clocks_quiet_hours_are_those_of_the_clock(hours: QuietHours, moment: datetime, zone: str) -> None:
    clock = ZoneInfo(zone)
    offsets = {(moment + timedelta(hours=shift)).astimezone(clock).utcoffset() for shift in range(-49, 50)}
    if len(offsets) > 1:
        return
    shown = moment.astimezone(clock).time()
    is_quiet = hours.begin <= shown < hours.end if hours.begin < hours.end else shown >= hours.begin or shown < hours.end
    assert (hours.end_of(moment, zone) is not None) is is_quiet


@pytest.mark.parametrize(
    ("is_allowed", "is_on", "count_today", "now", "expected"),
    [
        (False, False, 99, MIDNIGHT, (NotificationState.REFUSED, MIDNIGHT, "no_access")),
        (True, False, 99, MIDNIGHT, (NotificationState.REFUSED, MIDNIGHT, "switched_off")),
        (True, True, 3, MIDNIGHT, (NotificationState.REFUSED, MIDNIGHT, "too_many")),
        (True, True, 4, NOON, (NotificationState.REFUSED, NOON, "too_many")),
        (True, True, 2, MIDNIGHT, (NotificationState.WAITING, MIDNIGHT + timedelta(hours=5), "")),
        (True, True, None, MIDNIGHT, (NotificationState.WAITING, MIDNIGHT + timedelta(hours=5), "")),
        (True, True, 2, NOON, (NotificationState.WAITING, NOON, "")),
        (False, True, None, NOON, (NotificationState.REFUSED, NOON, "no_access")),
        (True, False, None, NOON, (NotificationState.REFUSED, NOON, "switched_off")),
    ],
)
def test_a_notification_is_refused_delayed_or_sent(
    is_allowed: bool, is_on: bool, count_today: int | None, now: datetime, expected: tuple[NotificationState, datetime, str]
) -> None:
    policy = NotificationPolicy(per_day=3, quiet=NIGHT)
    decision = decide_notification(
        is_allowed=is_allowed, is_on=is_on, count_today=count_today, policy=policy, zone=BERLIN, now=now
    )
    assert decision == NotificationDecision(*expected)


def test_quiet_hours_are_those_of_the_zone_of_the_person_and_not_of_the_agent() -> None:
    policy = NotificationPolicy(quiet=NIGHT, zone=BERLIN)

    def due_at(zone: str) -> datetime:
        return decide_notification(is_allowed=True, is_on=True, count_today=0, policy=policy, zone=zone, now=NOON).due_at

    assert due_at(BERLIN) == NOON
    assert due_at("Asia/Tokyo") == NOON
    assert due_at("Pacific/Auckland") == datetime(2026, 6, 1, 19, tzinfo=UTC)


@pytest.mark.parametrize(
    ("attempts", "state", "after_minutes"),
    [
        (1, NotificationState.WAITING, 1),
        (2, NotificationState.WAITING, 5),
        (3, NotificationState.WAITING, 30),
        (4, NotificationState.WAITING, 120),
        (5, NotificationState.FAILED, None),
        (6, NotificationState.FAILED, None),
    ],
)
def test_a_temporary_error_is_tried_again_until_the_fifth_try(
    attempts: int, state: NotificationState, after_minutes: int | None
) -> None:
    due_at = None if after_minutes is None else NOON + timedelta(minutes=after_minutes)
    assert decide_bounce(attempts, is_temporary=True, now=NOON) == (state, due_at)
    assert decide_bounce(attempts, is_temporary=False, now=NOON) == (NotificationState.BOUNCED, None)


@pytest.mark.parametrize("condition", ["policy-violation", "not-acceptable", "service-unavailable", "subscription-required"])
def test_an_error_of_a_server_that_blocks_strangers_asks_for_a_contact(condition: str) -> None:
    line = describe_reason(condition, "Messages from strangers\nare rejected")
    assert "ask the person to add this agent to their contacts" in line
    assert line.endswith(f"({condition}: Messages from strangers are rejected)")


@pytest.mark.parametrize(
    ("reason", "text", "line"),
    [
        ("no_access", "", f"{NO_ACCESS}. A room must be joined first"),
        ("switched_off", "", "the person has switched notifications off; they can send /settings notifications on"),
        ("item-not-found", "", "there is no such address; check it (item-not-found)"),
        ("x-own", "a\nreason", "x-own: a reason"),
        ("the connection ended", "", "the connection ended"),
        ("", "no condition", "no condition"),
        ("", "", ""),
    ],
)
def test_a_reason_is_one_line(reason: str, text: str, line: str) -> None:
    assert describe_reason(reason, text) == line


def test_a_long_text_of_a_server_is_cut() -> None:
    assert len(describe_reason("policy-violation", "x" * 10_000)) < 400
