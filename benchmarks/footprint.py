"""The footprint of further agents in one process: memory for each, and the CPU of all while they are idle."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer

from .agent_process import AgentProcess, agent_process

BOUND_S = 180.0
_QUIET_S = 3.0
"""Seconds of one test for quiet, in a long run. Acknowledgements and the archive may follow a login for some seconds."""
_QUIET_TESTS = 5


@dataclass(frozen=True)
class Footprint:
    """The footprint of hosted agents in one process with one TLS context.

    `online_kib` is the memory of each while online, `answered_kib` after its first reply. `idle_percent` is the CPU of all of
    them together, of one core.
    """

    agents: int
    online_kib: float
    answered_kib: float
    idle_percent: float


async def measure_footprint(server: XmppServer, count: int, idle_s: float) -> Footprint:
    """Host one agent, then `count` more."""
    async with asyncio.timeout(BOUND_S):
        logins = [await server.account() for _ in range(count + 1)]
        guest = await server.account()
        async with agent_process("hosted", server) as agents, StockClient(*guest, server) as client:
            # The first agent loads everything that all share.
            await agents.start(*logins[0])
            await client.ask("hello", logins[0][0])
            base_kib = await agents.memory_kib()
            for login in logins[1:]:
                await agents.start(*login)
            online_kib = await agents.memory_kib()
            idle_share = await _idle_share(agents, idle_s)
            for jid, _ in logins[1:]:
                await client.ask("hello", jid)
            answered_kib = await agents.memory_kib()
    return Footprint(count, (online_kib - base_kib) / count, (answered_kib - base_kib) / count, idle_share * 100)


async def _idle_share(agents: AgentProcess, seconds: float) -> float:
    """Measure the share of a core, after the work that follows the logins."""
    for _ in range(_QUIET_TESTS):
        if await _measure_share(agents, min(_QUIET_S, seconds)) <= 0.001:
            break
    return await _measure_share(agents, seconds)


async def _measure_share(agents: AgentProcess, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    cpu_s, begin = await agents.cpu_s(), loop.time()
    await asyncio.sleep(seconds)  # this is the measurement
    return (await agents.cpu_s() - cpu_s) / (loop.time() - begin)
