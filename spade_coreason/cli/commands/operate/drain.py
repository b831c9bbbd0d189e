"""The command `spade-coreason drain`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ...account import data_option
from ...context import define_command as define
from ...errors import EXIT_INTERRUPTED
from ...operations import require_running
from ...settings import config_option
from ...terminal.console import print_line, progress_bar

_POLL_S = 0.1


@define("drain")
@config_option()
@data_option
def command(file: Path | None, data: Path | None) -> int:
    """Let the running answers finish, and stop the platform.

    New messages are stored, and answered after the next start (see `conversation.on_restart`). There is no time limit, unlike
    at a stop by a signal (`limits.grace_s`). The command ends when the platform has stopped. `spade-coreason status AGENT`
    shows what is still running. Ctrl-C ends the waiting, and the platform runs on.

    With several workers, the one on this machine stops, and the others take its agents. If several share a data directory, it
    is the first; `--data DIR/workers/2` names the second.

    \b
      spade-coreason drain
    """
    from ....config import is_platform_running
    from ....operations.definition import NoArguments
    from ....operations.platform import drain_platform

    platform = require_running(file, data, of_machine=True)
    with progress_bar(1) as progress:
        progress.start_item("answers")
        drained = platform.perform(drain_platform, NoArguments(), progress.update_item)
        progress.finish_item()
    if not drained.is_complete:
        print_line("Interrupted. The platform runs on.", stream=sys.stderr)
        return EXIT_INTERRUPTED
    print_line(f"{drained.turns:,} running answer{'s' if drained.turns != 1 else ''} finished. The platform stops.")
    while is_platform_running(platform.data_dir):
        time.sleep(_POLL_S)
    return 0
