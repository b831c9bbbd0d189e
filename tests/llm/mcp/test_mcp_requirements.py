"""MCP tools: the requirements of a manifest, the names that models see, the options, and the commands that show them."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from spade_coreason import AgentDefinition, ConfigError
from spade_coreason.exceptions import ToolError
from spade_coreason.llm.agent import LLMAgent
from spade_coreason.llm.mcp.offers import Offer, RequiredTool, find_risk, parse_requirements
from spade_coreason.llm.mcp.options import parse_servers
from spade_coreason.llm.mcp.servers import MCPServers
from spade_coreason.testing import FakeModel, tool_call
from tests.cli.conftest import Invoke, invoke as invoke
from tests.llm.test_agent import helper_manifest, run_helper_agent
from tests.support.approvals import APPROVER, Desk, read_question, run_desk
from tests.support.chat_completions import text_answer, tool_call_answer
from tests.support.errors import ExpectedErrors
from tests.support.mcp_servers.servers import (
    definition_requiring,
    last_tool_results,
    legacy_server,
    mcp_tool_names,
    offer,
    sdk_server,
)

ROOT = Path(__file__).parents[3]
WRONG_HASH = "0" * 64


def hash_of(tool: str) -> str:
    """Compute the hash of a tool of legacy_server.py without the package's code."""
    text = f'{{"description":"It is called {tool}.","inputSchema":{{"type":"object"}},"name":"{tool}"}}'
    return hashlib.sha256(text.encode()).hexdigest()


async def test_a_tool_that_is_not_as_the_manifest_requires_it_is_not_offered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors(
        "dependencies.tools[1].hash: mcp://files/slow has",
        "dependencies.tools[2].uri: mcp://files/fly: the server offers no such tool",
    )
    required = definition_requiring(
        {"uri": "mcp://files/say", "hash": hash_of("say").upper()},
        {"uri": "mcp://files/slow", "hash": WRONG_HASH},
        {"uri": "mcp://files/fly", "hash": WRONG_HASH},
        {"uri": "https://example.org/tool", "hash": WRONG_HASH},
    )
    mcp = {"files": legacy_server(tmp_path / "log"), "free": legacy_server(tmp_path / "log")}
    answers = [
        tool_call_answer(("files__say", {}), ("files__slow", {}), ("files__die", {}), ("files__grow", {})),
        text_answer("Yes."),
    ]
    async with run_helper_agent(*answers, mcp=mcp, definition=required) as (server, t):
        await t.ask("go")
    free = [f"free__{tool}" for tool in ("say", "slow", "hang", "die", "grow", "long")]
    assert mcp_tool_names(server.requests[0]) == ["files__say", *free]
    said, *others = last_tool_results(server.requests[1])
    assert said == "say"
    assert all(text.startswith("error: there is no tool 'files__") for text in others)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors[0].startswith(
        f"dependencies.tools[1].hash: mcp://files/slow has the hash {hash_of('slow')}; review the change"
    )
    assert errors[1].startswith("dependencies.tools[2].uri: mcp://files/fly: the server offers no such tool")
    assert len(errors) == 2
    assert "dependencies.tools[3].uri: https://example.org/tool is not checked" in caplog.text


async def test_the_risk_that_a_server_annotates_is_checked(tmp_path: Path) -> None:
    files = {"files": sdk_server(tmp_path / "log")}
    offers, _ = await MCPServers(files, AgentDefinition.simple("helper")).examine()
    wanted = [{"uri": one.uri, "hash": one.hash, "risk_level": "safe"} for one in offers if one.tool in ("add", "die")]
    _, problems = await MCPServers(files, definition_requiring(*wanted)).examine()
    [problem] = map(str, problems)
    assert "risk_level: mcp://files/die is marked as destructive by its server; write critical" in problem


def test_a_server_can_only_raise_the_risk_of_its_tools() -> None:
    for is_destructive, risk, expected in (
        (False, None, "standard"),
        (True, None, "critical"),
        (False, "safe", "safe"),
        (False, "critical", "critical"),
        (True, "standard", "critical"),
    ):
        erase = offer("files", "erase", is_destructive=is_destructive)
        required = definition_requiring(*([{"uri": erase.uri, "hash": erase.hash, "risk_level": risk}] if risk else []))
        assert find_risk(erase, parse_requirements(required, ["files"]).get("files", {})) == expected


