"""stub"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from ..contracts import NotificationState


class QuietHours: ...


@dataclass(frozen=True, slots=True)
class NotificationPolicy:
    per_day: int = 20
    quiet: QuietHours | None = None
    zone: str = "UTC"


class NotificationDecision(NamedTuple):
    state: NotificationState
    due_at: datetime
    reason: str = ""


def decide_notification(
    *, is_allowed: bool, is_on: bool, count_today: int | None, policy: NotificationPolicy, zone: str, now: datetime
) -> NotificationDecision:
    if not is_allowed:
        return NotificationDecision(NotificationState.REFUSED, now, "no_access")
    if not is_on:
        return NotificationDecision(NotificationState.REFUSED, now, "switched_off")
    if count_today is not None and count_today >= policy.per_day:
        return NotificationDecision(NotificationState.REFUSED, now, "too_many")
    return NotificationDecision(NotificationState.WAITING, now)


def decide_bounce(attempts: int, *, is_temporary: bool, now: datetime) -> tuple[NotificationState, datetime | None]:
    if not is_temporary:
        return NotificationState.BOUNCED, None
    if attempts >= 5:
        return NotificationState.FAILED, None
    return NotificationState.WAITING, now + timedelta(minutes=1)


def describe_reason(reason: str, text: str = "") -> str:
    return text or reason
