"""Signals call a callback in the event loop, and the earlier handlers are back after the block."""

from __future__ import annotations

import asyncio
import signal

from spade_coreason.concurrency import handle_signals
from tests.support.wait import TIMEOUT_S


async def test_a_signal_calls_the_callback_and_the_earlier_handler_is_back() -> None:
    earlier: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: earlier.append(number))
    try:
        called = asyncio.Event()
        with handle_signals([signal.SIGUSR1], called.set):
            signal.raise_signal(signal.SIGUSR1)
            await asyncio.wait_for(called.wait(), TIMEOUT_S)
            assert earlier == []
        signal.raise_signal(signal.SIGUSR1)
        assert earlier == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
