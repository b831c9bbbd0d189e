"""The command `spade-coreason schedules`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...completion import complete_schedules
from ...context import CLIGroup, json_option
from ...operations import (
    confirm,
    describe_none,
    id_argument,
    limit_option,
    open_platform,
    parse_address,
    print_result,
    storage_options,
    yes_option,
)
from ...terminal.console import format_time, print_line, print_table

if TYPE_CHECKING:
    from ....operations.initiative.schedules import ListedSchedule

_ID_CHARACTERS = 8


@click.group("schedules", cls=CLIGroup)
def command() -> None:
    """List reminders, jobs and what agents do at times; cancel one, or run it now.

    A schedule is listed without its payload. `cancel` and `run` write an entry to the audit trail of the agent.

    \b
      spade-coreason schedules list
      spade-coreason schedules run 1f0c9a77
      spade-coreason schedules cancel 1f0c9a77
    """


@command.command("list")
@storage_options
@click.option("--owner", metavar="JID", help="Only those of this person, room or agent.")
@limit_option
@json_option()
def list_(file: Path | None, data: Path | None, agent: str | None, owner: str | None, limit: int, as_json: bool) -> None:
    """List schedules, the next due ones first. Works while the platform runs.

    Those of an agent that is not in the configuration are listed, and do not run.

    \b
      spade-coreason schedules list --agent kitchen
    """
    from ....operations.initiative.schedules import Schedules, list_schedules

    owner = None if owner is None else parse_address(owner, "--owner")
    with open_platform(file, data, prefers_running=True) as platform:
        found = platform.perform(list_schedules, Schedules(agent=agent, owner=owner, limit=limit))
    if as_json:
        print_result(list_schedules, found)
    elif not found:
        print_line(describe_none(platform, "schedules"))
    else:
        rows = [
            (
                one.id[:_ID_CHARACTERS],
                one.agent,
                one.kind,
                one.owner if one.owner != one.agent else "",
                format_time(one.due_at),
                f"{one.cron} {one.zone}".strip(),
                one.reason or (one.state if one.runs else "the agent does not run"),
            )
            for one in found
        ]
        print_table(("id", "agent", "kind", "of", "due", "times", "state"), rows, texts=("state",))


@command.command("cancel")
@id_argument("schedule_id", complete_schedules)
@storage_options
@yes_option
def cancel(file: Path | None, data: Path | None, agent: str | None, schedule_id: str, yes: bool) -> None:
    """Cancel a schedule. One of `@every` comes back at the next start of its agent. Works while the platform runs.

    ID is from `schedules list`.

    \b
      spade-coreason schedules cancel 1f0c9a77
    """
    from ....operations.initiative.schedules import CancelledSchedule, cancel_schedule

    with open_platform(file, data, changes=True) as platform:
        confirm(f"cancel the schedule {schedule_id}", yes)
        found = platform.perform(cancel_schedule, CancelledSchedule(agent=agent, id=schedule_id))
    print_line(f"{_describe(found)} is cancelled.")


@command.command("run")
@id_argument("schedule_id", complete_schedules)
@storage_options
def run(file: Path | None, data: Path | None, agent: str | None, schedule_id: str) -> None:
    """Run a schedule now. It needs a running platform.

    One that repeats goes on with its next due time, and one with a single due time is over.

    ID is from `schedules list`.

    \b
      spade-coreason schedules run 1f0c9a77
    """
    from ....operations.initiative.schedules import OfSchedule, run_schedule

    with open_platform(file, data, changes=True) as platform:
        found = platform.perform(run_schedule, OfSchedule(agent=agent, id=schedule_id))
    print_line(f"{_describe(found)} runs now.")


def _describe(schedule: ListedSchedule) -> str:
    owner = "its own" if schedule.owner == schedule.agent else f"of {schedule.owner}"
    return f"The schedule {schedule.id[:_ID_CHARACTERS]} of {schedule.agent} ({schedule.kind}, {owner})"
