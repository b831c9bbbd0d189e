"""How fast the echo agents are, one after the other in every round, so that the machine's noise hits them alike."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields

from tests.servers.clients import StockClient
from tests.servers.server import XmppServer

from .agent_process import agent_process
from .agents import KINDS

IN_FLIGHT = 64
THREADS = 50
WARM_UP = 20
ROUND_S = 120.0
"""The most that one agent may take in one round."""


@dataclass(frozen=True)
class Load:
    """How much is asked of every agent: so many rounds, each with messages at 64 in flight and pings at one."""

    rounds: int
    messages: int
    pings: int


@dataclass(frozen=True)
class Measured:
    """One echo agent: answers a second and agent CPU an answer at 64 in flight, latency at one in flight."""

    answers_per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


def median(rounds: list[Measured]) -> Measured:
    """The median of every figure."""
    return Measured(*(statistics.median(getattr(one, field.name) for one in rounds) for field in fields(Measured)))


async def side_by_side(server: XmppServer, load: Load) -> Mapping[str, list[Measured]]:
    """Every kind of agent, its rounds; every other round in reverse order."""
    results: dict[str, list[Measured]] = {kind: [] for kind in KINDS}
    for number in range(load.rounds):
        for kind in KINDS if number % 2 == 0 else reversed(KINDS):
            async with asyncio.timeout(ROUND_S):
                results[kind].append(await _measure(server, kind, load))
    return results


async def _measure(server: XmppServer, kind: str, load: Load) -> Measured:
    (jid, password), login = await server.account(), await server.account()
    async with agent_process(kind, server) as agents, StockClient(*login, server) as client:
        await agents.start(jid, password)
        await _reached(client, jid)
        latencies = await _one_in_flight(client, jid, load.pings)
        cpu_s = await agents.cpu_s()
        duration_s = await _many_in_flight(client, jid, load.messages)
        cpu_s = await agents.cpu_s() - cpu_s
    return Measured(
        answers_per_s=load.messages / duration_s,
        cpu_us=cpu_s / load.messages * 1e6,
        p50_ms=statistics.median(latencies) * 1e3,
        p99_ms=sorted(latencies)[int(0.99 * len(latencies))] * 1e3,
    )


async def _reached(client: StockClient, jid: str) -> None:
    """Asks until there is an answer: a server may take a moment after the login to hand messages over."""
    for _ in range(5):
        with suppress(TimeoutError):
            await client.ask("hello", jid, timeout_s=3.0)
            return
    raise RuntimeError(f"{jid} does not answer")


async def _one_in_flight(client: StockClient, jid: str, pings: int) -> list[float]:
    """The seconds of every round trip; the first ones, which load modules and conversations, are not counted."""
    latencies = []
    for number in range(WARM_UP + pings):
        begin = time.perf_counter()
        answer = await client.ask(f"ping {number}.", jid)
        latencies.append(time.perf_counter() - begin)
        if answer.strip() != f"ping {number}.":
            raise RuntimeError(f"asked ping {number}., {jid} answered {answer!r}")
    return latencies[WARM_UP:]


async def _many_in_flight(client: StockClient, jid: str, messages: int) -> float:
    """The seconds until everything is answered, with 64 in flight over 50 threads; each has to be answered exactly once."""
    room = asyncio.Semaphore(IN_FLIGHT)
    open_ = {f"message {number}." for number in range(messages)}

    async def read() -> None:
        for _ in range(messages):
            open_.remove(str((await client.answer(30.0))["body"]).strip())
            room.release()

    async def write() -> None:
        for number in range(messages):
            await room.acquire()
            client.send(f"message {number}.", jid, thread=f"thread-{number % THREADS}", id=f"m{number}")

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as both:
        both.create_task(read())
        both.create_task(write())
    return time.perf_counter() - begin
