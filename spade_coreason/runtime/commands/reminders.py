"""The commands /reminders and /reminders cancel: what is due for a person, with one agent."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from ...domain.forms.commands import CommandResult
from ...domain.texts.translation import translate
from ...exceptions import ConfigError
from ...operations.initiative.schedules import CancelledSchedule, cancel_schedule
from ...storage import Task
from .context import Invocation

_MAX_TEXT_CHARACTERS = 80


async def list_reminders(invocation: Invocation) -> CommandResult:
    """List what is due for the person, the next first."""
    schedules = await _load(invocation)
    if not schedules:
        return CommandResult(translate("Nothing is due for you."))
    zone = await _find_zone(invocation)
    lines = [f"{number}. {_describe(schedule, zone)}" for number, schedule in enumerate(schedules, start=1)]
    lines += ["", translate("The times are those of {zone}. /reminders cancel NUMBER cancels one.", zone=zone.key)]
    return CommandResult("\n".join(lines))


async def cancel_reminder(invocation: Invocation) -> CommandResult:
    """Cancel one of them, by its number."""
    schedules, number = await _load(invocation), invocation.values["number"]
    if not 1 <= number <= len(schedules):
        text = translate("There is no reminder {number}. /reminders lists them.", number=number)
        return CommandResult(text, is_error=True)
    chosen, zone = schedules[number - 1], await _find_zone(invocation)
    arguments = CancelledSchedule(id=chosen.key, agent=invocation.context.jid, person=invocation.owner)
    try:
        await invocation.perform(cancel_schedule, arguments)
    except ConfigError:  # it has come due meanwhile
        text = translate("There is no reminder {number}. /reminders lists them.", number=number)
        return CommandResult(text, is_error=True)
    return CommandResult(translate("Cancelled: {reminder}", reminder=_describe(chosen, zone)))


async def _find_zone(invocation: Invocation) -> ZoneInfo:
    preferences = await invocation.context.loader.persons.get_preferences(invocation.owner)
    return ZoneInfo(preferences.zone or invocation.context.zone)


async def _load(invocation: Invocation) -> list[Task]:
    return await invocation.context.host.repository(invocation.context.jid).schedules.load(owner=invocation.owner)


def _describe(schedule: Task, zone: ZoneInfo) -> str:
    due_at: datetime = schedule.due.astimezone(zone)
    payload, cron = schedule.values["request"]["payload"], schedule.values["cron"]
    text = payload.get("query") or next((each for each in payload.values() if isinstance(each, str)), "")
    shown = text if len(text) <= _MAX_TEXT_CHARACTERS else f"{text[:_MAX_TEXT_CHARACTERS]}…"
    line = f"{due_at:%Y-%m-%d %H:%M}"
    if cron:
        line += " " + translate("(repeats: {times})", times=cron)
    if schedule.state == "suspended":
        line += " " + translate("(suspended)")
    return f"{line} {shown}".rstrip()
