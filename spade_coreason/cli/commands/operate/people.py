"""The command `spade-coreason people`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ....domain.jid import bare_jid, parse_jid
from ....exceptions import ConfigError
from ...account import data_option
from ...context import CLIGroup, json_option
from ...operations import confirm, open_platform, print_stopped, yes_option
from ...settings import config_option
from ...terminal.console import format_timestamp, print_json, print_line, progress_bar
from .sessions import print_erasure

if TYPE_CHECKING:
    from ....operations.people import KeptReason

_KEPT: dict[KeptReason, str] = {
    "access": "an operator's decision about their access stays. `spade-coreason access list` shows it.",
    "keys": "keys that stand for them stay, and so does what was asked with them. `spade-coreason keys list` shows them.",
    "operator": "what they did as an operator stays in the audit trail.",
    "unreachable": "was not reached.",
    "running": "a turn does not end, and may store more. Run the command again when it has ended.",
    "log": "another program reads the database, so its log still has deleted data. It goes when that program ends.",
}


@click.group("people", cls=CLIGroup)
def command() -> None:
    """Delete or export all that the platform stores about a person.

    \b
      spade-coreason people delete alice@example.org
      spade-coreason people export alice@example.org
    """


@command.command("delete")
@click.argument("person", metavar="JID")
@config_option("config/platform.yaml, if it exists")
@data_option
@yes_option
@json_option("Print the result as JSON.")
def delete(file: Path | None, data: Path | None, person: str, yes: bool, as_json: bool) -> int:
    """Delete all that the platform stores about a person, of all agents.

    JID is the address of the person. Also deletes what reached agents through other agents and in chat rooms, as far as it is
    known from whom that came. The output lists what may hold more, and what stays. Works while the platform runs: turns of the
    person end first, and their messages are refused until it ends. Ctrl-C ends it early; run it again for the rest. Backups
    are not changed.

    \b
      spade-coreason people delete alice@example.org
    """
    from ....operations.people import OfWholePerson, delete_person

    owner = _parse(person)
    with open_platform(file, data, changes=True) as platform:
        confirm(f"delete everything of {owner} with all agents", yes)
        with progress_bar(1) as progress:
            progress.start_item("deleting")
            found = platform.perform(delete_person, OfWholePerson(person=owner), progress.update_item)
    if as_json:
        print_json(asdict(found))
        return 0 if found.is_complete else print_stopped()
    erasures = [erasure for erasure in found.erasures if not erasure.report.is_empty]
    for erasure in erasures:
        print_erasure(erasure.agent, erasure.report)
    if not erasures:
        print_line("There was nothing to delete.")
    for one in found.may_hold_more:
        period = f"from {format_timestamp(one.first)} to {format_timestamp(one.last)}"
        turns = f"{one.turns:,} turn{'' if one.turns == 1 else 's'}"
        print_line(f"{one.agent}: may hold more: {turns} {period}, of which it is not known from whom they came.")
    for kept in found.kept:
        print_line(f"{kept.agent}: {_KEPT[kept.reason]}")
    return 0 if found.is_complete else print_stopped()


@command.command("export")
@click.argument("person", metavar="JID")
@config_option("config/platform.yaml, if it exists")
@data_option
def export(file: Path | None, data: Path | None, person: str) -> None:
    """Print all that the platform stores about a person as JSON, of all agents.

    JID is the address of the person. The output has what `people delete` would delete. The audit trail of the platform has an
    entry of it.

    \b
      spade-coreason people export alice@example.org
    """
    from ....operations.people import OfWholePerson, export_whole_person

    with open_platform(file, data, changes=True) as platform:
        print_json(platform.perform(export_whole_person, OfWholePerson(person=_parse(person))))


def _parse(person: str) -> str:
    try:
        return bare_jid(parse_jid(person))
    except ValueError as error:
        raise ConfigError("JID", str(error)) from error
