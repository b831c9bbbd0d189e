"""The command `spade-coreason approvals`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....contracts import QuestionState
from ...completion import complete_approvals
from ...context import CLIGroup, json_option
from ...operations import describe_none, id_argument, limit_option, open_platform, print_result, storage_options
from ...terminal.console import format_time, print_line

if TYPE_CHECKING:
    from ....operations.definition import Operation
    from ....operations.initiative.questions import ListedApproval

_STATES = ("open", "approved", "denied", "expired", "ended", "any")
_ID_CHARACTERS = 8


@click.group("approvals", cls=CLIGroup)
def command() -> None:
    """List the calls that agents want approved; show, approve or deny one.

    Approvers decide in their chats, by a code that only they get. These commands decide in their place. `approve`, `deny` and
    `reassign` write an entry to the audit trail of the agent, and work while the platform runs.

    \b
      spade-coreason approvals list
      spade-coreason approvals show 1f0c9a77
      spade-coreason approvals approve 1f0c9a77
      spade-coreason approvals deny 1f0c9a77 --reason "too late"
      spade-coreason approvals reassign 1f0c9a77
    """


def _change(
    file: Path | None, data: Path | None, operation: Operation[Any, ListedApproval], done: str, **wanted: str | None
) -> None:
    """Perform an operation on an approval, and print what was done."""
    with open_platform(file, data, changes=True) as platform:
        found = platform.perform(operation, operation.read_arguments(wanted))
    _print_call(done, found)


def _print_call(done: str, approval: ListedApproval) -> None:
    """Print what was done for whom, and below it the call, each name and each value on a line of its own."""
    print_line(f"{done} for {approval.requester or approval.agent}:")
    for line in approval.call.splitlines():
        print_line(f"  {line}")


@command.command("list")
@storage_options
@click.option("--state", type=click.Choice(_STATES), default="open", show_default=True, help="Only those in this state.")
@limit_option
@json_option()
def list_(file: Path | None, data: Path | None, agent: str | None, state: str, limit: int, as_json: bool) -> None:
    """List approvals, the newest first, with the whole calls. Works while the platform runs.

    One that is decided is listed for seven days. "ended" means that its request was taken back.

    \b
      spade-coreason approvals list --agent refunds --state any
    """
    from ....operations.initiative.questions import Approvals, list_approvals

    with open_platform(file, data) as platform:
        wanted = Approvals(agent=agent, state=None if state == "any" else QuestionState(state), limit=limit)
        found = platform.perform(list_approvals, wanted)
    if as_json:
        print_result(list_approvals, found)
    elif not found:
        print_line(describe_none(platform, "approvals" if state == "any" else f"{state} approvals"))
    else:
        for one in found:
            _print_approval(one)


def _print_approval(one: ListedApproval) -> None:
    state = f"until {format_time(one.expires_at)}" if one.state == "open" else f"{one.state} {one.decided_by}".strip()
    _print_call(f"{one.id[:_ID_CHARACTERS]} {state}, {one.agent} asked {', '.join(one.people)}", one)


@command.command("show")
@id_argument("approval_id", complete_approvals)
@storage_options
@json_option()
def show(file: Path | None, data: Path | None, agent: str | None, approval_id: str, as_json: bool) -> None:
    """Show one approval with its whole call, each name and each value on a line of its own. Works while the platform runs.

    ID is from `approvals list`, which has those that are decided with `--state any`.

    \b
      spade-coreason approvals show 1f0c9a77
    """
    from ....operations.initiative.questions import show_approval

    with open_platform(file, data) as platform:
        found = platform.perform(show_approval, show_approval.read_arguments({"agent": agent, "id": approval_id}))
    if as_json:
        print_result(show_approval, found)
    else:
        _print_approval(found)


@command.command("approve")
@id_argument("approval_id", complete_approvals)
@storage_options
@click.option("--reason", default="", help="A note for the requester.")
def approve(file: Path | None, data: Path | None, agent: str | None, approval_id: str, reason: str) -> None:
    """Approve a call in place of those who were asked. It runs now if the platform runs, else at its next start.

    ID is from `approvals list`.

    \b
      spade-coreason approvals approve 1f0c9a77
    """
    from ....operations.initiative.questions import approve_call

    _change(file, data, approve_call, "Approved", agent=agent, id=approval_id, reason=reason)


@command.command("deny")
@id_argument("approval_id", complete_approvals)
@storage_options
@click.option("--reason", default="", help="The reason, for the requester.")
def deny(file: Path | None, data: Path | None, agent: str | None, approval_id: str, reason: str) -> None:
    """Deny a call in place of those who were asked. It does not run.

    ID is from `approvals list`.

    \b
      spade-coreason approvals deny 1f0c9a77 --reason "too late"
    """
    from ....operations.initiative.questions import deny_call

    _change(file, data, deny_call, "Denied", agent=agent, id=approval_id, reason=reason)


@command.command("reassign")
@id_argument("approval_id", complete_approvals)
@storage_options
def reassign(file: Path | None, data: Path | None, agent: str | None, approval_id: str) -> None:
    """Ask those who may approve a call now, with a new code. The earlier code is worth nothing.

    Use it when no one of those who were asked may decide any more. The end of the time stays. The platform must run.

    \b
      spade-coreason approvals reassign 1f0c9a77
    """
    from ....operations.initiative.questions import reassign_approval

    _change(file, data, reassign_approval, "Asked anew", agent=agent, id=approval_id)
