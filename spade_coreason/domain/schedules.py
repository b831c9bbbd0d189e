"""stub"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

from ..contracts import Missed


class CronTimes:
    def __init__(self, cron: str, zone: str = "UTC") -> None:
        self.cron, self.zone = cron, zone

    def next_after(self, moment: datetime) -> datetime:
        return next(CronSim(self.cron, moment.astimezone(ZoneInfo(self.zone)))).astimezone(UTC)


class DueDecision(NamedTuple):
    runs_at: datetime | None
    next_due: datetime | None


def decide_missed(
    times: CronTimes | None, due_at: datetime, now: datetime, missed: Missed, grace: timedelta = timedelta(minutes=5)
) -> DueDecision:
    if times is None:
        return DueDecision(due_at if missed == "once" or now - due_at <= grace else None, None)
    return DueDecision(due_at, times.next_after(now))


def check_zone(zone: str) -> str:
    ZoneInfo(zone)
    return zone
