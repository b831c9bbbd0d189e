"""The times of reminders as people and models write them, and as they are shown: pure functions."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_DAYS = {"day": "*", "weekday": "mon-fri"} | {
    name: name[:3] for name in ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
}
_TIME = r"(?P<hour>\d{1,2})(:(?P<minute>\d\d))?"
_WHEN = re.compile(
    rf"in (?P<count>\d{{1,5}}) (?P<unit>{'|'.join(_UNITS)})s?"
    rf"|((?P<day>today|tomorrow|on (?P<date>\d{{4}}-\d\d-\d\d)) )?at {_TIME}"
    rf"|every (?P<every>{'|'.join(_DAYS)}) at {_TIME.replace('hour', 'every_hour').replace('minute', 'every_minute')}",
    re.I,
)
_REMINDER = re.compile(r"remind me (?P<when>\S.*?) (to|that|about) (?P<text>\S.*)", re.I | re.S)


def split_reminder(text: str) -> tuple[str, str] | None:
    """Return the time and the text of "remind me TIME to TEXT"; None if it has another form."""
    match = _REMINDER.fullmatch(text)
    return None if match is None else (match["when"], match["text"])


def parse_when(text: str, now: datetime, zone: ZoneInfo) -> datetime | timedelta | str:
    """Return the time that a text names: a time from now, an aware datetime, or a cron text.

    The forms are "in 10 minutes", "at 18:00" (the next one), "tomorrow at 9", "on 2026-12-24 at 18:00", "every day at 9",
    "every weekday at 9", "every monday at 9" and ISO 8601. Times are those of `zone`. ValueError for anything else, and for
    a time that is over.
    """
    text = " ".join(text.split())
    match = _WHEN.fullmatch(text)
    if match is None:
        due_at = datetime.fromisoformat(text)  # ValueError
        if due_at.tzinfo is None:
            due_at = _place(due_at, zone, now)
    elif match["count"]:
        return timedelta(seconds=int(match["count"]) * _UNITS[match["unit"].lower()])
    elif match["every"]:
        at = time(int(match["every_hour"]), int(match["every_minute"] or 0))
        return f"{at.minute} {at.hour} * * {_DAYS[match['every'].lower()]}"
    else:
        today = now.astimezone(zone).date()
        day = (match["day"] or "").lower()
        if match["date"]:
            date = datetime.strptime(match["date"], "%Y-%m-%d").date()
        else:
            date = today + timedelta(days=day == "tomorrow")
        at = time(int(match["hour"]), int(match["minute"] or 0))
        due_at = _place(datetime.combine(date, at), zone, now)
        if not day and due_at <= now:
            due_at = datetime.combine(date + timedelta(days=1), at, zone)
    if due_at <= now:
        raise ValueError(f"{text} is over")
    return due_at


def _place(local: datetime, zone: ZoneInfo, now: datetime) -> datetime:
    """Return a local time in its zone: of one that the clock shows twice the second, if the first is over."""
    first, second = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    return second if first <= now < second else first


def format_time(moment: datetime, zone: ZoneInfo) -> str:
    """Return a moment as people in a zone read it: "2026-12-24 18:00 (Europe/Madrid)"."""
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M} ({zone.key})"
