"""Measure how long a body of many values blocks the event loop: `python -m benchmarks.bodies [DOOR …]`.

Each door gets JSON of as many values as its setting allows, and the longest text. The figure is the CPU time between two turns
of the loop, the best of five: from the bytes to the request, and from its reply to the bytes. So another load on the machine
counts little. The limits of the doors are such that the first takes less than 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from tests.support.large_bodies import DOORS, SHAPES, BodyDoors, serve_bodies

_TRIES = 5
_MARGIN = 100
"""The values of a body besides those of its data."""
_TEXT = "word, " * 43_690


class _Agent:
    manifest = AgentDefinition.simple("Silent", description="Says yes.")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown("yes")


class _Watch:
    longest_s = 0.0

    async def run(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_s, last = max(self.longest_s, now - last), now


@contextmanager
def _watching() -> Iterator[_Watch]:
    watch = _Watch()
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()


async def _measure(served: BodyDoors, door: str, data: bytes, text: str) -> float:
    """Return the milliseconds of the longest block."""
    times = []
    for _ in range(_TRIES):
        with _watching() as watch:
            reply = await served.post(door, data, text)
            assert reply.status < 500, reply
        await served.running.runtime.runner.mailboxes.wait_until_idle()
        times.append(watch.longest_s * 1000)
    return min(times)


async def _main(doors: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with serve_bodies(f"sqlite+aiosqlite:///{directory}/platform.db", _Agent()) as served:
            limits = served.settings.limits
            for door in doors:
                count = (limits.a2a_values if door == "a2a" else limits.values) - _MARGIN
                for shape, make in SHAPES.items():
                    print(f"{door:8} {count:6,} {shape:14} {await _measure(served, door, make(count), 'hi'):6.1f} ms")
                refused = await _measure(served, door, SHAPES["numbers"](400_000), "hi")
                print(f"{door:8} {'400,000 numbers, refused':21} {refused:6.1f} ms")
                print(f"{door:8} {'a text, the longest':21} {await _measure(served, door, b'', _TEXT):6.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("doors", nargs="*", default=list(DOORS), metavar="DOOR", help=", ".join(DOORS))
    asyncio.run(_main(parser.parse_args().doors))
