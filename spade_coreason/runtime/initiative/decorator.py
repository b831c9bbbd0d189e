"""`@every`: the methods of an agent that run at times of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ...contracts import Missed
from ...domain.initiative.schedules import CronTimes
from ..marks import Handler, check_handler, find_marked

_MARK = "__spade_coreason_every__"


@dataclass(frozen=True, slots=True)
class EveryMark:
    """The times of one method. Without a zone it is that of the agent (`notifications.zone`)."""

    cron: str
    zone: str | None
    missed: Missed


@dataclass(frozen=True, slots=True)
class EveryHandler:
    """A method that runs at times of its own. `name` tells it from the others: a method keeps its times under it."""

    name: str
    mark: EveryMark
    handle: Callable[..., Awaitable[Any]]


def every(cron: str, /, *, zone: str | None = None, missed: Missed = "once") -> Callable[[Handler], Handler]:
    """Run a coroutine method `(self, request, session, response)` at times: `@every("0 8 * * mon-fri")`.

    `cron` has five fields: minute, hour, day of the month, month, day of the week. `zone` is the name of a time zone, such as
    "Europe/Berlin", by default that of the agent (`notifications.zone`).

    The method runs in a conversation of the agent itself, `session` remembers in it. What it sends with `response` is recorded,
    and not sent: it tells people with `people.notify`. `request.metadata` has `schedule`, `every` (the name of the
    method) and `due_at`.

    If times were missed, because the platform was down, the agent was paused or an earlier run had not ended, "once" runs the
    method once afterwards, and "skip" waits for the next time. For an agent that is a function, write `@every` below `@agent`.

    TypeError or ValueError if the method, the times or the zone are unsuitable.
    """
    CronTimes(cron, zone or "UTC")
    if missed not in ("once", "skip"):
        raise ValueError(f'@every("{cron}"): missed must be "once" or "skip", not {missed!r}')

    def decorate(handler: Handler) -> Handler:
        check_handler(f'@every("{cron}")', handler)
        setattr(handler, _MARK, EveryMark(cron, zone, missed))
        return handler

    return decorate


def every_of(agent: object) -> list[EveryHandler]:
    """Return the methods of an agent that run at times, in the order of definition; those of base classes come first."""
    return [EveryHandler(*found) for found in find_marked(agent, _MARK)]
