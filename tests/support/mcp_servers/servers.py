"""MCP servers of the tests: their configuration, their logs, and the tools that an agent sees."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

from spade_coreason import AgentDefinition, AgentTester
from spade_coreason.llm.agent import LLMAgent
from spade_coreason.llm.mcp.offers import Offer
from tests.support.chat_completions import RequestBody
from tests.support.wait import TIMEOUT_S

HERE = Path(__file__).parent


def sdk_server(log: Path, **further: Any) -> dict[str, Any]:
    """Configure a server made with the SDK, as a program."""
    return {"command": [sys.executable, str(HERE / "server.py"), str(log)], "timeout_s": 30, **further}


def legacy_server(log: Path, *faults: str, **further: Any) -> dict[str, Any]:
    """Configure a server of the protocol before 2026, as a program with these faults."""
    return {"command": [sys.executable, str(HERE / "legacy_server.py"), str(log), *faults], "timeout_s": 20, **further}


async def wait_until_listening(port: int) -> None:
    """Wait for a server to listen."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)  # there is no event for it
                continue
            writer.close()
            return


def log_lines(log: Path) -> list[str]:
    """Return the lines of its log without process ids; these are in `process_ids`."""
    return [line.split()[0] if line.startswith("began") else line for line in _lines(log)]


def process_ids(log: Path) -> list[int]:
    """Return the ids of its processes."""
    return [int(line.split()[1]) for line in _lines(log) if line.startswith("began")]


def mcp_tool_names(body: RequestBody) -> list[str]:
    """Return the names of the MCP tools in a request to a model."""
    return [name for tool in body.get("tools", ()) if "__" in (name := tool["function"]["name"])]


def last_tool_results(body: RequestBody) -> list[str]:
    """Return the results of the last tool calls in a request to a model."""
    found: list[str] = []
    for message in body["messages"]:
        found = [*found, message["content"]] if message["role"] == "tool" else [] if message.get("tool_calls") else found
    return found


def offer(server: str, tool: str, **further: Any) -> Offer:
    return Offer(server, tool, f"It is called {tool}.", {"type": "object"}, **further)


def definition_requiring(*requirements: dict[str, Any]) -> AgentDefinition:
    """Define an agent with these ToolRequirements."""
    plain = AgentDefinition.simple("helper").model_dump(by_alias=True)
    plain["dependencies"] = {"tools": list(requirements)}
    return AgentDefinition.model_validate(plain)


def offered_tool_names(t: AgentTester) -> list[str]:
    """Return the MCP tools that the agent offers a model now; changes arrive with a delay."""
    assert isinstance(t.agent, LLMAgent)
    return [tool.name for tool in t.agent.mcp_servers.tools()]


def disconnected_servers(t: AgentTester) -> list[str]:
    """Return the servers to which the agent has no connection now."""
    assert isinstance(t.agent, LLMAgent)
    return [server.name for server in t.agent.mcp_servers._servers if not server.is_connected]


def _lines(log: Path) -> list[str]:
    return re.findall(r".+", log.read_text()) if log.exists() else []
