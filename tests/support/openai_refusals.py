"""The refusals of tools by OpenAI's chat completions, with its texts, as far as servers of tools meet them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

_UNIONS = ("oneOf", "anyOf", "allOf", "enum", "not")


def find_refusal(tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the error for the first of `tools`, elements of a request, that OpenAI refuses; None if it takes all."""
    if len(tools) > 128:
        text = f"Expected an array with maximum length 128, but got an array with length {len(tools)} instead."
        return _error(f"Invalid 'tools': array too long. {text}", "tools", "array_above_max_length")
    for number, tool in enumerate(tools):
        function, place = tool["function"], f"tools[{number}].function"
        for key, limit in (("name", 64), ("description", 1024)):
            if (length := len(function[key])) > limit:
                text = f"Expected a string with maximum length {limit}, but got a string with length {length} instead."
                return _error(f"Invalid '{place}.{key}': string too long. {text}", f"{place}.{key}", "string_above_max_length")
        if not re.fullmatch("[a-zA-Z0-9_-]+", function["name"]):
            pattern = "'^[a-zA-Z0-9_-]+$'"
            text = f"string does not match pattern. Expected a string that matches the pattern {pattern}."
            return _error(f"Invalid '{place}.name': {text}", f"{place}.name", "invalid_value")
        if (problem := find_schema_problem(function["parameters"])) is not None:
            text = f"Invalid schema for function '{function['name']}': {problem}"
            return _error(text, f"{place}.parameters", "invalid_function_parameters")
    return None


def find_schema_problem(schema: Any) -> str | None:
    """Return what OpenAI finds wrong with the `parameters` of a tool, or None."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    if any(union in schema for union in _UNIONS):
        names = "/".join(f"'{union}'" for union in _UNIONS)
        return f"schema must have type 'object' and not have {names} at the top level."
    if (error := best_match(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema))) is not None:
        return str(error.message)
    if "properties" not in schema:
        return "In context=(), object schema missing properties."
    for context, part in _parts(schema, ()):
        types = part.get("type", [])
        if "array" in (types if isinstance(types, list) else [types]) and "items" not in part:
            return f"In context={context}, array schema missing items."
    return None


def _parts(schema: Any, context: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if not isinstance(schema, dict):
        return
    yield context, schema
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs", "definitions"):
            for name, part in value.items():
                yield from _parts(part, (*context, keyword, name))
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for number, part in enumerate(value):
                yield from _parts(part, (*context, keyword, str(number)))
        elif keyword in ("items", "additionalProperties"):
            yield from _parts(value, (*context, keyword))


def _error(message: str, param: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}
