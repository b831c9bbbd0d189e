"""The version before the newest migration, from the history of git."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from spade_coreason.storage import schema
from tests.support.archives import unpack
from tests.support.wait import TIMEOUT_S

ROOT = Path(__file__).parents[2]
SCHEMA_FILE = "spade_coreason/storage/schema.py"


def unpack_version_before(directory: Path, oldest: str) -> None:
    """Unpack the package of the last version with an older schema than today's into a directory, which PYTHONPATH may name.

    Skip the test if there is none whose schema is `oldest` or newer.
    """
    commit = _find_version_before(oldest)
    directory.mkdir(exist_ok=True)
    (directory / "version.tar").write_bytes(_git("archive", commit, "spade_coreason", "agents"))
    unpack(directory / "version.tar", directory)


def _git(*arguments: str) -> bytes:
    """Return the output of git; empty if it fails, such as in a source distribution."""
    try:
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=True, timeout=TIMEOUT_S).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


def _find_version_before(oldest: str) -> str:
    """Return the last commit with an older schema than today's, or skip the test with the reason that there is none."""
    if oldest == schema.REVISION:
        pytest.skip(f"no older version may run on schema {schema.REVISION}: it is the oldest itself")
    changes = _git("log", "--format=%H", "-G^REVISION = ", "--", SCHEMA_FILE).decode().split()
    for commit in ("HEAD", *(f"{change}^" for change in changes)):
        found = re.search(r'^REVISION = "(\d+)"', _git("show", f"{commit}:{SCHEMA_FILE}").decode(), re.M)
        if found is not None and found[1] < schema.REVISION:
            assert found[1] >= oldest
            return commit
    pytest.skip(f"the history of git is not here, or is too short for a version before schema {schema.REVISION}")
