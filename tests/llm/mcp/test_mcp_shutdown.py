"""No process of an MCP server is left running, however it or the agent ends."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from spade_coreason import AgentDefinition
from spade_coreason.llm.agent import LLMAgent
from spade_coreason.llm.mcp.servers import MCPServers
from tests.support.hosting import run_agent
from tests.support.mcp_servers.servers import legacy_server, log_lines, process_ids
from tests.support.servers.processes import group_members, remaining_members, wait_until_ended
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

PARENT_PROGRAM = """
import asyncio, json, sys
from spade_coreason import AgentDefinition
from spade_coreason.llm.mcp.servers import MCPServers

async def main():
    await MCPServers(json.loads(sys.argv[1]), AgentDefinition.simple("helper")).open()
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_program_that_ignores_termination_or_never_answers_is_killed(tmp_path: Path) -> None:
    configuration = {"a": legacy_server(tmp_path / "a", "stubborn"), "b": legacy_server(tmp_path / "b", "deaf", "stubborn")}
    servers = MCPServers(configuration, AgentDefinition.simple("helper"))
    opening = asyncio.create_task(servers.open())
    await eventually(lambda: all(process_ids(tmp_path / name) for name in "ab") and bool(servers.tools()))
    await servers.close()
    await opening
    assert [remaining_members(process_ids(tmp_path / name)[0]) for name in "ab"] == [[], []]
    assert servers.tools() == []


async def test_a_start_that_is_cancelled_leaves_no_program(tmp_path: Path) -> None:
    configuration = {"a": legacy_server(tmp_path / "a"), "b": legacy_server(tmp_path / "b", "deaf")}
    servers = MCPServers(configuration, AgentDefinition.simple("helper"))
    starting = asyncio.create_task(servers.open())
    await eventually(lambda: all(process_ids(tmp_path / name) for name in "ab") and bool(servers.tools()))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert [remaining_members(process_ids(tmp_path / name)[0]) for name in "ab"] == [[], []]
    assert servers.tools() == []


async def test_a_program_ends_with_an_agent_that_is_killed(tmp_path: Path) -> None:

    configuration = json.dumps({"files": legacy_server(tmp_path / "log")})
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT_PROGRAM, configuration)
    await eventually(lambda: bool(process_ids(tmp_path / "log")))
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    assert await wait_until_ended(process_ids(tmp_path / "log")[0], 10)


async def test_an_agent_is_online_without_an_absent_mcp_server_and_ends_the_others(
    prosody: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mcp = {"files": legacy_server(tmp_path / "files"), "deaf": legacy_server(tmp_path / "deaf", "deaf", timeout_s=0.5)}
    agent = LLMAgent(AgentDefinition.simple("helper"), model="small", endpoint={"url": "http://127.0.0.1:9/v1"}, mcp=mcp)
    async with run_agent(agent, prosody, tmp_path):
        [leader] = process_ids(tmp_path / "files")
        assert group_members(leader) != []
    said = [record.getMessage() for record in caplog.records if "MCP" in record.getMessage()]
    assert said == ["the MCP server deaf is unavailable: did not start within 0.5 s"]
    assert log_lines(tmp_path / "files") == ["began", "ended"]
    assert not any(remaining_members(one) for name in ("files", "deaf") for one in process_ids(tmp_path / name))
