"""A platform that begins to start in the same session and has not locked its data directory yet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_COMMANDS = (b"run", b"up", b"ask", b"chat")
_MAX_AGE_S = 20.0
"""An older process has locked its data, or is busy with something else."""


def is_platform_beginning(processes: Path = Path("/proc")) -> bool:
    """Return True if a young `run` or `up` of this session and directory exists, such as a job of the same shell.

    `processes` is the directory of proc(5).
    """
    own_session, here = os.getsid(0), Path.cwd()
    for process in processes.glob("[0-9]*"):
        try:
            pid = int(process.name)
            if pid == os.getpid() or os.getsid(pid) != own_session:
                continue
            is_start = _is_start((process / "cmdline").read_bytes().split(b"\0"))
            # In a container, the system may be younger than its processes.
            if is_start and 0 <= _age_s(process) < _MAX_AGE_S and (process / "cwd").samefile(here):
                return True
        except OSError:  # it has ended, or is another user's
            continue
    return False


def _is_start(words: Sequence[bytes]) -> bool:
    """Return True for the words of a command line that starts a platform."""
    for number, word in enumerate(words):
        if word.endswith((b"spade-coreason", b"spade_coreason", b"spade_coreason/__main__.py")):
            commands = [word for word in words[number + 1 :] if word in _COMMANDS]
            return commands[:1] in ([b"run"], [b"up"])
    return False


def _age_s(process: Path) -> float:
    """Return the seconds since a process was started (proc(5))."""
    started_ticks = int((process / "stat").read_text().rpartition(")")[2].split()[19])
    uptime_s = float((process.parent / "uptime").read_text().split()[0])
    return uptime_s - started_ticks / os.sysconf("SC_CLK_TCK")
