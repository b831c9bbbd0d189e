"""The rule for tests whose programs are missing: skipped with the one line that helps, and failed where all has to run."""

from __future__ import annotations

import os

import pytest


def require(name: str, is_there: bool) -> None:
    """Skips the test where a program is missing. In CI, or with SPADE_COREASON_REQUIRE_SERVERS=1, it fails instead."""
    if is_there:
        return
    reason = f"{name} is not installed; `make servers` enables this test"
    if os.environ.get("CI", "").lower() in ("1", "true") or os.environ.get("SPADE_COREASON_REQUIRE_SERVERS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
