"""The command `spade-coreason log`."""

from __future__ import annotations

from pathlib import Path

import click

from ...account import data_option
from ...context import define_command as define
from ...operations import require_running
from ...settings import config_option
from ...terminal.console import print_line


@define("log")
@click.argument("level", metavar="[LEVEL]", required=False, type=click.Choice(["debug", "info", "warning", "error"]))
@config_option("config/platform.yaml, if it exists")
@data_option
def command(level: str | None, file: Path | None, data: Path | None) -> None:
    """Show or set the level of the running platform's log.

    LEVEL is debug, info, warning or error. It lasts until the next start. An operator does the same in a chat with /log. If
    several workers share the agents, it is the log of all that run; one that starts later has the level of its own start.

    \b
      spade-coreason log debug
    """
    from ....operations.definition import NoArguments
    from ....operations.platform import SetLogLevel, set_log_level, show_log_level

    platform = require_running(file, data)
    if level is None:
        print_line(f"The level of the log is {platform.perform(show_log_level, NoArguments())}.")
    else:
        shown = platform.perform(set_log_level, SetLogLevel.model_validate({"level": level}))
        print_line(f"The level of the log is {shown} until the next start.")
