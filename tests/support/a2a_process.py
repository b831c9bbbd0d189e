"""An agent behind A2A in a process of its own, which a test kills: `python -m tests.support.a2a_process DIRECTORY PORT`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from tests.support.a2a_door import serve_a2a
from tests.support.doors import web_settings
from tests.support.hosting import PROJECT
from tests.support.warm import WarmProcess


class SlowEcho:
    """An agent that repeats each query after a moment, or the answer to its question."""

    manifest = AgentDefinition.simple("slow")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer."""
        query = str(request.payload["query"])
        if query.startswith("ask"):
            query = (await response.ask_person("What?")).text
        stream = await response.create_stream()
        for word in query.split():
            await stream.write(f"{word} ")
            await asyncio.sleep(0.01)
        await stream.close()


class A2AProcess:
    """The near end: it starts the process, and kills it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = web_settings().port
        self._process: WarmProcess[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}/a2a/notes"
        """The address of the agent."""

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        command = [sys.executable, "-m", "tests.support.a2a_process", str(self._directory), str(self._port)]
        log = self._directory / "process.log"
        with log.open("ab") as errors:
            self._process = WarmProcess[bytes](command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=errors)
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        assert line == b"ready\n", f"the process did not start: {log.read_text()[-2000:]}"

    async def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            with self._process as process:
                process.kill()
                await asyncio.to_thread(process.wait)
            self._process = None


async def _main(directory: Path, port: int) -> None:
    settings = web_settings(port=port)
    async with serve_a2a(f"sqlite+aiosqlite:///{directory}/platform.db", SlowEcho(), settings=settings, durability="full"):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2])))
