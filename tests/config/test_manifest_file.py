"""Manifests read from files: YAML or JSON, in full or short, and mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spade_coreason.config import load_manifest
from spade_coreason.contracts import AgentDefinition, MemoryConfig
from spade_coreason.exceptions import ConfigError

FULL = "metadata: {name: weather, version: v1.0.0, author: me}\ncapabilities: [{name: chat}]\n"


def test_a_file_with_a_name_is_a_manifest(tmp_path: Path) -> None:
    file = tmp_path / "weather.yaml"
    file.write_text("name: weather\ndescription: Knows the weather\nmemory: {limit: 3}\n")
    manifest = load_manifest(file)
    simple = AgentDefinition.simple("weather", description="Knows the weather", memory=MemoryConfig(limit=3))
    assert manifest.dump(exclude={"metadata": {"created_at"}}) == simple.dump(exclude={"metadata": {"created_at"}})


def test_a_manifest_in_full_is_read_from_yaml_and_from_json(tmp_path: Path) -> None:
    yaml_file, json_file = tmp_path / "a.yaml", tmp_path / "a.json"
    yaml_file.write_text(FULL + "config: {model_config: {model: m}}\n")
    from_yaml = load_manifest(str(yaml_file))
    json_file.write_text(from_yaml.to_json())
    assert load_manifest(json_file) == from_yaml
    assert from_yaml.metadata.version == "1.0.0"
    assert from_yaml.config.llm_config is not None


def test_a_written_manifest_is_read_again_also_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    manifest = AgentDefinition.simple("größe")
    file.write_bytes(b"\xef\xbb\xbf" + manifest.to_json().encode())
    assert load_manifest(file) == manifest


MISTAKES = {
    "name: weather\nsytem_prompt: x": 'sytem_prompt: unknown key; did you mean "system_prompt"?',
    "name: weather\nzzz: x": "zzz: unknown key; the keys are name, version, description, author, system_prompt, memory",
    "name: weather\nversion: 1.0": "version: must be a text; quote it",
    "name: ''": "name: must not be empty",
    "metadata: {nme: n, version: 1.0.0, author: me}": 'metadata.nme: unknown key; did you mean "name"?',
    "metadata: {name: n, author: me}\ncapabilities: [{name: a}]": "metadata.version: is missing",
    "metadata: {name: n, version: '1', author: me}\ncapabilities: [{name: a}]": (
        'metadata.version: "1" is not a semantic version such as 1.0.0'
    ),
    "metadata: 3\ncapabilities: [{name: a}]": "metadata: must contain keys with values, like {key: value}",
    "metadata: {name: n, version: 1.0.0, author: me}": "capabilities: is missing",
    "metadata: {name: n, version: 1.0.0, author: me}\ncapabilities: []": "capabilities: must not be empty",
    FULL.replace("name: chat", "name: chat, type: streamin"): "capabilities[0].type: must be atomic or streaming",
    FULL.replace("{name: chat}", "{name: a}, {name: a}"): 'capability names must be unique; "a" is listed twice',
    FULL + "status: published": "a published manifest needs its integrity_hash (64 hex digits)",
    FULL + "config: {model_config: {model: m, temprature: 1}}": (
        'config.model_config.temprature: unknown key; did you mean "temperature"?'
    ),
    FULL + "config: {memory: {limit: 0}}": "config.memory.limit: must be more than 0",
    FULL + "config: {memory: {strategy: summary}}": "config.memory: summary_prompt is required when strategy is SUMMARY",
    FULL + "dependencies: {tools: [{name: x, paramters: {}}]}": (
        'dependencies.tools[0].paramters: unknown key; did you mean "parameters"?'
    ),
    FULL + "dependencies: {tools: [{uri: x, hash: abc}]}": (
        "dependencies.tools[0].hash: must match pattern '^[0-9a-fA-F]{64}$'"
    ),
    "- a list": "contains no manifest; add a name, or metadata and capabilities",
    "": "contains no manifest; add a name, or metadata and capabilities",
    "a: 2020-99-99": "has an invalid value: month must be in 1..12; quote it",
}


@pytest.mark.parametrize(("text", "problem"), MISTAKES.items())
def test_a_mistake_in_a_file_is_one_line_with_file_field_and_cause(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_manifest(file)
    assert str(caught.value) == f"{file}: {problem}"
    assert caught.value.exit_code == 2


def test_a_manifest_that_is_no_yaml_is_wrong_at_a_line_and_a_column(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("a:\n\t- b")
    with pytest.raises(ConfigError) as caught:
        load_manifest(file)
    problem = "is not valid YAML: found character '\\t' that cannot start any token; correct it there or just before"
    assert (caught.value.place, caught.value.problem) == (f"{file}:2:1", problem)


def test_an_unknown_field_of_a_memory_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text("name: n\nmemory: {strategy: sliding_window, limti: 3}\n")
    with pytest.raises(ConfigError, match="unknown: limti") as caught:
        load_manifest(file)
    assert caught.value.place == f"{file}: memory"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"name": "a",}', "line 1: is not JSON: "),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"[" * 100_000, "is not JSON: maximum recursion depth exceeded"),
    ],
)
def test_a_file_that_is_no_json_is_one_line_too(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "agent.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_manifest(file)
    assert str(caught.value).startswith(f"{file}: {problem}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_a_directory_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            load_manifest(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_a_yaml_file_cannot_run_code(tmp_path: Path) -> None:
    file, trace = tmp_path / "agent.yaml", tmp_path / "trace"
    file.write_text(f"name: !!python/object/apply:os.mkdir [{json.dumps(str(trace))}]")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_manifest(file)
    assert not trace.exists()
