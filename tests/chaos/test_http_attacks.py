"""Attacks on the ports for HTTP: others are answered throughout, and SIGTERM ends the platform. `make chaos` takes longer."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.chaos.agents import COLLECT
from tests.chaos.attack_run import read_memory, run_platform
from tests.support.errors import errors_in
from tests.support.hosting import PROJECT
from tests.support.large_bodies import SHAPES, make_body
from tests.support.program import run_command
from tests.support.wait import TIMEOUT_S

SECONDS = float(os.environ.get("HTTP_ATTACK_SECONDS", "0.2"))
STREAMS = 100 if SECONDS > 1 else 10
FRIEND = "127.0.1.1"
_MAX_GROWTH = 1.2
_CHARACTERS = 262_144
_MODES = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


@dataclass
class Target:
    """The platform that is attacked: its ports, and a key for the attacker and for another."""

    web: int
    metrics: int
    attacker: str
    friend: str


Make: TypeAlias = Callable[[str, bytes, str, str], tuple[str, list[str], bytes]]


async def _hold(port: int, addresses: list[str], number: int, data: bytes) -> None:
    """Hold so many connections, each with some data, and open those again that are closed."""
    loop = asyncio.get_running_loop()

    async def keep(address: str) -> None:
        while True:
            with suppress(OSError), socket.socket() as client:
                client.setblocking(False)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.bind((address, 0))
                await loop.sock_connect(client, ("127.0.0.1", port))
                await loop.sock_sendall(client, data)
                if b"stream" in data:
                    await asyncio.Event().wait()
                await loop.sock_recv(client, 1)
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as tasks:
        for place in range(number):
            tasks.create_task(keep(addresses[place % len(addresses)]))


async def _lock_out(target: Target) -> None:
    await _hold(target.web, [f"127.0.0.{number}" for number in range(1, 7)], 6 * 199, b"GET ")


async def _send_halves(target: Target) -> None:
    await _hold(target.metrics, ["127.0.0.1"], 200, b"GET /metrics HTTP/1.1\r\nX: ")


async def _read_nothing(target: Target) -> None:
    body = json.dumps({"model": "large", "stream": True, "messages": [{"role": "user", "content": "x"}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {target.attacker}\r\n"
    await _hold(target.web, ["127.0.0.1"], STREAMS, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())


async def _reuse_ids(target: Target) -> None:
    """Call a tool five times under one id, again and again, in many sessions. All attacks of a test have a hundred."""
    headers = {"Authorization": f"Bearer {target.attacker}", **_MODES}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{target.web}", headers=headers, timeout=TIMEOUT_S) as http:
        opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _CLIENT}
        opened = [await http.post("/mcp", json=opening) for _ in range(25 if SECONDS > 1 else 10)]
        while True:
            for each in opened:
                session = {"Mcp-Session-Id": each.headers["mcp-session-id"]}
                params = {"name": "echo_echo_chat", "arguments": {"query": "x"}}
                call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
                await asyncio.gather(*(http.post("/mcp", json=call, headers=session) for _ in range(5)))


async def _post_all(target: Target, bodies: Iterable[tuple[str, bytes, str]], make: Make = make_body) -> None:
    """Send bodies, again and again, four at a time: each by a door, with data and a text."""

    async def post(http: httpx.AsyncClient, turn: int) -> None:
        for door, data, text in islice(cycle(bodies), turn, None):
            path, headers, body = make(door, data, text, "echo")
            named = dict(each.split(": ", 1) for each in headers)
            reply = await http.post(path, content=body, headers=named)
            assert reply.status_code in (200, 400, 413, 422, 429, 503), reply.text

    key = {"Authorization": f"Bearer {target.attacker}"}
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{target.web}", headers=key, timeout=TIMEOUT_S) as http,
        asyncio.TaskGroup() as tasks,
    ):
        for turn in range(4):
            tasks.create_task(post(http, turn))


async def _send_beginnings(target: Target) -> None:
    """Send texts with many beginnings of what the doors look for in a text."""
    beginnings = (
        "<think>",
        '<details type="reasoning"',
        "### Task:\n<chat_history>",
        "### Task:",
        "<chat_history>",
        "&amp;",
        "</source>\n</context>",
    )
    await _post_all(target, [("openai", b"", text * (_CHARACTERS // len(text))) for text in beginnings])


async def _send_values(target: Target) -> None:
    """Send as much as the doors take, or a thing more: many values in few bytes."""
    counts = [("a2a", 9_900), ("a2a", 12_000), ("mcp", 49_900), ("mcp", 60_000), ("openai", 49_900), ("openai", 60_000)]
    await _post_all(target, [(door, make(count), "hi") for door, count in counts for make in SHAPES.values()])


async def _send_large(target: Target) -> None:
    """Send bodies of 12 MiB that are not taken."""
    numbers = SHAPES["numbers"](6 * 2**20)
    await _post_all(target, [(door, numbers, "hi") for door in ("openai", "a2a", "mcp")], cache(make_body))


Attack: TypeAlias = Callable[[Target], Coroutine[Any, Any, None]]

ATTACKS: dict[str, Attack] = {
    "six addresses with 199 connections each": _lock_out,
    "half requests for the metrics": _send_halves,
    "streams of 8 MiB that nobody reads": _read_nothing,
    "calls under one id": _reuse_ids,
    "texts of many beginnings": _send_beginnings,
    "bodies of many values": _send_values,
    "bodies of 12 MiB": _send_large,
}


async def _ask(target: Target, text: str) -> None:
    """Ask with another key from another address, and read the metrics, each on a connection of its own."""
    transport = httpx.AsyncHTTPTransport(local_address=FRIEND)
    async with httpx.AsyncClient(transport=transport, timeout=TIMEOUT_S) as http:
        body = {"model": "echo", "messages": [{"role": "user", "content": text}]}
        headers = {"Authorization": f"Bearer {target.friend}"}
        reply = await http.post(f"http://127.0.0.1:{target.web}/v1/chat/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["message"]["content"] == text
        assert (await http.get(f"http://127.0.0.1:{target.metrics}/metrics")).status_code == 200


def _write_platform(directory: Path) -> tuple[Path, Target]:
    web, metrics = find_free_ports(2)
    agents = [
        {"jid": f"{name.lower()}@localhost", "agent": f"tests.chaos.agents:{name}", "doors": ["openai", "mcp", "a2a"]}
        for name in ("Echo", "Large")
    ]
    settings = {
        "server": {"mode": "embedded"},
        "data_dir": str(directory / "data"),
        "web": {"port": web, "limits": {"unread_s": 3600}},
        "metrics": {"listen": f"127.0.0.1:{metrics}"},
        "conversation": {"max_interactions": 0},
        "quotas": {"person": {"user": {"turns": 200, "messages_per_minute": 1_000_000}}},
        "limits": {"concurrency": 200},
        "agents": agents,
    }
    file = directory / "platform.yaml"
    file.write_text(json.dumps(settings))
    keys = []
    for name in ("attacker", "friend"):
        where = "-c", str(file), "--project", str(PROJECT)
        made = run_command("keys", "create", name, "--agent", "echo", "--agent", "large", *where, cwd=PROJECT)
        keys.append(made.stdout.strip().split()[-1])
    return file, Target(web, metrics, *keys)


async def _wait_for_memory(target: Target, pid: int, enough: float, timeout_s: float) -> int:
    """Return the memory of the platform without garbage, as soon as it is `enough` bytes or less, or else after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        await _ask(target, COLLECT)
        if (size := read_memory(pid)) <= enough or time.monotonic() > deadline:
            return size
        await asyncio.sleep(0.5)  # the interval of the measurement