async def test_a_destructive_tool_waits_for_an_approval_that_counts_for_its_server_and_hash(tmp_path: Path) -> None:
    model = FakeModel([tool_call("files__die"), "It was denied."])
    async with run_desk(model, Desk(), mcp={"files": sdk_server(tmp_path / "log")}) as t:
        await t.say("end it", timeout=30)
        text, code = await read_question(t)
        assert "\nfiles__die\n" in text
        await t.say(f"/deny {code}", user=APPROVER)
        assert (await t.message()).text == "It was denied."
        assert isinstance(t.agent, LLMAgent)
        [die] = [one for one in t.agent.mcp_servers.tools() if one.name == "files__die"]
        [server] = t.agent.mcp_servers._servers
        [found] = [one for one in server.offers if one.tool == "die"]
        assert die.origin == {"hash": found.hash, "server": server.address}
        with pytest.raises(ToolError, match="has changed die, which was not called"):
            await server.call(replace(found, description="Harmless."), {})
        assert server.is_connected


def test_the_manifest_names_tools_of_servers_that_need_an_approval() -> None:
    servers = MCPServers({"files": {"command": ["files"]}}, AgentDefinition.simple("desk"))
    names = ("files__erase", "mcp://files/erase", "mcp://files/read.file", "mcp://other/erase", "erase", "mcp://files/")
    found = [servers.find_tool_name(name) for name in names]
    assert found == ["files__erase", "files__erase", offer("files", "read.file").name, None, None, None]


def test_a_destructive_tool_may_not_be_required_as_safe() -> None:
    erase = offer("files", "erase", is_destructive=True)
    for risk, is_wrong in (("safe", True), ("standard", False), ("critical", False)):
        required = definition_requiring({"uri": erase.uri, "hash": erase.hash, "risk_level": risk})
        [[one]] = [list(one.values()) for one in parse_requirements(required, ["files"]).values()]
        assert isinstance(one, RequiredTool)
        assert (one.find_fault(erase) is not None) is is_wrong
        assert one.find_fault(offer("files", "erase")) is None


def test_the_hash_covers_everything_that_a_model_sees_and_ignores_the_order_of_keys() -> None:
    def hash_with(**changed: Any) -> str:
        plain = {"tool": "öffne", "description": "Ä", "schema": {"type": "object", "required": ["b"], "properties": {"b": {}}}}
        return Offer("files", **{**plain, **changed}).hash

    first = hash_with()
    assert (
        first
        == hashlib.sha256(
            '{"description":"Ä","inputSchema":{"properties":{"b":{}},"required":["b"],"type":"object"},"name":"öffne"}'.encode()
        ).hexdigest()
    )
    assert first == hash_with(schema={"properties": {"b": {}}, "required": ["b"], "type": "object"})
    changed = [
        hash_with(tool="oeffne"),
        hash_with(description="Ä!"),
        hash_with(description=None),
        hash_with(schema={"type": "object"}),
    ]
    assert len({first, *changed}) == 5


def test_no_two_tools_have_the_same_name_for_a_model() -> None:
    long = "a" * 70
    pairs = [("a", tool) for tool in ("b", "_b", "b_c", "x.y", "x_y", "x y", long, f"{long}b", "b__c", "ä", "")]
    pairs += [("a", offer("a", "x.y").name.removeprefix("a__")), ("a_b", "c"), ("b", "b"), ("a-b", "c")]
    names = [offer(server, tool).name for server, tool in pairs]
    assert len(set(names)) == len(pairs)
    for name in names:
        assert 0 < len(name) <= 64
        assert name.replace("-", "").replace("_", "").isascii()
    assert names == [offer(server, tool).name for server, tool in pairs]
    assert offer("files", "read_file").name == "files__read_file"


