"""What the owner of a data directory says about itself, so that other commands find its server and its guest account."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


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


def write_run_file(data_dir: Path, run: RunFile) -> Path:
    """Writes `run.json`; whoever reads it sees all of it or nothing."""
    path = data_dir / "run.json"
    part = data_dir / "run.json.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(run), file, indent=2)
    part.replace(path)
    return path


def read_run_file(data_dir: Path) -> RunFile | None:
    """What a running platform says, None where there is none."""
    try:
        run = RunFile(**json.loads((data_dir / "run.json").read_text(encoding="utf-8")))
        os.kill(run.pid, 0)
    except (FileNotFoundError, ValueError, TypeError, ProcessLookupError):
        return None
    except PermissionError:
        return None
    return run
