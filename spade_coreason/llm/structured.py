"""Structured output: what a capability with an output schema answers with, found in the text of a model and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from ..contracts import AgentCapability, AgentDefinition, AgentRequest
from ..contracts.json_schema import find_problem

_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.S)


def parse_json(text: str) -> Any:
    """The value. ValueError for what others do not take: NaN, a number without end, half a character, over 200 levels."""
    value = from_json(text.encode(), allow_inf_nan=False)
    json.dumps(value, allow_nan=False)  # 1e999
    return value


def parse_fenced_json(text: str) -> Any:
    """The same for a text that may stand in a fence of Markdown."""
    fenced = _FENCE.fullmatch(text)
    return parse_json(fenced[1] if fenced else text)


def unescape_json(text: str) -> str:
    """A text that is JSON, also in a fence, without the escapes that JSON does without; any other as it is."""
    if "\\" not in text:
        return text
    try:
        value = parse_fenced_json(text)
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else text
    except ValueError:
        return text


def find_data_capability(manifest: AgentDefinition, request: AgentRequest) -> AgentCapability | None:
    """The capability that answers with data: the one that `metadata["capability"]` names, else the only one there is."""
    named = request.metadata.get("capability")
    found = [one for one in manifest.capabilities if one.name == named] or manifest.capabilities
    return found[0] if len(found) == 1 and found[0].outputs else None


def build_response_format(capability: AgentCapability) -> dict[str, Any]:
    """What a request says of it."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", capability.name)[:64]
    return {"type": "json_schema", "json_schema": {"name": name, "schema": capability.outputs}}


def build_schema_instruction(capability: AgentCapability) -> str:
    """What a system message says of it, for servers to which `build_response_format` means nothing."""
    schema = json.dumps(capability.outputs, ensure_ascii=False)
    return f"Answer with one JSON object alone, no other text, that fits this JSON Schema:\n{schema}"


def parse_data(text: str, schema: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The data in a text, or None and what is wrong with it."""
    try:
        value = parse_fenced_json(text)
    except ValueError as error:
        return None, f"it is no JSON ({str(error)[:120]})"
    if not isinstance(value, dict):
        return None, "it is no JSON object"
    problem = find_problem(value, dict(schema))
    return (value, "") if problem is None else (None, problem)
