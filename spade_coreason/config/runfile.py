"""`run.json`: the running platform of a data directory, through which other commands find its server and guest account."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ..domain.environment.private_files import open_private, replace_file
from ..exceptions import StoreError

_MAX_WORKERS = 64
"""The most workers with one data directory."""


@dataclass(frozen=True)
class RunFile:
    """The content of `run.json`, which only the owner of the file may read (0600)."""

    pid: int
    mode: str
    host: str | None
    port: int | None
    domain: str
    verify: bool
    ca_file: str | None
    guest: dict[str, str] | None
    agents: list[dict[str, str]]
    """The agents: `jid`, `description`, and `agent`: the MODULE:ATTRIBUTE if it says all, else empty."""
    configuration: str | None = None
    """The configuration file, if there is one; relative to `project`."""
    requires_tls: bool = True
    project: str | None = None
    """The project of the platform, an absolute path."""
    database: str | None = None
    """The address of the database, with its password hidden."""
    web: str | None = None
    """The public address of the HTTP server; None without one."""


async def write_private_json(path: Path, content: object) -> None:
    """Write a JSON file atomically, so that a reader never sees a part of it. Only its owner may read it (0600).

    Raise StoreError if it cannot be written.
    """
    try:
        import asyncio  # a command of the terminal that reads the file needs it not

        await asyncio.to_thread(replace_file, path, json.dumps(content, indent=2).encode())
    except OSError as error:  # if the disk is full, it names no file
        raise StoreError(
            f"{path}: cannot be written: {error.strerror}; correct the permissions of the directory, and try again"
        ) from error


async def write_run_file(data_dir: Path, run: RunFile) -> Path:
    """Write `run.json` into the data directory and return its path."""
    path = data_dir / "run.json"
    await write_private_json(path, asdict(run))
    return path


def read_run_file(data_dir: Path) -> RunFile | None:
    """Read the `run.json` of a running platform; None if no platform runs."""
    try:
        found = json.loads((data_dir / "run.json").read_text(encoding="utf-8"))
        run = RunFile(**{name: found[name] for name in RunFile.__dataclass_fields__ if name in found})
    except (FileNotFoundError, PermissionError, ValueError, TypeError):
        return None
    return run if is_platform_running(data_dir) else None


def list_worker_directories(data_dir: Path) -> list[Path]:
    """Return the directories below a data directory for further workers on this machine."""
    return [data_dir / "workers" / str(number) for number in range(2, _MAX_WORKERS + 1)]


def is_platform_running(data_dir: Path) -> bool:
    """Return True while the platform of this data directory runs, judged by its lock.

    A platform that was killed leaves `run.json` behind, and another process may get its process id.
    """
    try:
        descriptor = open_private(data_dir / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
