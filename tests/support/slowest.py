"""A plugin of pytest: `--slowest 20` prints at the end the slowest tests and how long they took together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slowest", type=int, default=0, metavar="N", help="print the N slowest tests and their sum")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.getoption("slowest"):
        durations: dict[str, float] = {}
        for report in [report for reports in terminalreporter.stats.values() for report in reports]:
            if isinstance(report, pytest.TestReport):  # one each for the test, its preparation and its end
                durations[report.nodeid] = durations.get(report.nodeid, 0.0) + report.duration
        for line in describe_slowest(durations, count):
            terminalreporter.write_line(line)


def describe_slowest(durations: Mapping[str, float], count: int) -> list[str]:
    """Return a line for each of the slowest tests, the slowest first, and one with their sum. Durations are in seconds."""
    slowest = sorted(durations, key=durations.__getitem__, reverse=True)[:count]
    together, total = sum(durations[test] for test in slowest), sum(durations.values())
    return [
        *(f"{durations[test]:7.1f} s  {test}" for test in slowest),
        f"{together:7.1f} s  these {len(slowest)} together, of {total:.1f} s that all {len(durations)} took",
    ]
