"""Archives of tar, unpacked by the program: Python 3.11.2 of Debian 12 has no filters, and later ones ask for one."""

from __future__ import annotations

import subprocess
from pathlib import Path


def unpack(archive: Path, directory: Path, *names: str) -> None:
    """Unpack files of an archive, by default all, into a directory that is there."""
    subprocess.run(["tar", "-xf", archive, "-C", directory, *names], check=True)
