"""The JSON Schema of a tool's arguments, in the form that servers with OpenAI's API accept.

OpenAI answers a request with status 400 if the schema of one tool is not accepted: its root is an object with
`properties` and without a union, and each array has `items`. The schema that results may allow more than the original does.
It only tells the model what to write; the tool itself checks its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

_TYPES = {"null", "boolean", "object", "array", "number", "string", "integer"}
_VALUES = {"const", "default", "examples"}
"""The keywords with values that are no schemas, and may be null."""
_MAPS = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
_LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_REFUSED_AT_THE_ROOT = {"$ref", "allOf", "anyOf", "const", "else", "enum", "if", "not", "oneOf", "then"}
_NUMBERS = {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"}
_COUNTS = {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(_MAPS, dict),
    **dict.fromkeys(_LISTS | {"enum"}, list),
    **dict.fromkeys(("$ref", "description", "format", "pattern"), str),
    **dict.fromkeys(_NUMBERS | _COUNTS, (int, float)),
    **dict.fromkeys(("additionalItems", "additionalProperties", "contains", "items", "propertyNames"), (dict, bool)),
}
"""The types of the values of keywords. Servers refuse a schema with others."""


def build_parameters(schema: object) -> Schema:
    """Return `schema` as `parameters` of a tool. Raise ValueError, with the reason, if that is impossible.

    - Missing `properties`, and missing `items` of an array, are added.
    - The alternatives of a union at the root (`anyOf`, `oneOf`, `allOf`) and a reference there become one object. It requires
      what all alternatives require; a property that is described in several ways may have each of them.
    - Keywords that are null, and forms of older drafts, are left out.
    """
    try:
        root = _complete({} if schema is True else schema)
        parameters = _Root(root).merged(root)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    for reference in _references(parameters):
        if not _find(parameters, reference):
            raise ValueError(f"it refers to {reference[:100]!r}, which it does not contain")
    return parameters


def _complete(schema: object) -> Schema:
    """Return a schema whose keywords all have a usable value."""
    if not isinstance(schema, Mapping):
        raise ValueError(f"there is {str(schema)[:40]!r} in place of a schema")
    completed: Schema = {}
    for keyword, value in schema.items():
        if keyword in _VALUES:
            completed[keyword] = value
        elif value is not None and not _is_of_an_older_draft(keyword, value):
            completed[keyword] = _complete_value(keyword, value)
    types = _types_of(completed)
    if unknown := [name for name in types if name not in _TYPES]:
        raise ValueError(f"there is no type {str(unknown[0])[:40]!r}")
    if "array" in types:
        completed.setdefault("items", {})
    return completed


def _complete_value(keyword: str, value: Any) -> Any:
    if keyword == "items" and isinstance(value, list):  # until 2019; now prefixItems
        return {"anyOf": [_complete_inner(element) for element in value]} if value else {}
    kind = _KINDS.get(keyword)
    if kind is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind == (int, float))):
        raise ValueError(f"the value of {keyword} is {str(value)[:40]!r}")
    if keyword in _MAPS:
        return {name: _complete_inner(element) for name, element in value.items()}
    if keyword in _LISTS:
        return [_complete_inner(element) for element in value]
    is_schema = isinstance(value, dict) and (kind == (dict, bool) or keyword in ("not", "if", "then", "else"))
    return _complete_inner(value) if is_schema else value


def _complete_inner(schema: object) -> Schema | bool:
    return schema if isinstance(schema, bool) else _complete(schema)


def _is_of_an_older_draft(keyword: str, value: object) -> bool:
    is_list_of_names = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return (keyword == "required" and not is_list_of_names) or (
        keyword in ("exclusiveMaximum", "exclusiveMinimum") and isinstance(value, bool)
    )


def _types_of(schema: Mapping[str, Any]) -> list[object]:
    types = schema.get("type", [])
    return types if isinstance(types, list) else [types]


class _Root:
    """The root of a schema, and the references to its parts that are merged already: they may multiply without end."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._merged_by_reference: dict[str, Schema | None] = {}

    def merged(self, schema: Schema | bool) -> Schema:
        """Return a schema as one object without a union. Raise ValueError if it allows no object."""
        if isinstance(schema, bool):
            schema = {} if schema else {"type": "null"}
        types = _types_of(schema)
        if types and "object" not in types:
            raise ValueError(f"it describes no object, but {' or '.join(map(str, types))}")
        parts = [self._merge_reference(schema["$ref"])] if "$ref" in schema else []
        parts += [self.merged(branch) for branch in schema.get("allOf", ())]
        parts += [self._merge_alternatives(schema[union]) for union in ("anyOf", "oneOf") if union in schema]
        result = {key: value for key, value in schema.items() if key not in _REFUSED_AT_THE_ROOT}
        if parts:
            result.pop("additionalProperties", None)  # it concerns the properties beside it only
        everything = [{"properties": {}, **result}, *parts]
        result |= {"type": "object", "properties": _join_properties(everything)}
        if required := list(dict.fromkeys(name for part in everything for name in part.get("required", ()))):
            result["required"] = required
        return result

    def _merge_alternatives(self, alternatives: list[Schema | bool]) -> Schema:
        parts, problem = [], "it has an empty union"
        for alternative in alternatives:
            try:
                parts.append(self.merged(alternative))
            except ValueError as error:  # such as "or null"
                problem = str(error)
        if not parts:
            raise ValueError(problem)
        required = [name for name in parts[0].get("required", ()) if all(name in part.get("required", ()) for part in parts)]
        return {"properties": _join_properties(parts), "required": required}

    def _merge_reference(self, reference: str) -> Schema:
        if reference not in self._merged_by_reference:
            self._merged_by_reference[reference] = None
            found = _find(self._root, reference)
            if not found:
                raise ValueError(f"it refers to {reference[:100]!r}, which it does not contain")
            self._merged_by_reference[reference] = self.merged(found[0])
        merged = self._merged_by_reference[reference]
        if merged is None:
            raise ValueError("it refers to itself")
        return merged


def _join_properties(parts: Iterable[Schema]) -> Schema:
    """Return the properties of all parts. One that they describe in several ways may have each of them."""
    schemas_by_name: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, schema in part["properties"].items():
            ways = schema["anyOf"] if isinstance(schema, dict) and schema.keys() == {"anyOf"} else [schema]
            schemas_by_name.setdefault(name, {}).update((json.dumps(way, sort_keys=True), way) for way in ways)
    return {
        name: next(iter(ways.values())) if len(ways) == 1 else {"anyOf": list(ways.values())}
        for name, ways in schemas_by_name.items()
    }


def _references(schema: object) -> Iterator[str]:
    """Yield the references in a schema."""
    if isinstance(schema, list):
        for element in schema:
            yield from _references(element)
    elif isinstance(schema, dict):
        for keyword, value in schema.items():
            if keyword == "$ref" and isinstance(value, str):
                yield value
            elif keyword not in _VALUES:
                yield from _references(value)


def _find(root: Schema, reference: str) -> list[Any]:
    """Return the part of a schema that a reference such as #/$defs/a names, in a list; an empty one if there is none."""
    first, *names = reference.split("/")
    found: Any = root
    if first != "#":
        return []
    for name in names:
        name = name.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            return []
        found = found[name]
    return [found] if isinstance(found, dict | bool) else []
