"""The command `spade-coreason audit`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...exceptions import ConfigError
from ..agent_storage import open_storage, storage_options
from ..context import CLIGroup, run_async
from ..terminal.console import format_time, print_json, print_line, print_table, verdict_sign

if TYPE_CHECKING:
    from ...storage import AuditRecord, AuditVerification


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
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of the entries.")
def list_(file: Path | None, data: Path | None, agent: str | None, limit: int, as_json: bool) -> None:
    """List the newest entries of each agent in chronological order. Works while the platform runs.

    \b
      spade-coreason audit list --agent assistant --limit 20
    """
    run_async(_list(file, data, agent, limit, as_json))


async def _list(file: Path | None, data: Path | None, agent: str | None, limit: int, as_json: bool) -> None:
    async with open_storage(file, data, agent) as storage:
        found: list[tuple[str, AuditRecord]] = []
        for jid in storage.agents:
            repository = storage.repository(jid)
            found += [(jid, record) for record in await repository.audit_trail.load_newest(limit)] if repository else []
    if as_json:
        print_json([_entry_record(jid, record) for jid, record in found])
    elif not found:
        print_line("No audit entries.")
    else:
        print_table(
            ("agent", "number", "when", "actor", "action", "resource", "outcome", "person"),
            [_entry_row(*pair) for pair in found],
        )


def _entry_record(jid: str, record: AuditRecord) -> dict[str, Any]:
    place = {"agent": jid, "number": record.number, "person": record.person, "integrity_hash": record.integrity_hash}
    return {**place, "forgotten": True} if record.entry is None else {**record.entry, **place}


def _entry_row(jid: str, record: AuditRecord) -> tuple[object, ...]:
    entry = record.entry
    if entry is None:
        return jid, record.number, "forgotten", "", "", "", "", ""
    columns = (str(entry.get(name, "")) for name in ("actor", "action", "resource", "outcome"))
    return jid, record.number, _format_timestamp(str(entry.get("timestamp", ""))), *columns, record.person


def _format_timestamp(text: str) -> str:
    try:
        return format_time(datetime.fromisoformat(text))
    except ValueError:
        return text


@command.command("verify")
@storage_options
@click.option("--through", metavar="HASH", help="A hash from an earlier verification, which the trail must still contain.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def verify(file: Path | None, data: Path | None, agent: str | None, through: str | None, as_json: bool) -> int:
    """Verify that no entry was changed, removed or moved. Works while the platform runs.

    Exit code: 0 no problem, 1 a trail was changed. A program with write access to the database can rewrite a whole trail.
    To detect that, store the printed hash elsewhere, and pass it later as --through.

    \b
      spade-coreason audit verify
      spade-coreason audit verify --agent assistant --through 5f1c…
    """
    return run_async(_verify(file, data, agent, through, as_json))


async def _verify(file: Path | None, data: Path | None, agent: str | None, through: str | None, as_json: bool) -> int:
    async with open_storage(file, data, agent) as storage:
        if through is not None and len(storage.agents) > 1:
            raise ConfigError("--agent", f"is missing: --through applies to one agent; name one of {', '.join(storage.agents)}")
        found: dict[str, AuditVerification] = {}
        for jid in storage.agents:
            repository = storage.repository(jid)
            if repository is not None:
                found[jid] = await repository.audit_trail.verify(through)
    if as_json:
        print_json({jid: {"ok": not verdict.problems, **verdict._asdict()} for jid, verdict in found.items()})
    else:
        for jid, verdict in found.items():
            _print_verdict(jid, verdict)
        if not found:
            print_line("No audit entries.")
    return int(any(verdict.problems for verdict in found.values()))


def _print_verdict(jid: str, verdict: AuditVerification) -> None:
    forgotten = f", {verdict.erased:,} of them forgotten" if verdict.erased else ""
    sign = verdict_sign("bad" if verdict.problems else "good")
    entries = f"{verdict.entries:,} {'entry' if verdict.entries == 1 else 'entries'}"
    found = f"{entries}{forgotten}; hash of the last {verdict.head}" if verdict.entries else "no entries"
    print_line(sign, f"{jid}: {found}")
    for problem in verdict.problems:
        print_line(f"    {problem}")
