"""`make conformance` without a kit fails and says how to get it. What may fail is counted, and has a reason in the page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import a2a, mcp
from tests.conformance.page import PAGE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("kit", "variable", "remedy"),
    [("a2a", "A2A_TCK", "git clone -b 1.0-dev"), ("mcp", "MCP_CONFORMANCE", "`make conformance-mcp` installs it")],
)
def test_a_kit_that_is_missing_fails_the_command(tmp_path: Path, kit: str, variable: str, remedy: str) -> None:
    command = [sys.executable, "-m", "tests.conformance", kit]
    environment = {**os.environ, variable: str(tmp_path / "nowhere")}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert (run.returncode, remedy in run.stderr) == (1, True), run.stderr


def test_the_run_of_the_project_needs_no_kit() -> None:
    assert "conformance" not in (ROOT / ".ci" / "run").read_text()


def test_each_exception_has_a_reason_in_the_page() -> None:
    page = PAGE.read_text()
    exceptions, optional = a2a.load_exceptions()
    assert len(exceptions) <= 5
    assert len(mcp.EXPECTED_FAILURES) <= 3
    for name, reason in {**exceptions, **optional, **mcp.EXPECTED_FAILURES}.items():
        assert f"`{name}`" in page
        assert len(reason) >= 8
        assert reason in page
