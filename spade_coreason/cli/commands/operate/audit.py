"""The command `spade-coreason audit`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...context import CLIGroup, json_option
from ...operations import describe_none, open_platform, storage_options
from ...terminal.console import format_timestamp, print_json, print_line, print_table, verdict_sign

if TYPE_CHECKING:
    from ....operations.audit import TrailEntry, TrailVerdict


@click.group("audit", cls=CLIGroup)
def command() -> None:
    """Show the audit trails of agents, and verify that they are unchanged.

    A trail holds the entries that the agent writes with `response.audit`. For agents with a language model it also holds each
    tool call and each decision of a guardrail. Every entry contains the hash of the one before it.

    \b
      spade-coreason audit list --agent assistant
      spade-coreason audit verify
    """


@command.command("list")
@storage_options
@click.option(
    "--limit",
    default=100,
    show_default=True,
    type=click.IntRange(1),
    help="Show at most this many entries of each agent, the newest.",
)
@json_option("Print a JSON list of the entries.")
def list_(file: Path | None, data: Path | None, agent: str | None, limit: int, as_json: bool) -> None:
    """List the newest entries of each agent in chronological order. Works while the platform runs.

    \b
      spade-coreason audit list --agent assistant --limit 20
    """
    from ....operations.audit import ListEntries, list_entries

    with open_platform(file, data) as platform:
        found = platform.perform(list_entries, ListEntries(agent=agent, limit=limit))
    if as_json:
        print_json([_entry_record(entry) for entry in found])
    elif not found:
        print_line(describe_none(platform, "audit entries"))
    else:
        columns = ("agent", "number", "when", "actor", "action", "resource", "outcome", "person")
        print_table(columns, map(_entry_row, found))


def _entry_record(found: TrailEntry) -> dict[str, Any]:
    place = {"agent": found.agent, "number": found.number, "person": found.person, "integrity_hash": found.integrity_hash}
    return {**place, "forgotten": True} if found.entry is None else {**found.entry, **place}


def _entry_row(found: TrailEntry) -> tuple[object, ...]:
    entry = found.entry
    if entry is None:
        return found.agent, found.number, "forgotten", "", "", "", "", ""
    columns = (str(entry.get(name, "")) for name in ("actor", "action", "resource", "outcome"))
    return found.agent, found.number, format_timestamp(str(entry.get("timestamp", ""))), *columns, found.person


@command.command("verify")
@storage_options
@click.option("--through", metavar="HASH", help="A hash from an earlier verification, which the trail must still contain.")
@json_option("Print the findings as JSON.")
def verify(file: Path | None, data: Path | None, agent: str | None, through: str | None, as_json: bool) -> int:
    """Verify that no entry was changed, removed or moved. Works while the platform runs.

    Exit code: 0 no problem, 1 a trail was changed. A program with write access to the database can rewrite a whole trail.
    To detect that, store the printed hash elsewhere, and pass it later as --through.

    \b
      spade-coreason audit verify
      spade-coreason audit verify --agent assistant --through 5f1c…
    """
    from ....operations.audit import VerifyTrails, verify_trails

    with open_platform(file, data) as platform:
        found = platform.perform(verify_trails, VerifyTrails(agent=agent, through=through))
    if as_json:
        print_json({one.agent: {"ok": not one.problems, **asdict(one)} for one in found})
    else:
        for verdict in found:
            _print_verdict(verdict)
        if not found:
            print_line(describe_none(platform, "audit entries"))
    return int(any(verdict.problems for verdict in found))


def _print_verdict(verdict: TrailVerdict) -> None:
    forgotten = f", {verdict.erased:,} of them forgotten" if verdict.erased else ""
    sign = verdict_sign("bad" if verdict.problems else "good")
    entries = f"{verdict.entries:,} {'entry' if verdict.entries == 1 else 'entries'}"
    found = f"{entries}{forgotten}; hash of the last {verdict.head}" if verdict.entries else "no entries"
    print_line(sign, f"{verdict.agent}: {found}")
    for problem in verdict.problems:
        print_line(f"    {problem}")
