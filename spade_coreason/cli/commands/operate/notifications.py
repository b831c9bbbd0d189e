"""The command `spade-coreason notifications`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...completion import complete_notifications
from ...context import CLIGroup, json_option
from ...operations import (
    confirm,
    describe_none,
    id_argument,
    limit_option,
    open_platform,
    parse_person,
    print_result,
    storage_options,
    yes_option,
)
from ...terminal.console import format_time, print_line, print_table

if TYPE_CHECKING:
    from ....operations.initiative.notifications import ListedNotification

_STATES = ("waiting", "sent", "bounced", "failed", "refused")
_ID_CHARACTERS = 8


@click.group("notifications", cls=CLIGroup)
def command() -> None:
    """List what agents send without being asked, and send it again or delete it.

    A notification is listed without its content, for seven days after its last change. `retry` and `drop` write an entry to
    the audit trail of the agent.

    \b
      spade-coreason notifications list --state bounced
      spade-coreason notifications retry 1f0c9a77
      spade-coreason notifications drop 1f0c9a77
    """


@command.command("list")
@storage_options
@click.option("--person", metavar="JID", help="Only those to this person or room.")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@limit_option
@json_option()
def list_(
    file: Path | None, data: Path | None, agent: str | None, person: str | None, state: str | None, limit: int, as_json: bool
) -> None:
    """List notifications, the newest first, with their states and reasons. Works while the platform runs.

    \b
      spade-coreason notifications list --agent kitchen
    """
    from ....operations.initiative.notifications import Notifications, list_notifications

    with open_platform(file, data) as platform:
        of_person = None if person is None else parse_person(person)
        wanted = Notifications.model_validate({"agent": agent, "person": of_person, "state": state, "limit": limit})
        found = platform.perform(list_notifications, wanted)
    if as_json:
        print_result(list_notifications, found)
    elif not found:
        print_line(describe_none(platform, "notifications"))
    else:
        rows = [
            (one.id[:_ID_CHARACTERS], one.agent, one.person, str(one.state), format_time(one.changed_at), _describe(one))
            for one in found
        ]
        print_table(("id", "agent", "person", "state", "since", "reason"), rows, texts=("reason",))


@command.command("retry")
@id_argument("notification_id", complete_notifications)
@storage_options
def retry(file: Path | None, data: Path | None, agent: str | None, notification_id: str) -> None:
    """Send a notification again, for example one that has bounced.

    It is sent now, or at the next start if the platform does not run. A notification that is still waiting cannot be sent
    again: it is sent when it is due.

    ID is from `notifications list`.

    \b
      spade-coreason notifications retry 1f0c9a77
    """
    from ....operations.initiative.notifications import OfNotification, retry_notification

    with open_platform(file, data, changes=True) as platform:
        found = platform.perform(retry_notification, OfNotification(agent=agent, id=notification_id))
    print_line(f"The notification to {found.person} will be sent again; `spade-coreason notifications list` shows its state.")


@command.command("drop")
@id_argument("notification_id", complete_notifications)
@storage_options
@yes_option
def drop(file: Path | None, data: Path | None, agent: str | None, notification_id: str, yes: bool) -> None:
    """Delete a notification. One that waits is not sent. Works while the platform runs.

    ID is from `notifications list`.

    \b
      spade-coreason notifications drop 1f0c9a77
    """
    from ....operations.initiative.notifications import OfNotification, drop_notification

    with open_platform(file, data, changes=True) as platform:
        confirm(f"delete the notification {notification_id}", yes)
        found = platform.perform(drop_notification, OfNotification(agent=agent, id=notification_id))
    print_line(f"The notification to {found.person} is deleted.")


def _describe(one: ListedNotification) -> str:
    due = f"due {format_time(one.due_at)}" if one.state == "waiting" else ""
    return "; ".join(filter(None, (due, one.reason)))