def files__read() -> str:
    """A tool with a name of a server's."""
    return ""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mcp": ["files"]}, "options.mcp: must map names to servers"),
        ({"mcp": {"a__b": {"command": ["x"]}}}, "'a__b' is not a valid server name"),
        ({"mcp": {"a_" * 12 + "b": {"command": ["x"]}}}, "is not a valid server name: .* at most 24"),
        ({"mcp": {"files": {}}}, "options.mcp.files: give either command or url$"),
        ({"mcp": {"files": {"command": ["x"], "url": "http://localhost/"}}}, "give either command or url"),
        ({"mcp": {"files": {"command": "x"}}}, "options.mcp.files.command: must be a list, like"),
        ({"mcp": {"files": {"command": []}}}, "options.mcp.files.command"),
        ({"mcp": {"files": {"comand": ["x"]}}}, 'options.mcp.files.comand: unknown key; did you mean "command"'),
        ({"mcp": {"web": {"url": "http://me:secret@localhost/"}}}, "options.mcp.web.url"),
        ({"mcp": {"web": {"url": "http://localhost/", "env": {"A": "b"}}}}, "env and cwd belong to command"),
        ({"mcp": {"files": {"command": ["x"], "headers": {"A": "b"}}}}, "headers belong to url"),
        ({"mcp": {"files": {"command": ["x"]}}, "tools": [files__read]}, "may be the name of a tool of an MCP server; rename"),
    ],
)
def test_a_wrong_option_of_a_server_is_one_line(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        LLMAgent(helper_manifest(), model="small", endpoint={"url": "http://127.0.0.1:9/v1"}, **options)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_the_documented_options_are_valid() -> None:
    paths = ("docs/how-to/mcp.md", "config/assistant.yaml")
    documented, configured = ((ROOT / path).read_text(encoding="utf-8") for path in paths)
    block, *_ = re.findall(r"^    options:\n((?:      .*\n)+)", documented, re.M)
    [commented] = re.findall(r"^      # mcp:\n(?:      #   .*\n)+", configured, re.M)
    shown = [yaml.safe_load(text) for text in (block, commented.replace("# ", ""))]
    for options in shown:
        assert parse_servers(options["mcp"]).keys() == {"files", "web"}


def test_a_manifest_that_requires_a_tool_of_an_unknown_server_is_refused() -> None:
    for uri in ("mcp://files/read", "mcp://web/", "mcp://web"):
        with pytest.raises(ConfigError, match=r"dependencies.tools\[0\].uri: .*options.mcp has no such server"):
            LLMAgent(
                definition_requiring({"uri": uri, "hash": WRONG_HASH}),
                model="small",
                endpoint={"url": "http://127.0.0.1:9/v1"},
                mcp={"web": {"url": "http://localhost/"}},
            )


def test_the_hashes_are_printed_and_a_check_finds_what_has_changed(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*requirements: dict[str, Any], before: list[dict[str, Any]] | None = None, **mcp: Any) -> None:
        Path("manifest.json").write_text(definition_requiring(*requirements).to_json())
        llm_agent = {"jid": "a@localhost", "agent": "spade_coreason.llm:LLMAgent", "manifest": "../manifest.json"}
        echo = {"jid": "echo@localhost", "agent": "spade_coreason.agents.echo:EchoAgent"}
        options = {"model": "small", "endpoint": {"url": "http://127.0.0.1:9/v1"}, "mcp": mcp}
        Path("config").mkdir(exist_ok=True)
        settings = {"server": {"mode": "embedded"}, "agents": [*(before or []), echo, llm_agent | {"options": options}]}
        Path("config/platform.yaml").write_text(yaml.safe_dump(settings))

    monkeypatch.setenv("LOG", str(Path("log").absolute()))
    files = legacy_server(Path("${LOG}"))
    write(files=files)
    shown = invoke("tools", "a", "--json")
    assert shown.exit_code == 0, shown.output
    records = json.loads(shown.stdout)
    assert [record["hash"] for record in records] == [hash_of(record["tool"]) for record in records]
    assert records[0].keys() == {"agent", "server", "tool", "name", "uri", "hash", "description"}
    assert (records[0]["uri"], records[0]["name"]) == ("mcp://files/say", "files__say")
    assert invoke("check").exit_code == 0

    write(*({"uri": one["uri"], "hash": one["hash"]} for one in records), files=files)
    assert invoke("check").exit_code == 0
    write({"uri": records[0]["uri"], "hash": WRONG_HASH}, files=files, gone={"command": ["./not-there"]})
    checked = invoke("check")
    assert checked.exit_code == 2
    [fault, away] = [line for line in checked.output.splitlines() if "mcp://files/say" in line or "MCP server gone" in line]
    assert f"dependencies.tools[0].hash: mcp://files/say has the hash {records[0]['hash']}" in fault
    assert "the MCP server gone is unavailable: [Errno 2]" in away
    table = invoke("tools")
    assert table.exit_code == 2
    assert records[-1]["hash"] in table.stdout
    assert len(table.stderr.splitlines()) == 2

    wrong = {"jid": "b@localhost", "agent": "spade_coreason.llm:LLMAgent", "options": {"modle": "small"}}
    write(before=[wrong], files=files)
    others = invoke("tools")
    assert others.exit_code == 2
    assert records[-1]["hash"] in others.stdout
    assert 'agents[0].options.modle: unknown option of spade_coreason.llm:LLMAgent; did you mean "model"?' in others.stderr

    assert invoke("tools", "echo").stdout == "No tools.\n"
    missing = invoke("tools", "nobody")
    assert missing.exit_code == 2
    assert 'AGENT: there is no agent "nobody"; ' in missing.stderr
