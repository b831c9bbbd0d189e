"""MCP servers of the tests: how they are configured, and what happened in them."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

from spade_coreason import AgentDefinition, AgentTester
from spade_coreason.llm.agent import LLMAgent
from spade_coreason.llm.mcp.offers import Offer

from ..chat_completions import Asked
from ..wait import PATIENCE_S

HERE = Path(__file__).parent


def sdk(log: Path, **further: Any) -> dict[str, Any]:
    """One made with the SDK, as a program."""
    return {"command": [sys.executable, str(HERE / "server.py"), str(log)], "timeout_s": 30, **further}


def old(log: Path, *how: str, **further: Any) -> dict[str, Any]:
    """One of the protocol before 2026, as a program."""
    return {"command": [sys.executable, str(HERE / "legacy_server.py"), str(log), *how], "timeout_s": 20, **further}


async def answering(port: int) -> None:
    """Waits for a server to listen."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)  # it tells nobody
                continue
            writer.close()
            return


def happened(log: Path) -> list[str]:
    """The lines of its log; what they say of processes is in `began`."""
    return [line.split()[0] if line.startswith("began") else line for line in _lines(log)]


def began(log: Path) -> list[int]:
    """The ids of its processes."""
    return [int(line.split()[1]) for line in _lines(log) if line.startswith("began")]


def tools(asked: Asked) -> list[str]:
    """The names of the tools of MCP servers that a model is shown."""
    return [name for one in asked.get("tools", ()) if "__" in (name := one["function"]["name"])]


def results(asked: Asked) -> list[str]:
    """What the tools called last have answered."""
    found: list[str] = []
    for message in asked["messages"]:
        found = [*found, message["content"]] if message["role"] == "tool" else [] if message.get("tool_calls") else found
    return found


def offer(server: str, tool: str, **further: Any) -> Offer:
    return Offer(server, tool, f"It is called {tool}.", {"type": "object"}, **further)


def requiring(*requirements: dict[str, Any]) -> AgentDefinition:
    """A manifest with these ToolRequirements."""
    plain = AgentDefinition.simple("helper").model_dump(by_alias=True)
    plain["dependencies"] = {"tools": list(requirements)}
    return AgentDefinition.model_validate(plain)


def offered(t: AgentTester) -> list[str]:
    """What the agent would show a model now; it hears of changes in its own time."""
    assert isinstance(t.agent, LLMAgent)
    return [tool.name for tool in t.agent.mcp_servers.tools()]


def away(t: AgentTester) -> list[str]:
    """The servers that the agent cannot ask now."""
    assert isinstance(t.agent, LLMAgent)
    return t.agent.mcp_servers.disconnected_names


def _lines(log: Path) -> list[str]:
    return re.findall(r".+", log.read_text()) if log.exists() else []