async def _attack(target: Target, attack: Attack) -> int:
    """Attack while others ask, at least five times. Return how often they were answered."""
    attacking, ends_at, asked = asyncio.create_task(attack(target)), time.monotonic() + SECONDS, 0
    while time.monotonic() < ends_at or asked < 5:
        await _ask(target, f"question {asked}")
        asked += 1
        await asyncio.sleep(0.1)
    assert not attacking.done()
    attacking.cancel()
    await asyncio.gather(attacking, return_exceptions=True)
    return asked


@pytest.mark.timeout(300 + 6 * SECONDS)
@pytest.mark.parametrize("name", ATTACKS)
async def test_others_are_answered_and_the_platform_stops(name: str, tmp_path: Path) -> None:
    file, target = await asyncio.to_thread(_write_platform, tmp_path)
    with run_platform(file) as platform:
        for warm in (_reuse_ids, ATTACKS[name]):
            await _attack(target, warm)
        before = await _wait_for_memory(target, platform.pid, 0, 1)
        asked = await _attack(target, ATTACKS[name])
        after = await _wait_for_memory(target, platform.pid, _MAX_GROWTH * before, 30)
        print(f"{name}: {asked} questions, {before / 2**20:.0f} MiB before, {after / 2**20:.0f} MiB after")
        assert after <= _MAX_GROWTH * before
        attack = asyncio.create_task(ATTACKS[name](target))
        await asyncio.sleep(0.5)
        platform.terminate()
        await asyncio.to_thread(platform.communicate, timeout=TIMEOUT_S)
        attack.cancel()
        await asyncio.gather(attack, return_exceptions=True)
        assert platform.returncode == 0
    assert errors_in(file.with_suffix(".log").read_text(errors="replace")) == []
