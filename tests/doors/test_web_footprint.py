"""The memory of the HTTP server in a process of its own."""

from __future__ import annotations

import pytest

from benchmarks.web_footprint import measure, targets


@pytest.mark.release
async def test_an_idle_server_and_a_thousand_idle_streams_are_small() -> None:
    measured = await measure(1000)
    assert [str(target) for target in targets(measured) if not target.is_reached] == []
    assert measured.idle_mib > 0.5
    assert measured.streams_mib > 5
