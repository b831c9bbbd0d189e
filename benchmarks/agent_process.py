"""A process of its own for echo agents of one kind: both ends of the pipe to it.

`python -m benchmarks.agent_process DIRECTORY KIND HOST PORT CA_FILE` answers these commands: `start JID PASSWORD` (ready),
`cpu` (seconds used, all threads), `memory` (KiB of the proportional set).
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.servers.server import XmppServer

from .agents import KINDS, Environment
from .child_process import ChildProcess, child_process, serve


class AgentProcess:
    """The near end: `async with agent_process("hosted", server) as agents: await agents.start(jid, password)`."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    async def start(self, jid: str, password: str) -> None:
        """Start an agent, and wait until it is online."""
        await self._child.ask(f"start {jid} {password}")

    async def cpu_s(self) -> float:
        """Return the seconds of CPU used so far, user and system, by all threads."""
        return await self._child.cpu_s()

    async def memory_kib(self) -> int:
        """Return the proportional set of the process after a garbage collection."""
        return int(await self._child.ask("memory"))


@asynccontextmanager
async def agent_process(kind: str, server: XmppServer) -> AsyncIterator[AgentProcess]:
    """Start the process, and end it with its agents."""
    arguments = (kind, server.host, str(server.port), str(server.ca_file))
    async with child_process("benchmarks.agent_process", *arguments) as child:
        yield AgentProcess(child)


async def _main(directory: str, kind: str, host: str, port: str, ca_file: str) -> None:
    async with KINDS[kind](Environment(host, int(port), Path(ca_file), Path(directory))) as start:

        async def answer(name: str, arguments: str) -> str:
            if name == "start":
                await start(*arguments.split())
                return "ready"
            if name == "memory":
                gc.collect()
                return str(proportional_kib())
            raise ValueError(f"unknown command: {name}")

        await serve(answer)


def resident_kib() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def proportional_kib() -> int:
    """Return the memory of this process, with its share of pages that other processes have too."""
    [line] = [line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")]
    return int(line.split()[1])


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
