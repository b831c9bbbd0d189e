"""A person in a process of its own, who asks agents.

`python -m benchmarks.workers_process DIRECTORY HOST PORT CA_FILE JID PASSWORD` answers
`load MESSAGES IN_FLIGHT AGENT…`: it sends so many messages to the agents in turn, in conversations of their own. The answer is
the seconds until all are answered.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace

from tests.support.servers.clients import StockClient

from .child_process import serve

THREADS = 16
"""The conversations with each agent."""
_BOUND_S = 30.0


async def load(client: StockClient, messages: int, in_flight: int, agents: Sequence[str], numbers: count[int]) -> float:
    """Send messages, `in_flight` at a time. Each must get one answer, with its text."""
    slots = asyncio.Semaphore(in_flight)
    sent = [next(numbers) for _ in range(messages)]
    unanswered = {f"message {number}." for number in sent}

    async def read() -> None:
        for _ in range(messages):
            unanswered.remove(str((await client.answer(_BOUND_S))["body"]).strip())
            slots.release()

    async def write() -> None:
        for number in sent:
            await slots.acquire()
            agent, thread = agents[number % len(agents)], number // len(agents) % THREADS
            client.send(f"message {number}.", agent, thread=f"thread-{thread}", id=f"m{number}")

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as both:
        both.create_task(read())
        both.create_task(write())
    return time.perf_counter() - begin


async def _main(directory: str, host: str, port: str, ca_file: str, jid: str, password: str) -> None:
    server = SimpleNamespace(host=host, port=int(port), ca_file=Path(ca_file))
    numbers = count()
    async with StockClient(jid, password, server) as client:

        async def answer(name: str, arguments: str) -> str:
            messages, in_flight, *agents = arguments.split()
            return str(await load(client, int(messages), int(in_flight), agents, numbers))

        await serve(answer)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
