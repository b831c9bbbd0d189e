"""Two workers of one platform with an HTTP server each, and an agent behind all doors that one of them serves."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from spade_coreason import AgentDefinition, AgentRequest, Peers, Response, Session
from spade_coreason.config import WebSettings
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.all_doors import DOORS, AllDoors, ask_twice
from tests.support.hosting import PROJECT, PlatformProcess
from tests.support.line_log import append_line, read_lines
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import ANSWER_S, TIMEOUT_S, eventually
from tests.support.workers import Workers, run_workers

LONG = "ä€𝄞\\\n" * 100_000
"""More than a MiB of characters of one to four bytes."""


class FarDesk:
    """An agent that does what the query says. It notes each turn in a file, and goes on when another file is there."""

    manifest = AgentDefinition.simple("desk", description="Answers from far away.")

    def __init__(self, directory: str, peers: Peers) -> None:
        self._directory = Path(directory)
        self._peers = peers

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = str(request.payload["query"])
        append_line(self._directory / "turns", f"{os.getpid()} {query}")
        match query.split(" ")[0]:
            case "relay":
                _, agent, *further = query.split(" ")
                relayed = await self._peers.ask(agent, " ".join(["relay", *further] if further else ["hello"]))
                await response.markdown(relayed.text)
            case "find":
                cards = await self._peers.find()
                await response.markdown(" ".join(f"{card.jid} {'online' if card.is_online else 'offline'}" for card in cards))
            case "stream":
                stream = await response.create_stream()
                for number in range(50):
                    await stream.write(f"{number} ")
                await stream.close()
            case "hold":
                stream = await response.create_stream()
                await stream.write("one ")
                await self._wait_for_release()
                await stream.write("two")
                await stream.close()
            case "think":
                await response.thought("one")
                await self._wait_for_release()
                await response.markdown("two")
            case "long":
                await response.markdown(LONG)
            case "ask":
                answer = await response.ask_person("Which colour?", choices=["red", "blue"])
                await response.markdown(f"painted {answer.text}")
            case "twice":
                await ask_twice(response)
            case _:
                await response.markdown(f"done: {query}")

    async def _wait_for_release(self) -> None:
        while not (self._directory / "release").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.05)


class TracedDesk(FarDesk):
    """The same. The spans of its process go to the file `spans` in the directory."""

    def __init__(self, directory: str, peers: Peers) -> None:
        from tests.support.spans import write_spans  # OpenTelemetry is slow to import

        write_spans(Path(directory) / "spans")
        super().__init__(directory, peers)


@dataclass
class FarDoors:
    """The workers, and their doors by which clients ask `desk`: those of the worker that serves it, and of the other."""

    workers: Workers
    directory: Path
    owner: PlatformProcess
    other: PlatformProcess
    near: AllDoors
    far: AllDoors
    other_configuration: Path
    """The configuration of the other worker."""

    def release(self) -> None:
        """End what is on hold."""
        (self.directory / "release").touch()

    @property
    def turns(self) -> list[str]:
        """The turns that have run: process id and query."""
        return [str(line) for [line] in read_lines(self.directory / "turns")]

    async def wait_for_turn(self, query: str) -> None:
        """Wait until a turn runs."""
        await eventually(lambda: any(turn.endswith(f" {query}") for turn in self.turns))


@asynccontextmanager
async def run_far_doors(
    server: XmppServer,
    postgres: Postgres,
    tmp_path: Path,
    *,
    agents: int = 2,
    agent: type[FarDesk] = FarDesk,
    **keys: Any,
) -> AsyncIterator[FarDoors]:
    """Run two workers that share the agents. The keys `website` and `shop` open the first agent, `closed` the second only.

    `keys` are further ones of the configuration.
    """
    path = f"{agent.__module__}:{agent.__name__}"
    async with run_workers(
        server, postgres, tmp_path, agents=agents, agent=path, options={"directory": str(tmp_path)}
    ) as workers:
        ports = find_free_ports(2)
        behind = [settings | {"doors": list(DOORS)} for settings in workers.settings["agents"]]
        own = {"agents": behind, "access": {"allow": ["*"]}, **keys}
        files = [workers.configure(str(port), web={"port": port}, **own) for port in ports]
        started = {}
        for file, port in zip(files, ports, strict=True):
            worker = PlatformProcess(file)
            workers.processes.append(worker)
            await worker.start()
            started[worker.pid] = worker, port, file
        await workers.wait_for(agents // 2, agents - agents // 2)
        desk, shut, *_ = workers.agents
        owner, near_port, _ = started.pop(workers.find_process(desk))
        [(other, far_port, other_file)] = started.values()
        opened = {"website": desk, "shop": desk, "closed": shut}
        secrets = {name: await run_command(files[0], "keys", "create", name, "--agent", jid) for name, jid in opened.items()}
        secret = await run_command(files[0], "webhooks", "create", "ci", desk)
        near, far = (
            AllDoors(None, WebSettings(port=port), desk, shut, "", "", secrets, secret)  # type: ignore[arg-type] # it runs elsewhere
            for port in (near_port, far_port)
        )
        running = FarDoors(workers, tmp_path, owner, other, near, far, other_file)
        for doors in (near, far):
            await _wait_until_open(doors)
        yield running


async def _wait_until_open(doors: AllDoors) -> None:
    """Wait until the HTTP server of a worker knows the key and its agent."""
    async with asyncio.timeout(TIMEOUT_S), doors.http("website") as http:
        while (await http.get("/v1/models")).json().get("data", []) == []:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)


async def run_command(configuration: Path, *arguments: str) -> str:
    """Run a command with a configuration. Return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spade_coreason", *arguments, "-c", str(configuration)),
        cwd=PROJECT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), ANSWER_S)
    assert process.returncode == 0, errors.decode()
    return out.decode().strip()


async def read_events(reply: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the data of the server-sent events of a stream."""
    async for line in reply.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))
