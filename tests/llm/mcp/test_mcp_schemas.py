"""Input schemas of MCP tools that OpenAI refuses: models get them in another form, or the tool is left out."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, ConfigError
from spade_coreason.llm.mcp.offers import Offer
from spade_coreason.llm.mcp.servers import MCPServers
from spade_coreason.llm.tools.function import Tool
from spade_coreason.llm.tools.parameters import build_parameters
from tests.llm.test_agent import run_helper_agent
from tests.support.chat_completions import text_answer, tool_call_answer
from tests.support.mcp_servers import servers
from tests.support.mcp_servers.servers import last_tool_results, mcp_tool_names
from tests.support.openai_refusals import find_schema_problem

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
WITH_TEXT = {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}
WITH_NUMBER = {"type": "object", "properties": {"number": NUMBER}, "required": ["number"]}

ACCEPTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "without properties": ({"type": "object"}, {}),
    "empty": ({}, {}),
    "without a type": ({"properties": {"text": TEXT}}, {"text": TEXT}),
    "or null": ({"type": ["object", "null"], "properties": {"text": TEXT}}, {"text": TEXT}),
    "with nulls": ({"type": "object", "properties": None, "required": None}, {}),
    "anyOf": ({"anyOf": [WITH_TEXT, WITH_NUMBER]}, {"text": TEXT, "number": NUMBER}),
    "oneOf with null": ({"oneOf": [WITH_TEXT, {"type": "null"}]}, {"text": TEXT}),
    "allOf": ({"type": "object", "allOf": [WITH_TEXT, WITH_NUMBER]}, {"text": TEXT, "number": NUMBER}),
    "one property in two ways": (
        {"anyOf": [{"properties": {"id": TEXT}}, {"properties": {"id": NUMBER}}]},
        {"id": {"anyOf": [TEXT, NUMBER]}},
    ),
    "a union beside properties": (
        {
            **WITH_TEXT,
            "properties": {"text": TEXT, "number": NUMBER},
            "anyOf": [{"required": ["text"]}, {"required": ["number"]}],
        },
        {"text": TEXT, "number": NUMBER},
    ),
    "a reference": ({"$ref": "#/$defs/a", "$defs": {"a": WITH_TEXT}}, {"text": TEXT}),
    "a reference in a union": ({"oneOf": [{"$ref": "#/definitions/a"}], "definitions": {"a": WITH_TEXT}}, {"text": TEXT}),
    "not": ({**WITH_TEXT, "not": {"required": ["number"]}}, {"text": TEXT}),
    "an array without items": ({"properties": {"list": {"type": "array"}}}, {"list": {"type": "array", "items": {}}}),
    "items of an older draft": (
        {"properties": {"list": {"type": "array", "items": [TEXT]}}},
        {"list": {"type": "array", "items": {"anyOf": [TEXT]}}},
    ),
    "required of an older draft": ({"properties": {"text": {**TEXT, "required": True}}}, {"text": TEXT}),
    "a property called default": (
        {"properties": {"default": {"type": "array"}}},
        {"default": {"type": "array", "items": {}}},
    ),
    "a value like a schema": (
        {"properties": {"text": {**TEXT, "default": {"type": "array"}}}},
        {"text": {**TEXT, "default": {"type": "array"}}},
    ),
}

REFUSED: dict[str, tuple[Any, str]] = {
    "a text": ({"type": "string"}, "it describes no object, but string"),
    "a union of texts": ({"anyOf": [TEXT, {"type": "null"}]}, "it describes no object, but null"),
    "false": (False, "there is 'False' in place of a schema"),
    "an unknown type": ({"properties": {"text": {"type": "int"}}}, "there is no type 'int'"),
    "a property that is no schema": ({"properties": {"type": "object"}}, "there is 'object' in place of a schema"),
    "properties in a list": ({"properties": []}, r"the value of properties is '\[\]'"),
    "a circle": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "it refers to itself"),
    "a reference to nothing": ({"$ref": "#/$defs/a"}, "it refers to '#/[$]defs/a', which it does not contain"),
    "a reference elsewhere": ({"properties": {"a": {"$ref": "https://example.org/a"}}}, "it refers to 'https://example.org/a'"),
    "a reference into a union": (
        {"anyOf": [{"properties": {"a": TEXT, "b": {"$ref": "#/anyOf/0/properties/a"}}}]},
        "which it does not contain",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_schema_is_made_acceptable(name: str) -> None:
    schema, properties = ACCEPTED[name]
    before = json.dumps(schema)
    parameters = build_parameters(schema)
    assert find_schema_problem(parameters) is None
    assert parameters["properties"] == properties
    assert json.dumps(schema) == before


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_no_model_can_have_is_refused_with_the_reason(name: str) -> None:
    schema, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        build_parameters(schema)


def test_an_object_requires_what_all_alternatives_and_each_part_require() -> None:
    both = {"required": ["a", "b"]}
    parameters = build_parameters({"anyOf": [both, {"required": ["b", "c"]}], "allOf": [{"required": ["d"]}]})
    assert parameters["required"] == ["d", "b"]


def test_a_schema_that_multiplies_without_end_stays_small() -> None:
    parts = {
        f"a{n}": {
            "allOf": [
                {"$ref": f"#/$defs/a{n + 1}"},
                {"properties": {"x": {"const": n}}, "anyOf": [{"$ref": f"#/$defs/a{n + 1}"}]},
            ]
        }
        for n in range(60)
    }
    parameters = build_parameters({"$ref": "#/$defs/a0", "$defs": {**parts, "a60": {}}})
    assert len(parameters["properties"]["x"]["anyOf"]) == 60


def test_a_schema_of_many_references_ends_in_an_error() -> None:
    parts = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(20_000)}
    with pytest.raises(ValueError, match="it is nested too deeply"):
        build_parameters({"$ref": "#/$defs/a0", "$defs": parts})


def schema_server(file: Path, schemas: dict[str, Any]) -> dict[str, Any]:
    file.write_text(json.dumps(schemas))
    program = Path(servers.__file__).with_name("schema_server.py")
    return {"command": [sys.executable, str(program), str(file)], "timeout_s": 30}


async def test_a_tool_with_a_schema_that_openai_refuses_ends_no_turn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    schemas: dict[str, Any] = {"either": {"type": "object", "oneOf": [WITH_TEXT, WITH_NUMBER]}, "nothing": {"type": "object"}}
    bad = {"type": "object", "properties": {"text": {"type": "int"}}}
    wanted = tool_call_answer(
        ("odd__either", {"text": "a"}), ("odd__either", {"text": "a", "number": 1}), ("odd__nothing", {}), ("odd__bad", {})
    )
    mcp = {"odd": schema_server(tmp_path / "schemas.json", {**schemas, "bad": bad})}
    async with run_helper_agent(wanted, text_answer("Done."), mcp=mcp) as (server, t):
        assert (await t.ask("go")).text == "Done."
        assert (await t.ask("again")).text == "Done."
    assert mcp_tool_names(server.requests[0]) == ["odd__either", "odd__nothing"]
    right, both, nothing, missing = last_tool_results(server.requests[1])
    assert (right, nothing) == ("it fits", "it fits")
    assert "is valid under each of" in both  # the server has its own schema
    assert missing.startswith("error: there is no tool 'odd__bad'")
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == "mcp://odd/bad is left out: its input schema cannot be used: there is no type 'int'"


async def test_check_notes_a_tool_that_is_left_out_and_its_hash_is_that_of_the_server(tmp_path: Path) -> None:
    schemas: dict[str, Any] = {
        "either": {"anyOf": [WITH_TEXT], "type": "object"},
        "bad": {"type": "object", "properties": {"a": {"$ref": "#/b"}}},
    }
    mcp = {"odd": schema_server(tmp_path / "schemas.json", schemas)}
    offers, problems = await MCPServers(mcp, AgentDefinition.simple("helper")).examine()
    assert [offer.hash for offer in offers] == [Offer("odd", name, "d" * 3000, schema).hash for name, schema in schemas.items()]
    reason = "its input schema cannot be used: it refers to '#/b', which it does not contain"
    assert list(map(str, problems)) == [f"the MCP server odd offers mcp://odd/bad, which no model gets: {reason}"]


async def run(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments)


def price(sizes: tuple[int, int], words: list) -> str:  # type: ignore[type-arg]  # people write it so
    """Tells a price."""
    return f"{sizes} {words}"


price.__doc__ = "d" * 3000


async def test_own_tools_have_schemas_and_descriptions_that_openai_takes(caplog: pytest.LogCaptureFixture) -> None:
    own = Tool("either", "Takes one.", {"anyOf": [WITH_TEXT, WITH_NUMBER]}, run)
    wanted = tool_call_answer(("either", {"text": "a"}), ("price", {"sizes": [1, 2], "words": []}))
    async with run_helper_agent(wanted, text_answer("Done."), tools=[own, price]) as (server, t):
        assert (await t.ask("go")).text == "Done."
    assert last_tool_results(server.requests[1]) == ['{"text": "a"}', "(1, 2) []"]
    assert "the description of the tool price is cut at 1,024 characters" in caplog.text


async def test_an_own_tool_without_a_schema_of_an_object_is_a_mistake() -> None:
    own = Tool("shout", "Shouts.", {"type": "string"}, run)
    with pytest.raises(
        ConfigError, match="shout: its parameters need a JSON Schema of an object: it describes no object, but string"
    ):
        async with run_helper_agent(text_answer("Done."), tools=[own]):
            pass
