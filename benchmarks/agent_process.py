"""A process of its own for echo agents of one kind: both ends of the pipe to it.

`python -m benchmarks.agent_process KIND HOST PORT CA_FILE DIRECTORY` reads one command a line and answers each with a line:
`start JID PASSWORD` (ready), `cpu` (seconds used, all threads), `memory` (KiB resident). It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.servers.server import XmppServer

from .agents import KINDS, Environment, Start

ANSWER_S = 30.0
END_S = 10.0


class AgentProcess:
    """The near end: `async with agent_process("hosted", server) as agents: await agents.start(jid, password)`."""

    def __init__(self, commands: asyncio.StreamWriter, answers: asyncio.StreamReader, log: Path) -> None:
        self._commands = commands
        self._answers = answers
        self._log = log

    async def start(self, jid: str, password: str) -> None:
        """Start an agent, and wait until it is online."""
        await self._ask(f"start {jid} {password}")

    async def cpu_s(self) -> float:
        """Return the seconds of CPU used so far, user and system, by all threads."""
        return float(await self._ask("cpu"))

    async def memory_kib(self) -> int:
        """Return the resident memory after a garbage collection."""
        return int(await self._ask("memory"))

    async def _ask(self, command: str) -> str:
        try:
            self._commands.write(f"{command}\n".encode())
            async with asyncio.timeout(ANSWER_S):
                answer = await self._answers.readline()
        except (TimeoutError, ConnectionError) as error:
            raise RuntimeError(f"{command.split()[0]}: {error!r}\n{self._read_output()}") from error
        if not answer:
            raise RuntimeError(f"{command.split()[0]}: the agent's process has ended\n{self._read_output()}")
        return answer.decode().strip()

    def _read_output(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


@asynccontextmanager
async def agent_process(kind: str, server: XmppServer) -> AsyncIterator[AgentProcess]:
    """Start the process. At the end it has ten seconds to close its agents, then it is killed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        log = Path(directory, "output.log")
        arguments = (kind, server.host, str(server.port), str(server.ca_file), directory)
        output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "benchmarks.agent_process", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
            )
        finally:
            os.close(output)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield AgentProcess(process.stdin, process.stdout, log)
        finally:
            process.stdin.close()
            try:
                async with asyncio.timeout(END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()  # SPADE's behaviours can keep a process from ending
                await process.wait()


async def _main(kind: str, host: str, port: str, ca_file: str, directory: str) -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with KINDS[kind](Environment(host, int(port), Path(ca_file), Path(directory))) as start:
        while line := await commands.readline():
            print(await _answer(line.decode().split(), start), flush=True)


async def _answer(command: list[str], start: Start) -> str:
    match command:
        case ["start", jid, password]:
            await start(jid, password)
            return "ready"
        case ["cpu"]:
            used = resource.getrusage(resource.RUSAGE_SELF)
            return str(used.ru_utime + used.ru_stime)
        case ["memory"]:
            gc.collect()
            return str(resident_kib())
        case _:
            raise ValueError(f"unknown command: {command[:1]}")


def resident_kib() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
