"""Manifests: their fields, the values that they refuse, and the short way to write one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import ValidationError

from spade_coreason.contracts import (
    AgentCapability,
    AgentDefinition,
    AgentDependencies,
    AgentMetadata,
    AgentRuntimeConfig,
    InlineToolDefinition,
    MemoryConfig,
    ModelConfig,
    ObservabilityConfig,
    PolicyConfig,
    RiskLevel,
    ToolRequirement,
)
from tests.contracts.test_json_schema import MAIL, NO_MAIL

HASH = "0123456789abcdefABCDEF" + "0" * 42


def definition(**fields: Any) -> AgentDefinition:
    metadata = AgentMetadata(name="weather", version="1.0.0", author="me")
    return AgentDefinition(**{"metadata": metadata, "capabilities": [AgentCapability(name="chat")], **fields})


# Metadata


def test_omitted_parts_of_a_manifest_have_defaults() -> None:
    manifest = definition()
    assert manifest.status == "draft"
    assert manifest.integrity_hash is None
    assert manifest.config == AgentRuntimeConfig()
    assert manifest.dependencies == AgentDependencies()
    assert (manifest.policy, manifest.deployment, manifest.observability, manifest.custom_metadata) == (None,) * 4
    assert manifest.metadata.requires_auth is False
    assert manifest.metadata.created_at.utcoffset() is not None


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1.0.0", "1.0.0"),
        ("v1.2.3", "1.2.3"),
        ("V0.0.1", "0.0.1"),
        ("1.0.0-alpha.1", "1.0.0-alpha.1"),
        ("1.0.0-0.3.7+build.5", "1.0.0-0.3.7+build.5"),
        ("1.0.0+001", "1.0.0+001"),
    ],
)
def test_a_version_is_semantic_and_loses_its_v(written: str, read: str) -> None:
    assert AgentMetadata(name="a", version=written, author="me").version == read


@pytest.mark.parametrize(
    "version",
    ["1", "1.0", "1.0.0.0", "01.0.0", "1.0.0-", "1.0.0-01", "1.0.0-a.01", "1.0.0-a..b", "latest", "", "\u0661.0.0", "1.0.0\n"],
)
def test_a_malformed_version_is_refused(version: str) -> None:
    with pytest.raises(ValidationError, match="not a semantic version"):
        AgentMetadata(name="a", version=version, author="me")


@pytest.mark.parametrize("name", ["name", "author"])
def test_name_and_author_are_not_empty(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        AgentMetadata(**{"name": "a", "version": "1.0.0", "author": "me", name: ""})


def test_an_agent_without_an_id_has_the_same_one_after_a_restart() -> None:
    program = (
        "from spade_coreason.contracts import *;"
        "print(AgentDefinition.simple('weather').metadata.id, AgentMetadata(name='weather', version='2.0.0', author='x').id)"
    )
    before = {subprocess.check_output([sys.executable, "-c", program], text=True) for _ in range(2)}
    assert before == {f"{definition().metadata.id} {definition().metadata.id}\n"}


def test_agents_of_different_names_have_different_ids_and_a_given_id_stays() -> None:
    given = uuid4()
    assert AgentDefinition.simple("a").metadata.id != AgentDefinition.simple("b").metadata.id
    assert AgentMetadata(id=given, name="a", version="1.0.0", author="me").id == given


# Capabilities


def test_the_defaults_of_a_capability() -> None:
    capability = AgentCapability(name="chat")
    assert (capability.type, capability.delivery_mode) == ("atomic", "request_response")
    assert (capability.inputs, capability.outputs, capability.events, capability.injected_params) == ({}, {}, [], [])


@pytest.mark.parametrize(
    ("field", "allowed"),
    [("type", ["atomic", "streaming"]), ("delivery_mode", ["request_response", "server_sent_events"])],
)
def test_a_capability_has_one_of_the_named_kinds(field: str, allowed: list[str]) -> None:
    for value in allowed:
        assert getattr(AgentCapability(**{"name": "c", field: value}), field) == value
    with pytest.raises(ValidationError, match=field):
        AgentCapability(**{"name": "c", field: "another"})


def test_an_agent_has_at_least_one_capability() -> None:
    with pytest.raises(ValidationError, match="capabilities"):
        definition(capabilities=[])


def test_capability_names_are_unique() -> None:
    twice = [AgentCapability(name="chat"), AgentCapability(name="sing"), AgentCapability(name="chat")]
    with pytest.raises(ValidationError, match='"chat" is listed twice'):
        definition(capabilities=twice)


def test_where_authentication_is_required_every_capability_is_given_the_user() -> None:
    metadata = AgentMetadata(name="bank", version="1.0.0", author="me", requires_auth=True)
    with_user = AgentCapability(name="transfer", injected_params=["user_context"])
    assert definition(metadata=metadata, capabilities=[with_user]).metadata.requires_auth
    with pytest.raises(ValidationError, match=r'"balance" must inject "user_context"'):
        definition(metadata=metadata, capabilities=[with_user, AgentCapability(name="balance")])


# Publishing


def test_a_draft_needs_no_hash_and_a_published_manifest_does() -> None:
    with pytest.raises(ValidationError, match="integrity_hash"):
        definition(status="published")
    assert definition(status="published", integrity_hash=HASH).integrity_hash == HASH


@pytest.mark.parametrize("value", ["", "abc", "g" * 64, "0" * 63, "0" * 65, "0" * 64 + "\n"])
def test_a_hash_has_64_hex_digits(value: str) -> None:
    for status in ("draft", "published"):
        with pytest.raises(ValidationError, match="integrity_hash"):
            definition(status=status, integrity_hash=value)


def test_there_are_two_statuses() -> None:
    with pytest.raises(ValidationError, match="status"):
        definition(status="retired")


# The other parts


def test_the_defaults_of_a_runtime_configuration() -> None:
    config = AgentRuntimeConfig()
    assert (config.nodes, config.edges) == ([], [])
    assert (config.entry_point, config.llm_config, config.system_prompt, config.memory) == (None,) * 4


def test_the_model_is_read_by_name_and_by_alias_and_written_by_alias() -> None:
    by_alias = AgentRuntimeConfig.model_validate({"model_config": {"model": "m", "temperature": 0.2}})
    by_name = AgentRuntimeConfig(llm_config=ModelConfig(model="m", temperature=0.2))
    assert by_alias == by_name
    assert by_name.dump()["model_config"] == {"model": "m", "temperature": 0.2}


@pytest.mark.parametrize("temperature", [0, 0.7, 2])
def test_a_temperature_is_between_0_and_2(temperature: float) -> None:
    assert ModelConfig(model="m", temperature=temperature).temperature == temperature


@pytest.mark.parametrize("temperature", [-0.1, 2.1])
def test_a_temperature_outside_is_refused(temperature: float) -> None:
    with pytest.raises(ValidationError, match="temperature"):
        ModelConfig(model="m", temperature=temperature)


def test_tools_come_from_elsewhere_or_are_described_in_place() -> None:
    elsewhere = {"uri": "mcp://tools/search", "hash": HASH, "scopes": ["read"], "risk_level": "critical"}
    in_place = {"name": "add", "description": "Adds", "parameters": {"type": "object"}}
    dependencies = AgentDependencies.model_validate({"tools": [elsewhere, in_place], "libraries": ["numpy"]})
    assert isinstance(dependencies.tools[0], ToolRequirement)
    assert dependencies.tools[0].risk_level is RiskLevel.CRITICAL
    assert isinstance(dependencies.tools[1], InlineToolDefinition)
    assert dependencies.libraries == ("numpy",)
    assert AgentDependencies.model_validate_json(dependencies.to_json()) == dependencies
    assert AgentDependencies(tools=list(dependencies.tools)).tools == dependencies.tools
    assert AgentDependencies().dump() == {"tools": [], "libraries": []}


def test_a_tool_is_safe_standard_or_critical_and_its_hash_is_checked() -> None:
    assert [str(level) for level in RiskLevel] == ["safe", "standard", "critical"]
    with pytest.raises(ValidationError, match="risk_level"):
        ToolRequirement(uri="mcp://x", hash=HASH, risk_level="wild")
    with pytest.raises(ValidationError, match="hash"):
        ToolRequirement(uri="mcp://x", hash="abc")


def test_the_defaults_of_policy_and_observability() -> None:
    assert PolicyConfig().dump() == {"budget_caps": {}, "human_in_the_loop": [], "allowed_domains": []}
    assert ObservabilityConfig().dump() == {"trace_level": "full", "retention_policy": "30_days"}
    for level in ("full", "metadata_only", "none"):
        assert ObservabilityConfig(trace_level=level).trace_level == level
    with pytest.raises(ValidationError, match="trace_level"):
        ObservabilityConfig(trace_level="some")


STRICT: list[tuple[Any, dict[str, Any]]] = [
    (AgentDefinition, definition().dump()),
    (AgentMetadata, definition().metadata.dump()),
    (AgentCapability, {"name": "c"}),
    (AgentRuntimeConfig, {}),
    (ModelConfig, {"model": "m"}),
    (AgentDependencies, {}),
    (ToolRequirement, {"uri": "mcp://x", "hash": HASH}),
    (InlineToolDefinition, {"name": "t"}),
    (PolicyConfig, {}),
    (ObservabilityConfig, {}),
]


@pytest.mark.parametrize(("model", "valid"), STRICT)
def test_an_unknown_field_anywhere_in_a_manifest_is_refused(model: Any, valid: dict[str, Any]) -> None:
    model.model_validate(valid)
    with pytest.raises(ValidationError, match="surprise"):
        model.model_validate({**valid, "surprise": 1})


def test_an_unknown_field_of_its_memory_is_refused() -> None:
    with pytest.raises(ValidationError, match="unknown: limti; the fields are strategy, limit, summary_prompt"):
        AgentRuntimeConfig.model_validate({"memory": {"limti": 3}})
    assert MemoryConfig.model_validate({"limit": 3, "surprise": 1}) == MemoryConfig(limit=3)


def test_a_manifest_survives_json() -> None:
    manifest = definition(
        config=AgentRuntimeConfig(llm_config=ModelConfig(model="m"), memory=MemoryConfig(limit=5)),
        dependencies=AgentDependencies(tools=[InlineToolDefinition(name="add")]),
        policy=PolicyConfig(budget_caps={"cost": 1.5}),
        custom_metadata={"team": None},
    )
    assert AgentDefinition.model_validate_json(manifest.to_json()) == manifest
    assert AgentDefinition.model_validate(manifest.dump()) == manifest


# validate_input

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"minimum": 1}}, "required": ["city"]}


def with_inputs(schema: dict[str, Any]) -> AgentDefinition:
    return definition(capabilities=[AgentCapability(name="forecast", inputs=schema), AgentCapability(name="chat")])


def test_an_input_that_fits_its_schema_is_fine() -> None:
    with_inputs(WEATHER).validate_input("forecast", {"city": "Valencia", "days": 3})
    with_inputs(WEATHER).validate_input("chat", {"anything": "goes"})


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({}, "forecast: payload: 'city' is a required property"),
        ({"city": 3}, "forecast: city: 3 is not of type 'string'"),
        ({"city": "x", "days": 0}, "forecast: days: 0 is less than the minimum of 1"),
    ],
)
def test_an_input_that_does_not_fit_is_named_with_its_place(payload: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=r"forecast: .*") as caught:
        with_inputs(WEATHER).validate_input("forecast", payload)
    assert str(caught.value) == problem


def test_a_capability_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match='no capability "sing"; there is forecast, chat'):
        with_inputs(WEATHER).validate_input("sing", {})


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "nonsense"}, "its JSON Schema is wrong"),
        ({"properties": {"q": {"pattern": "("}}}, "its JSON Schema is wrong"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "which is not in it"),
        ({"$ref": "#/nowhere"}, "which is not in it"),
        ({"$ref": "#"}, "nested without end"),
    ],
)
def test_a_schema_that_cannot_be_used_is_an_error_and_nothing_is_fetched(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        with_inputs(schema).validate_input("forecast", {"q": 1})


@pytest.mark.release
def test_an_input_whose_check_would_not_end_does_not_fit() -> None:
    manifest = with_inputs({"properties": {"mail": {"pattern": MAIL}}})
    manifest.validate_input("forecast", {"mail": "ada@example.com"})
    with pytest.raises(ValueError, match="forecast: payload: it cannot be checked against its JSON Schema within 2 s"):
        manifest.validate_input("forecast", {"mail": NO_MAIL})


def test_a_large_value_that_is_wrong_does_not_fill_the_message() -> None:
    with pytest.raises(ValueError, match="is not of type 'string'") as caught:
        with_inputs(WEATHER).validate_input("forecast", {"city": list(range(100_000))})
    assert len(str(caught.value)) < 400


# Writing one


def test_a_name_is_enough_for_a_manifest() -> None:
    manifest = AgentDefinition.simple("weather")
    assert isinstance(manifest.metadata.id, UUID)
    assert (manifest.metadata.name, manifest.metadata.version) == ("weather", "0.1.0")
    assert manifest.metadata.author
    assert [capability.name for capability in manifest.capabilities] == ["chat"]
    manifest.validate_input("chat", {"query": "Berlin"})
    assert AgentDefinition.model_validate(manifest.dump()) == manifest


def test_the_arguments_of_a_simple_manifest_are_stored_in_their_fields() -> None:
    manifest = AgentDefinition.simple(
        "weather",
        version="v2.0.0",
        description="Knows the weather",
        author="Ada",
        system_prompt="Be brief.",
        memory=MemoryConfig(limit=3),
    )
    assert (manifest.metadata.version, manifest.metadata.author) == ("2.0.0", "Ada")
    assert manifest.capabilities[0].description == "Knows the weather"
    assert manifest.config.system_prompt == "Be brief."
    assert manifest.config.memory == MemoryConfig(limit=3)


def test_an_agent_without_a_name_is_refused() -> None:
    with pytest.raises(ValidationError, match="name"):
        AgentDefinition.simple("")
