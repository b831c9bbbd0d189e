"""What the owner of a data directory says about itself, so that other commands find its server and its guest account."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import aiofiles

from ..exceptions import StoreError


@dataclass(frozen=True)
class RunFile:
    """The content of `run.json`, which only its owner may read (0600)."""

    pid: int
    mode: str
    host: str | None
    port: int | None
    domain: str
    verify: bool
    ca_file: str | None
    guest: dict[str, str] | None
    agents: list[dict[str, str]]


async def write_private_json(path: Path, content: object) -> None:
    """Writes JSON that only its owner may read (0600); whoever reads it sees all of it or nothing. StoreError if it cannot."""
    part = path.with_name(f"{path.name}.part")
    try:
        async with aiofiles.open(part, "w", encoding="utf-8", opener=_open_private) as file:
            await file.write(json.dumps(content, indent=2))
        part.replace(path)
    except OSError as error:  # of a full disk it names no file
        raise StoreError(f"{path}: cannot be written: {error.strerror}; see to the directory, and try again") from error


def _open_private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    with suppress(OSError):  # a file system without rights
        os.fchmod(descriptor, 0o600)  # one that was there already may have others
    return descriptor


async def write_run_file(data_dir: Path, run: RunFile) -> Path:
    """Writes `run.json` in the data directory and gives its path."""
    path = data_dir / "run.json"
    await write_private_json(path, asdict(run))
    return path


def read_run_file(data_dir: Path) -> RunFile | None:
    """What a running platform says, None where there is none."""
    try:
        run = RunFile(**json.loads((data_dir / "run.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, PermissionError, ValueError, TypeError):
        return None
    return run if is_platform_running(data_dir) else None


def is_platform_running(data_dir: Path) -> bool:
    """Whether the platform lives that wrote it: one that was killed leaves its file behind, and its process id to others."""
    try:
        with open(data_dir / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
