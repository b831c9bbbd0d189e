"""The files of a checkout."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def list_files(root: Path, places: Sequence[str]) -> list[Path]:
    """Return the files in these places that git tracks or would add, sorted. Without a checkout there are none."""
    if not (root / ".git").exists():
        return []
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *places]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=60).stdout
    return sorted({root / name for name in listed.split("\0") if name and (root / name).is_file()})
