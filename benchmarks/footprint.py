"""What further agents cost in one process: the CPU of a start, memory, and the CPU of all while they are idle."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer

from .agent_process import AgentProcess, agent_process
from .processes import read_cpu_s, read_memory_kib

BOUND_S = 500.0
_QUIET_S = 1.0
"""Seconds of one test for quiet. A profile is published, and the archive is read, after a login."""
_QUIET_TESTS = 10
_QUIET_SHARE = 0.01


@dataclass(frozen=True)
class FootprintLoad:
    """The load: `agents`, then twice as many. `settle_s` passes before the CPU of idle agents is measured for `idle_s`."""

    agents: int
    settle_s: float
    idle_s: float


@dataclass(frozen=True)
class Footprint:
    """The cost of further agents in one process, from `agents` to three times as many.

    `start_ms` is the CPU of each start with its login and its first profile. `online_kib` is the memory of each (proportional
    set), `answered_kib` after its first reply. `idle_percent` is the CPU of all of them together, of one core.
    `server_start_ms` and `server_online_kib` are the same of the XMPP server.
    """

    agents: int
    start_ms: float
    online_kib: float
    answered_kib: float
    idle_percent: float
    server_start_ms: float
    server_online_kib: float


async def measure_footprint(server: XmppServer, load: FootprintLoad) -> Footprint:
    """Host some agents, then twice as many more. Each figure is of the further ones, but that of idle agents is of all."""
    async with asyncio.timeout(BOUND_S + load.settle_s + load.idle_s):
        first = [await server.account() for _ in range(load.agents)]
        further = [await server.account() for _ in range(2 * load.agents)]
        guest = await server.account()
        async with agent_process("hosted", server) as agents, StockClient(*guest, server) as client:
            for login in first:
                await agents.start(*login)
            await client.ask("hello", first[0][0])  # it loads what all share
            await _wait_until_quiet(agents)
            base_kib, base_s = await agents.memory_kib(), await agents.cpu_s()
            server_kib, server_s = read_memory_kib(server.pid), read_cpu_s(server.pid)
            for login in further:
                await agents.start(*login)
            await _wait_until_quiet(agents)
            started_s, online_kib = await agents.cpu_s(), await agents.memory_kib()
            server_start_s = read_cpu_s(server.pid) - server_s
            server_online_kib = read_memory_kib(server.pid) - server_kib
            await asyncio.sleep(load.settle_s)  # servers and timers have work after a login
            idle_share = await _measure_share(agents, load.idle_s)
            for jid, _ in further:
                await client.ask("hello", jid)
            answered_kib = await agents.memory_kib()
    return Footprint(
        load.agents,
        (started_s - base_s) / len(further) * 1e3,
        (online_kib - base_kib) / len(further),
        (answered_kib - base_kib) / len(further),
        idle_share * 100,
        server_start_s / len(further) * 1e3,
        server_online_kib / len(further),
    )


async def _wait_until_quiet(agents: AgentProcess) -> None:
    for _ in range(_QUIET_TESTS):
        if await _measure_share(agents, _QUIET_S) <= _QUIET_SHARE:
            break


async def _measure_share(agents: AgentProcess, seconds: float) -> float:
    """Measure the share of a core."""
    loop = asyncio.get_running_loop()
    cpu_s, begin = await agents.cpu_s(), loop.time()
    await asyncio.sleep(seconds)  # this is the measurement
    return (await agents.cpu_s() - cpu_s) / (loop.time() - begin)
