"""The speed of the echo agents. All are online at once and loaded in turn, so that noise of the machine affects all alike."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import count

from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer

from .agent_process import AgentProcess, agent_process
from .agents import KINDS

IN_FLIGHT = 64
THREADS = 50
RAW = "slixmpp"
ROUND_S = 120.0
"""The most seconds that one agent may take in one round."""


@dataclass(frozen=True)
class Load:
    """The load of a round: each agent gets so many messages, 64 in flight, then pings, one by one.

    An extra round before the first is the warm-up.
    """

    rounds: int
    messages: int
    pings: int


@dataclass(frozen=True)
class Round:
    """One echo agent in one round: replies a second and CPU a reply at 64 in flight, latencies at one in flight."""

    answers_per_s: float
    cpu_us: float
    latencies_ms: list[float]

    @property
    def p50_ms(self) -> float:
        """The median of the latencies."""
        return statistics.median(self.latencies_ms)


@dataclass(frozen=True)
class Measured:
    """One echo agent: medians of its rounds, and of its ratios to slixmpp in the same round. p99 is that of all pings."""

    answers_per_s: float
    answers_ratio: float
    cpu_us: float
    cpu_ratio: float
    p50_ms: float
    p50_ratio: float
    p99_ms: float


def medians(rounds: Mapping[str, Sequence[Round]]) -> dict[str, Measured]:
    """Build the medians of the rounds of each agent."""
    return {kind: _measured(ours, rounds[RAW]) for kind, ours in rounds.items()}


def _measured(ours: Sequence[Round], raw: Sequence[Round]) -> Measured:
    pairs = list(zip(ours, raw, strict=True))
    latencies = sorted(latency for round_ in ours for latency in round_.latencies_ms)
    return Measured(
        answers_per_s=statistics.median(round_.answers_per_s for round_ in ours),
        answers_ratio=statistics.median(round_.answers_per_s / other.answers_per_s for round_, other in pairs),
        cpu_us=statistics.median(round_.cpu_us for round_ in ours),
        cpu_ratio=statistics.median(round_.cpu_us / other.cpu_us for round_, other in pairs),
        p50_ms=statistics.median(round_.p50_ms for round_ in ours),
        p50_ratio=statistics.median(round_.p50_ms / other.p50_ms for round_, other in pairs),
        p99_ms=latencies[int(0.99 * len(latencies))],
    )


async def side_by_side(server: XmppServer, load: Load) -> Mapping[str, list[Round]]:
    """Run the rounds of each kind of agent, in a random order: the same agent twice in a row would find warm caches."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(StockClient(*await server.account(), server))
        echoes = []
        for kind in KINDS:
            agent = await stack.enter_async_context(agent_process(kind, server))
            jid, password = await server.account()
            await agent.start(jid, password)
            echoes.append(_Echo(kind, agent, jid, client))
        for echo in echoes:
            await echo.wait_until_reachable()
            await echo.round(load)  # loads modules, starts conversations
        results: dict[str, list[Round]] = {kind: [] for kind in KINDS}
        generator = random.Random(0)
        for _ in range(load.rounds):
            for echo in generator.sample(echoes, len(echoes)):
                results[echo.kind].append(await echo.round(load))
    return results


class _Echo:
    """An agent of one kind, and a client that talks to it."""

    def __init__(self, kind: str, agent: AgentProcess, jid: str, client: StockClient) -> None:
        self.kind = kind
        self._agent = agent
        self._jid = jid
        self._client = client
        self._numbers = count()

    async def wait_until_reachable(self) -> None:
        """Ask until there is a reply: a server may need a moment after the login to deliver messages."""
        for _ in range(5):
            with suppress(TimeoutError):
                await self._client.ask("hello", self._jid, timeout_s=3.0)
                return
        raise RuntimeError(f"{self._jid} does not answer")

    async def round(self, load: Load) -> Round:
        """Load the agent once."""
        async with asyncio.timeout(ROUND_S):
            cpu_s = await self._agent.cpu_s()
            duration_s = await self._many_in_flight(load.messages)
            cpu_s = await self._agent.cpu_s() - cpu_s
            latencies_ms = [await self._ping_ms() for _ in range(load.pings)]
        return Round(load.messages / duration_s, cpu_s / load.messages * 1e6, latencies_ms)

    async def _ping_ms(self) -> float:
        text = f"ping {next(self._numbers)}."
        begin = time.perf_counter()
        answer = await self._client.ask(text, self._jid)
        latency_s = time.perf_counter() - begin
        if answer.strip() != text:
            raise RuntimeError(f"asked {text}, {self._jid} answered {answer!r}")
        return latency_s * 1e3

    async def _many_in_flight(self, messages: int) -> float:
        """Return the seconds until all is answered, with 64 in flight over 50 threads. Each message must get one reply."""
        slots = asyncio.Semaphore(IN_FLIGHT)
        numbers = [next(self._numbers) for _ in range(messages)]
        unanswered = {f"message {number}." for number in numbers}

        async def read() -> None:
            for _ in range(messages):
                unanswered.remove(str((await self._client.answer(30.0))["body"]).strip())
                slots.release()

        async def write() -> None:
            for number in numbers:
                await slots.acquire()
                self._client.send(f"message {number}.", self._jid, thread=f"thread-{number % THREADS}", id=f"m{number}")

        begin = time.perf_counter()
        async with asyncio.TaskGroup() as both:
            both.create_task(read())
            both.create_task(write())
        return time.perf_counter() - begin
