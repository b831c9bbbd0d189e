"""The command `spade-coreason access`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ...context import CLIGroup, json_option
from ...operations import describe_none, open_platform, storage_options
from ...terminal.console import print_json, print_line, print_table


@click.group("access", cls=CLIGroup)
def command() -> None:
    """List, admit or reject people beyond the configured rules.

    The rules themselves are in `access` of the configuration. Operators decide in a chat with /admit and /reject.

    \b
      spade-coreason access list
      spade-coreason access admit carol@example.com --agent notes
    """


@command.command("list")
@storage_options
@json_option()
def list_(file: Path | None, data: Path | None, agent: str | None, as_json: bool) -> None:
    """List the people who were admitted, rejected or refused, or who wait for a decision.

    Works with and without a running platform. Only a running one knows who waits.

    \b
      spade-coreason access list --agent notes
    """
    from ....operations.access import list_access
    from ....operations.memory import OfAgents

    with open_platform(file, data, prefers_running=True) as platform:
        found = platform.perform(list_access, OfAgents(agent=agent))
    if as_json:
        print_json([asdict(entry) for entry in found])
    elif not found:
        print_line(describe_none(platform, "people beyond the rules"))
    else:
        print_table(("agent", "person", "state"), [(entry.agent, entry.person, entry.state) for entry in found])


@command.command("admit")
@click.argument("person", metavar="JID")
@storage_options
def admit(file: Path | None, data: Path | None, agent: str | None, person: str) -> None:
    """Give a person access to an agent. Works with and without a running platform.

    JID is the address of the person. It counts while the agent has operators (`access.operators`).

    \b
      spade-coreason access admit carol@example.com --agent notes
    """
    from ....operations.access import admit_person
    from ....operations.sessions import OfPerson

    with open_platform(file, data, changes=True) as platform:
        decision = platform.perform(admit_person, OfPerson(agent=agent, person=person))
    if decision.is_allowed is False:
        print_line(
            f"{decision.agent} has no operators (access.operators), so the admission of {decision.person} does not count."
        )
    else:
        print_line(f"{decision.person} may talk to {decision.agent}.")


@command.command("reject")
@click.argument("person", metavar="JID")
@storage_options
def reject(file: Path | None, data: Path | None, agent: str | None, person: str) -> None:
    """Withdraw the access of a person to an agent. Works with and without a running platform.

    JID is the address of the person. Their running answers are cancelled, and their waiting messages are not answered.

    \b
      spade-coreason access reject carol@example.com --agent notes
    """
    from ....operations.access import reject_person
    from ....operations.sessions import OfPerson

    with open_platform(file, data, changes=True) as platform:
        decision = platform.perform(reject_person, OfPerson(agent=agent, person=person))
    if decision.is_allowed:
        print_line(
            f"{decision.person} may still talk to {decision.agent}: the configuration allows it."
            " Name the others in access.allow."
        )
    else:
        print_line(f"{decision.person} has no admission to {decision.agent}.")
