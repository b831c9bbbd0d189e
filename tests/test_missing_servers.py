"""Where the programs of `make servers` are missing, and which tests may need one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.requirements import PROGRAMS, require

ROOT = Path(__file__).parents[1]


def test_the_switch_makes_all_programs_missing_and_no_others(tmp_path: Path) -> None:
    code = (
        "from tests import conftest; from tests.support.servers.requirements import *; print(*map(find_program, sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}", *PROGRAMS, "git", "sh"],
        cwd=ROOT,
        env=os.environ | {"SPADE_COREASON_HIDE_SERVERS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    *missing, git, shell = done.stdout.split()
    assert missing == ["None"] * len(PROGRAMS)
    assert os.access(git, os.X_OK)
    assert os.access(shell, os.X_OK)


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_test_without_the_mark_may_need_no_program(is_installed: bool) -> None:
    with pytest.raises(pytest.fail.Exception, match="give it the mark `servers`"):
        require("Prosody", is_installed)
