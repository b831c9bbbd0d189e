"""The command `spade-coreason keys`."""

from __future__ import annotations

import click

from ..completion import complete_field
from ..terminal.console import print_line
from ..views import make_group

command = make_group("keys", "doors.keys")


@command.command("person")
@click.argument("name", shell_complete=complete_field("keys", "name"))
@click.argument("user")
def person(name: str, user: str) -> None:
    """Print the address of a person below a key, which `people export` and `people delete` take.

    NAME is the key of a front end (--users-by-header). USER is the person as its header names them.

    \b
      spade-coreason keys person webui 4f1c
      spade-coreason people export "$(spade-coreason keys person webui 4f1c)"
    """
    from ...domain.callers import person_below

    print_line(person_below(name, user))
