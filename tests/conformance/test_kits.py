"""`make conformance` without a kit fails and says how to get it. What may fail is counted, and has a reason in the page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import a2a, mcp
from tests.conformance.page import PAGE
from tests.support.warm import WarmProcess

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("kit", "variable", "remedy"),
    [("a2a", "A2A_TCK", "git clone -b 1.0-dev"), ("mcp", "MCP_CONFORMANCE", "`make conformance-mcp` installs it")],
)
def test_a_kit_that_is_missing_fails_the_command(tmp_path: Path, kit: str, variable: str, remedy: str) -> None:
    command = [sys.executable, "-m", "tests.conformance", kit]
    environment = {**os.environ, variable: str(tmp_path / "nowhere")}
    with WarmProcess[str](command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as run:
        _, errors = run.communicate()
    assert (run.returncode, remedy in errors) == (1, True), errors


def test_the_run_of_the_project_needs_no_kit() -> None:
    assert "conformance" not in (ROOT / ".ci" / "run").read_text()


def test_each_exception_has_a_reason_in_the_page() -> None:
    page = PAGE.read_text()
    exceptions, optional = a2a.load_exceptions()
    assert len(exceptions) <= 5
    assert len(mcp.EXPECTED_FAILURES) <= 3
    for name, reason in {**exceptions, **optional, **mcp.EXPECTED_FAILURES, **mcp.PREVIEW_FAILURES}.items():
        assert f"`{name}`" in page
        assert len(reason) >= 8
        assert reason in page


def test_what_the_a2a_kit_expects_to_fail_is_not_skipped(tmp_path: Path) -> None:
    """Such tests, and those that do not run, are `skipped` in JUnit's form. They differ by the type."""
    (tmp_path / "junit.xml").write_text(JUNIT)
    results = a2a.read_results(tmp_path / "junit.xml")
    assert results == {
        "TestHistoryOrdering.test_order[jsonrpc]": (a2a.EXPECTED, "CORE-HIST-005: not in order"),
        "TestHistoryOrdering.test_order[grpc]": ("skipped", "Transport 'grpc' not configured"),
        "TestRestFormat.test_type": ("failed", "AssertionError: Expected application/json"),
        "TestCard.test_card": ("passed", ""),
    }
    lines = a2a.make_lines(results, {"TestRestFormat.test_type": "The kit is wrong."}, "c0ffee")
    assert "| 4 | 1 | 1 | 1 | 1 |" in lines
    assert "| 1 | Transport 'grpc' not configured |" in lines


JUNIT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" tests="4">
<testcase classname="tests.test_task_history.TestHistoryOrdering" name="test_order[jsonrpc]" time="0.1">
<skipped type="pytest.xfail" message="CORE-HIST-005: not in order" /></testcase>
<testcase classname="tests.test_task_history.TestHistoryOrdering" name="test_order[grpc]" time="0.1">
<skipped type="pytest.skip" message="Transport 'grpc' not configured">helpers.py:74: Transport 'grpc' not configured</skipped>
</testcase>
<testcase classname="tests.test_transport.TestRestFormat" name="test_type" time="0.1">
<failure message="AssertionError: Expected application/json&#10;assert False">helpers.py:59</failure></testcase>
<testcase classname="tests.test_card.TestCard" name="test_card" time="0.1" /></testsuite></testsuites>
"""


def test_a_scenario_of_mcp_without_checks_is_no_success() -> None:
    results = {
        "Test Results:\nPassed: 0/0, 0 failed, 2 warnings": (
            False,
            "nothing is tested: it makes no checks of this server, 2 warnings",
        ),
        "Test Results:\nPassed: 5/5, 0 failed, 0 warnings": (False, "5 of 5 checks passed"),
        "Test Results:\nPassed: 4/5, 1 failed, 0 warnings": (True, "4 of 5 checks passed"),
        "Error: no connection": (True, "did not run"),
    }
    assert {output: mcp.read_result(output) for output in results} == results
    summary = "=== SUMMARY ===\n✓ tools-list: 4 passed, 0 failed\n✗ caching: 4 passed, 3 failed\n✓ tasks: 0 passed, 0 failed\n"
    assert mcp.read_summary(summary) == {
        "tools-list": (False, "4 of 4 checks passed"),
        "caching": (True, "4 of 7 checks passed"),
        "tasks": (False, "nothing is tested: it makes no checks of this server"),
    }
