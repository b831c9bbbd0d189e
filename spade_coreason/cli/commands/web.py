"""The command `spade-coreason web`."""

from __future__ import annotations

from pathlib import Path

import click

from ..account import data_option, find_running_directory
from ..context import define_command as define
from ..operations import open_platform
from ..settings import config_option
from ..terminal.console import print_cleaned, print_line


@define("web")
@click.argument("jid", metavar="[JID]", default="")
@click.option("--revoke", is_flag=True, help="Instead, end the sessions of JID, or of all people.")
@config_option()
@data_option
def command(jid: str, file: Path | None, data: Path | None, *, revoke: bool) -> None:
    """Print a link with which a person chats in the browser.

    The link works once, within two minutes, and begins a session of twelve hours. Who has it can do all that the person can.

    JID is the person; without it, the guest of the platform. A person gets such a link by /web too, from any agent.

    \b
      spade-coreason web
      spade-coreason web carol@example.org
      spade-coreason web carol@example.org --revoke
    """
    from ...config import read_run_file
    from ...operations.doors.logins import OfAccount, create_login, revoke_logins

    with open_platform(file, data, changes=True) as platform:
        if revoke:
            ended = platform.perform(revoke_logins, OfAccount(person=jid))
            print_line(f"Sessions and links that were ended: {ended}")
            return
        running = read_run_file(find_running_directory(file, data))
        guest = running.guest["jid"] if running is not None and running.guest is not None else ""
        print_cleaned(platform.perform(create_login, OfAccount(person=jid or guest)))
