"""The same happens in memory, on Prosody, on ejabberd and on the embedded server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.errors import ExpectedErrors
from tests.support.scenarios import SCENARIOS, Driver, a_program, errors, in_memory, on_server


@pytest.mark.parametrize("place", ["memory", "prosody", "ejabberd", "embedded"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_scenario_ends_the_same_everywhere(
    place: str,
    scenario: Callable[[Driver], Awaitable[Any]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    expected_errors: ExpectedErrors,
) -> None:
    if scenario in (errors, a_program):
        expected_errors("ValueError: a secret of the inside")
    driver_context = in_memory() if place == "memory" else on_server(request.getfixturevalue(place), tmp_path)
    async with driver_context as driver:
        assert await scenario(driver) == SCENARIOS[scenario]
