"""What further agents in one process cost: memory for each, and the CPU of all while nobody asks them anything."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer

from .agent_process import AgentProcess, agent_process

BOUND_S = 180.0
_QUIET_S = 3.0
"""What follows a login may come some seconds after it: acknowledgements, the archive."""
_QUIET_AFTER_S = 15.0


@dataclass(frozen=True)
class Footprint:
    """So many hosted agents in one process with one TLS context.

    `online_kib` is what each takes when it is online, `answered_kib` when each has answered one question. `idle_percent` is
    the CPU of all of them together, of one core.
    """

    agents: int
    online_kib: float
    answered_kib: float
    idle_percent: float


async def measure_footprint(server: XmppServer, count: int, idle_s: float) -> Footprint:
    """Hosts one agent, then `count` more."""
    async with asyncio.timeout(BOUND_S):
        logins = [await server.account() for _ in range(count + 1)]
        guest = await server.account()
        async with agent_process("hosted", server) as agents, StockClient(*guest, server) as client:
            # The first pays for what all share.
            await agents.start(*logins[0])
            await client.ask("hello", logins[0][0])
            before = await agents.memory_kib()
            for login in logins[1:]:
                await agents.start(*login)
            online = await agents.memory_kib()
            idle = await _idle_share(agents, idle_s)
            for jid, _ in logins[1:]:
                await client.ask("hello", jid)
            answered = await agents.memory_kib()
    return Footprint(count, (online - before) / count, (answered - before) / count, idle * 100)


async def _idle_share(agents: AgentProcess, seconds: float) -> float:
    """The share of a core in so many seconds, once what followed the logins is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _QUIET_AFTER_S
    while loop.time() < deadline and await _measure_share(agents, _QUIET_S) > 0.001:
        pass
    return await _measure_share(agents, seconds)


async def _measure_share(agents: AgentProcess, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    cpu_s, begin = await agents.cpu_s(), loop.time()
    await asyncio.sleep(seconds)  # this is the measurement
    return (await agents.cpu_s() - cpu_s) / (loop.time() - begin)
