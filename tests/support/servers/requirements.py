"""The rule for tests whose programs are missing: skip them with a remedy, or fail them in CI."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

import pytest

REMEDY = "`make servers` enables this test"


def require(name: str, is_installed: bool, remedy: str = REMEDY) -> None:
    """Skip the test if a program is missing. In CI, or with SPADE_COREASON_REQUIRE_SERVERS=1, fail it instead."""
    if is_installed:
        return
    reason = f"{name} is not installed; {remedy}"
    if os.environ.get("CI", "").lower() in ("1", "true") or os.environ.get("SPADE_COREASON_REQUIRE_SERVERS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def missing_programs(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """Return a line for each missing program, with the number of tests skipped for it."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped if isinstance(report.longrepr, tuple))
    return [
        f"{count} skipped: {reason.replace(REMEDY, '`make servers` enables them')}"
        for reason, count in sorted(reasons.items())
        if reason.endswith(REMEDY)
    ]
