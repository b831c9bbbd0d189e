"""Structured output: the data of a capability with an output schema, found in the text of a model and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from ..contracts import AgentCapability, AgentDefinition, AgentRequest
from ..contracts.json_schema import find_problems
from ..domain.texts.foreign_json import check_values

_FENCE = "```"


def parse_json(text: str) -> Any:
    """Parse JSON. ValueError for JSON that others refuse: NaN, an infinite number, half a character, over 200 levels."""
    check_values(data := text.encode())
    value = from_json(data, allow_inf_nan=False)
    json.dumps(value, allow_nan=False)  # refuses 1e999, which is infinite
    return value


def parse_fenced_json(text: str) -> Any:
    """Parse JSON that may stand in a fence of Markdown. ValueError as for `parse_json`."""
    first_line, _, rest = text.strip().partition("\n")
    is_fenced = first_line.rstrip() in (_FENCE, f"{_FENCE}json") and rest.endswith(_FENCE)
    return parse_json(rest.removesuffix(_FENCE).strip() if is_fenced else text)


def unescape_json(text: str) -> str:
    """Remove the escapes that JSON does not need from a JSON text, fenced or not. Any other text stays as it is."""
    if "\\" not in text:
        return text
    try:
        value = parse_fenced_json(text)
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else text
    except ValueError:
        return text


def find_data_capability(manifest: AgentDefinition, request: AgentRequest) -> AgentCapability | None:
    """Find the capability that replies with data: the one named by `metadata["capability"]`, else the only one."""
    name = request.metadata.get("capability")
    capabilities = [capability for capability in manifest.capabilities if capability.name == name] or manifest.capabilities
    return capabilities[0] if len(capabilities) == 1 and capabilities[0].outputs else None


def build_response_format(capability: AgentCapability) -> dict[str, Any]:
    """Build the field `response_format` of a request."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", capability.name)[:64]
    return {"type": "json_schema", "json_schema": {"name": name, "schema": capability.outputs}}


def build_schema_instruction(capability: AgentCapability) -> str:
    """Build the system message with the schema, for servers that ignore `build_response_format`."""
    schema = json.dumps(capability.outputs, ensure_ascii=False)
    return f"Answer with one JSON object alone, no other text, that fits this JSON Schema:\n{schema}"


async def parse_data(text: str, schema: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the data in a text, or None and the error."""
    try:
        value = parse_fenced_json(text)
    except ValueError as error:
        return None, f"it is no JSON ({str(error)[:120]})"
    if not isinstance(value, dict):
        return None, "it is no JSON object"
    [problem] = await find_problems([value], schema)
    return (value, "") if problem is None else (None, problem)
