"""The time of an answer by A2A: a durable one of this platform beside the in-memory echo of a2a-sdk, in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiohttp import ClientSession

from tests.support.doors import KEY

from .child_process import child_process
from .report import Target

KINDS = ("ours", "sdk")
_WARM = 50
_MAX_RATIO = 1.2


@dataclass(frozen=True)
class DoorLoad:
    """The rounds, in each of which every server gets so many messages, one after the other."""

    rounds: int
    messages: int


@dataclass(frozen=True)
class DoorFigures:
    """Milliseconds from a message (`SendMessage`) to its answer, of each server: the median of each round."""

    rounds_ms: dict[str, list[float]]

    def median_ms(self, kind: str) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.rounds_ms[kind])

    @property
    def ratio(self) -> float:
        """The median of the ratios of the rounds."""
        pairs = zip(*(self.rounds_ms[kind] for kind in KINDS), strict=True)
        return float(statistics.median(ours / sdk for ours, sdk in pairs))


async def measure(load: DoorLoad) -> DoorFigures:
    """Measure both servers, in turn."""
    rounds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ClientSession())
        urls = {}
        for kind in KINDS:
            child = await stack.enter_async_context(child_process("benchmarks.doors_process", kind))
            urls[kind] = await child.ask("url")
            await _send_all(session, urls[kind], f"warm-{kind}", _WARM)
        for number in range(load.rounds):
            for kind in KINDS if number % 2 else reversed(KINDS):
                rounds[kind].append(statistics.median(await _send_all(session, urls[kind], f"{number}", load.messages)))
    return DoorFigures(rounds)


async def _send_all(session: ClientSession, url: str, prefix: str, count: int) -> list[float]:
    headers = {"Authorization": f"Bearer {KEY}", "A2A-Version": "1.0"}
    times = []
    for number in range(count):
        message = {"messageId": f"{prefix}-{number}", "role": "ROLE_USER", "parts": [{"text": f"question {number}"}]}
        call = {"jsonrpc": "2.0", "id": number, "method": "SendMessage", "params": {"message": message}}
        begin = time.perf_counter()
        async with session.post(url, json=call, headers=headers) as response:
            answer = await response.json()
        times.append((time.perf_counter() - begin) * 1000)
        assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED", answer
    return times


def lines(figures: DoorFigures) -> Sequence[str]:
    """Return the figures for people."""
    names = {"ours": "this platform, durable", "sdk": "a2a-sdk, in memory"}
    return [f"  SendMessage, median: {names[kind]} {figures.median_ms(kind):.2f} ms" for kind in KINDS]


def targets(figures: DoorFigures) -> list[Target]:
    """Return the target."""
    return [Target("SendMessage, durable, against a2a-sdk in memory", figures.ratio, "at most", _MAX_RATIO)]
