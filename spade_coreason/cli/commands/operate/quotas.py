"""The command `spade-coreason quotas`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ...account import data_option
from ...completion import complete_agents
from ...context import define_command as define, json_option
from ...operations import open_platform, parse_person
from ...settings import config_option
from ...terminal.console import print_json, print_table


@define("quotas")
@click.argument("agent", metavar="[AGENT]", required=False, shell_complete=complete_agents)
@config_option("config/platform.yaml, if it exists")
@data_option
@click.option("--person", metavar="JID", help="Show the use of this person only.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Show this many, those who wrote most first."
)
@json_option()
def command(agent: str | None, file: Path | None, data: Path | None, person: str | None, limit: int, as_json: bool) -> None:
    """Show what was used of an agent's quotas today.

    That is what everybody has used, and the domains, rooms and people who wrote most. A day begins at midnight UTC. Works with
    and without a running platform. Only a running one knows what it has refused.

    AGENT is a JID or its name alone. It may be left out if there is only one.

    \b
      spade-coreason quotas notes
      spade-coreason quotas notes --person alice@example.org
    """
    from ....operations.agents import ListUsage, list_usage

    holder = None if person is None else parse_person(person)
    with open_platform(file, data, prefers_running=True) as platform:
        found = platform.perform(list_usage, ListUsage(agent=agent, person=holder, limit=limit))
    if as_json:
        print_json([asdict(usage) for usage in found])
        return
    columns = ("holder", "kind", "messages", "quota", "bytes", "quota of bytes", "refused")
    print_table(
        columns,
        [
            (
                usage.holder or "everybody",
                usage.role or usage.scope,
                f"{usage.messages:,}",
                _describe_limit(usage.messages_per_day),
                f"{usage.bytes:,}",
                _describe_limit(usage.bytes_per_day),
                f"{usage.refused:,}",
            )
            for usage in found
        ],
    )


def _describe_limit(limit: int) -> str:
    return f"{limit:,}" if limit else "none"
