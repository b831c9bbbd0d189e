"""The command `spade-coreason up`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..context import define_command as define
from ..logging import add_times
from ..reload import reload_option, run_or_reload
from ..settings import PLATFORM_FILE, config_option, load_platform_settings
from ..terminal.banner import print_platform
from ..terminal.console import print_line, warn

if TYPE_CHECKING:
    from ...app import Platform


@define("up")
@config_option("config/platform.yaml")
@reload_option
@click.option(
    "--strict", "is_strict", is_flag=True, help="Exit if an agent cannot be made, or does not start at the first attempt."
)
def command(file: Path | None, is_reloading: bool, is_strict: bool) -> None:
    """Run the agents of a configuration until you stop them.

    Starts the local server if one is configured, and brings all agents online. Ctrl-C or SIGTERM stops the platform after
    the answers in progress are finished. A second Ctrl-C stops it at once.

    An agent that fails does not stop the others, and `spade-coreason status` shows the problem. If the server does not answer,
    startup() raises, or stored data of the agent cannot be read, its start is retried with growing delays. If the agent
    cannot be made, or its account is refused, it stays offline.

    Exit code: 0 stopped, 1 unreadable data, 2 a mistake in the configuration, 4 a server without an address, without the
    domain, or with an untrusted certificate, 5 a refused login, 75 a lost lease. A worker that has lost its lease can start
    again at once. A failure of one agent ends the command only if no other is left, or with --strict. With --strict, 4 is
    also a server that does not answer, and 1 an agent that does not start.

    \b
      spade-coreason up
      spade-coreason up -c config/production.yaml
    """
    add_times()
    settings = load_platform_settings(file)
    if not settings.agents:
        warn(f"{settings.place('agents')}: the list is empty; add an agent")
    run_or_reload(
        settings,
        _print_ready,
        is_reloading=is_reloading,
        files=[
            settings.project / (file or PLATFORM_FILE),
            *(agent.manifest for agent in settings.agents if agent.manifest is not None),
        ],
        is_strict=is_strict,
    )


def _print_ready(platform: Platform) -> None:
    print_platform(platform)
    print_line("Ready. Ctrl-C stops.")
