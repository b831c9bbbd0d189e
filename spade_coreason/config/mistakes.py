"""Mistakes in a model that people write, such as a manifest or the options of an agent: its fields and one sentence each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

# Messages by pydantic's error types. `{given}` is the value, unless it is secret.
MESSAGES: Mapping[str, str] = {
    "missing": "is missing",
    "int_type": "must be a whole number{given}",
    "int_parsing": "must be a whole number{given}",
    "int_parsing_size": "must be a smaller number{given}",
    "int_from_float": "must be a whole number{given}",
    "float_type": "must be a number{given}",
    "float_parsing": "must be a number{given}",
    "finite_number": "must be a finite number{given}",
    "bool_type": "must be true or false{given}",
    "bool_parsing": "must be true or false{given}",
    "greater_than": "must be more than {gt:g}{given}",
    "greater_than_equal": "must be at least {ge:n}{given}",
    "less_than_equal": "must be at most {le:n}{given}",
    "string_type": "must be a text; quote it",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "path_type": "must be the name of a file or directory{given}",
    "list_type": "must be a list, like [one, two]{given}",
    "tuple_type": "must be a list, like [one, two]{given}",
    "invalid_key": "keys must be texts; quote the key",
    "dict_type": "must contain keys with values, like {{key: value}}{given}",
    "mapping_type": "must contain keys with values, like {{key: value}}{given}",
    "model_type": "must contain keys with values, like {{key: value}}{given}",
    "model_attributes_type": "must contain keys with values, like {{key: value}}{given}",
}


def describe_field_mistakes(error: ValidationError, model: type[BaseModel]) -> dict[str, str]:
    """Return the text of each mistake by its field, unknown keys first. The field is empty for a mistake of the whole.

    No text quotes a value, which may be a secret.
    """
    mistakes: dict[str, str] = {}
    errors = error.errors(include_url=False, include_input=False)
    mistyped = {details["loc"][:-1] for details in errors if details["type"] == "extra_forbidden"}
    for details in sorted(errors, key=lambda details: details["type"] != "extra_forbidden"):
        if details["type"] == "missing" and details["loc"][:-1] in mistyped:
            continue  # the unknown key beside it says more
        field, section = _find_field(details["loc"], model)
        mistakes.setdefault(field, _describe(details, section))
    return mistakes


def _find_field(path: Iterable[str | int], model: type[BaseModel]) -> tuple[str, type[BaseModel]]:
    """Return a field as a person writes it, and the section that contains it."""
    annotation: Any = model
    section, field = model, ""
    for step in path:
        if isinstance(step, int):
            field += f"[{step}]"
            continue
        variants = _sections_in(annotation)
        if any(step == variant.__name__ for variant in variants):  # pydantic's name for a member of a union
            annotation = next(variant for variant in variants if step == variant.__name__)
            continue
        section = variants[0] if variants else section
        field += f".{step}" if field else str(step)
        annotation = _keys_of(section).get(str(step), annotation)
    return field, section


def _describe(details: ErrorDetails, section: type[BaseModel]) -> str:
    if details["type"] == "extra_forbidden":
        return _describe_unknown_key(str(details["loc"][-1]), section)
    if details["type"] == "value_error":
        return str(details["ctx"]["error"])
    if details["type"] in MESSAGES:
        return MESSAGES[details["type"]].format(**details.get("ctx", {}), given="")
    return details["msg"].replace("Input should be", "must be").replace("String should", "must")


def _keys_of(section: type[BaseModel]) -> dict[str, Any]:
    """Return the keys of a section as they are written in a file, each with its annotation."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a value of this type may be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]


def _describe_unknown_key(key: str, section: type[BaseModel]) -> str:
    keys = list(_keys_of(section))
    near = difflib.get_close_matches(key.lower().replace("-", "_"), keys, n=1)
    return f'unknown key; did you mean "{near[0]}"?' if near else f"unknown key; the keys are {', '.join(keys)}"
