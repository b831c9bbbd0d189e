"""A child process that is told what to do by a pipe: both ends of it, with the standard library only.

The child reads one command a line and answers each with a line. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

ANSWER_S = 30.0
END_S = 10.0
_LINE_BYTES = 2**22


class ChildProcess:
    """The near end: `async with child_process("package.module", "argument") as child: await child.ask("command")`."""

    def __init__(self, directory: Path, commands: asyncio.StreamWriter, answers: asyncio.StreamReader, log: Path) -> None:
        self.directory = directory
        """A directory of this process, which is deleted with it."""
        self._commands = commands
        self._answers = answers
        self._log = log

    async def ask(self, command: str, timeout_s: float = ANSWER_S) -> str:
        """Send a command and return its answer. Raise RuntimeError with the output of the process if there is none."""
        name = command.split()[0]
        try:
            self._commands.write(f"{command}\n".encode())
            async with asyncio.timeout(timeout_s):
                answer = await self._answers.readline()
        except (TimeoutError, ConnectionError) as error:
            raise RuntimeError(f"{name}: {error!r}\n{self._read_output()}") from error
        if not answer:
            raise RuntimeError(f"{name}: the process has ended\n{self._read_output()}")
        return answer.decode().strip()

    async def cpu_s(self) -> float:
        """Return the seconds of CPU used so far, user and system, by all threads."""
        return float(await self.ask("cpu"))

    def _read_output(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


@asynccontextmanager
async def child_process(module: str, *arguments: str, python: str = sys.executable) -> AsyncIterator[ChildProcess]:
    """Run `python -m module DIRECTORY arguments…`. At the end it has ten seconds to close, then it is killed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        directory = Path(name)
        log = directory / "output.log"
        output = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                python,
                *("-m", module, name, *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                limit=_LINE_BYTES,
            )
        finally:
            os.close(output)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield ChildProcess(directory, process.stdin, process.stdout, log)
        finally:
            process.stdin.close()
            try:
                async with asyncio.timeout(END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()  # SPADE's behaviours can keep a process from ending
                await process.wait()


async def serve(answer: Callable[[str, str], Awaitable[str]]) -> None:
    """Answer the commands of the near end: `answer(name, arguments)`. `cpu` is answered here. This is the far end."""
    commands = asyncio.StreamReader(limit=_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        name, _, arguments = line.decode().strip().partition(" ")
        print(str(cpu_s()) if name == "cpu" else await answer(name, arguments), flush=True)


def cpu_s() -> float:
    """Return the seconds of CPU that this process has used, user and system, by all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
