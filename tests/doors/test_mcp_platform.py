"""The MCP door of whole platforms: kills, an agent elsewhere that asks by it, and what the door costs while nobody uses it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.chat_completions import text_answer, tool_call_answer
from tests.support.hosting import PlatformProcess
from tests.support.line_log import read_lines
from tests.support.llm_agent import run_llm_agent
from tests.support.long_forms import short_and_long_in_release
from tests.support.mcp_door import texts_of
from tests.support.mcp_servers.servers import last_tool_results, mcp_tool_names
from tests.support.program import run_command, run_in_background
from tests.support.wait import ANSWER_S, TIMEOUT_S, eventually

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
TOOL = "counter_chat"


def write_configuration(directory: Path, port: int) -> Path:
    agent, options = "tests.support.counting_agent:CountingAgent", {"log": str(directory / "runs.log")}
    file = directory / "platform.yaml"
    values = {
        "server": {"mode": "embedded"},
        "data_dir": str(directory / "data"),
        "web": {"port": port},
        "agents": [{"jid": "counter@localhost", "agent": agent, "options": options, "doors": ["mcp"]}],
    }
    file.write_text(json.dumps(values))
    return file


def create_key(file: Path, *arguments: str) -> str:
    created = run_command("keys", "create", *arguments, "-c", str(file), cwd=file.parent)
    assert created.returncode == 0, created.stderr
    return created.stdout.strip()


@asynccontextmanager
async def connect(port: int, key: str, mode: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=ANSWER_S, trust_env=False) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)
        async with Client(transport, mode=mode, cache=None) as client:
            yield client


@pytest.mark.timeout(3000)
@short_and_long_in_release("MCP_KILLS", 2, 10)
async def test_a_client_that_comes_back_after_kill_9_gets_the_one_answer(tmp_path: Path, count: int) -> None:
    print(f"CHAOS_SEED={SEED}")
    rng, log, [port] = random.Random(SEED), tmp_path / "runs.log", find_free_ports(1)
    file = write_configuration(tmp_path, port)
    key = create_key(file, "editor", "--agent", "counter@localhost")
    platform = PlatformProcess(file)

    async def ask(number: int) -> str:
        async with connect(port, key, ("auto", "legacy")[number % 2]) as client:
            result = await client.call_tool(TOOL, {"query": f"question {number}", "request_id": str(number)})
            assert not result.is_error, result
            return texts_of(result)[0]

    def is_begun(number: int) -> bool:
        return ["begins", f"question {number}"] in read_lines(log)

    await platform.start()
    try:
        for number in range(count):
            first = asyncio.create_task(ask(number))
            await eventually(lambda number=number: is_begun(number))  # type: ignore[misc]
            await asyncio.sleep(rng.uniform(0, 0.3))
            await platform.signal(signal.SIGKILL)
            await platform.start()
            [early] = await asyncio.gather(first, return_exceptions=True)
            answer = await ask(number)
            assert answer.startswith(f"question {number}: ")
            assert early == answer or isinstance(early, BaseException)
            assert await ask(number) == answer
        runs = [tuple(line) for line in read_lines(log)]
        assert all(runs.count(("begins", f"question {number}")) <= 2 for number in range(count))
        assert await platform.signal(signal.SIGTERM) == 0
    finally:
        if platform.process is not None:
            await platform.signal(signal.SIGKILL)


@pytest.mark.timeout(300)
async def test_an_agent_elsewhere_asks_an_agent_behind_the_door(tmp_path: Path) -> None:
    [port] = find_free_ports(1)
    file = write_configuration(tmp_path, port)
    key = create_key(file, "other-platform", "--agent", "counter@localhost")
    platform = PlatformProcess(file)
    await platform.start()
    try:
        server = {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"Authorization": f"Bearer {key}"}, "timeout_s": 30}
        call = tool_call_answer((f"library__{TOOL}", {"query": "How many?"}))
        async with run_llm_agent(call, text_answer("Many."), mcp={"library": server}) as (model, t):
            assert (await t.ask("go", timeout=TIMEOUT_S)).text == "Many."
        assert mcp_tool_names(model.requests[0]) == [f"library__{TOOL}"]
        [result] = last_tool_results(model.requests[1])
        assert result.startswith("How many?: ")
        assert 'conversation="' in result
    finally:
        await platform.signal(signal.SIGKILL)


@pytest.mark.timeout(300)
async def test_a_revoked_key_ends_its_session_and_its_secret_is_in_no_log(tmp_path: Path) -> None:
    [port] = find_free_ports(1)
    file = write_configuration(tmp_path, port)
    key = create_key(file, "editor", "--agent", "counter@localhost")
    with run_in_background("up", "-vv", "-c", str(file), cwd=tmp_path, until="^Ready") as platform:
        async with connect(port, key, "legacy") as client:
            assert len((await client.list_tools()).tools) == 1
            revoked = await asyncio.to_thread(run_command, "keys", "revoke", "editor", "-c", str(file), cwd=tmp_path)
            assert revoked.returncode == 0, revoked.stderr
            with pytest.raises(MCPError, match="error response"):
                await client.list_tools()
        code, output, log = platform.stop()
    assert code == 0
    assert key not in output + log
