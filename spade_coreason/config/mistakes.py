"""Mistakes in what people and programs write: settings, manifests, options and arguments. Each is a key and a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..domain.policy import section_keys
from ..domain.texts.enumeration import did_you_mean, find_closest, join_names

KeyPath: TypeAlias = tuple[str | int, ...]

_MAX_DEPTH = 4
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_SECRET = re.compile(r"\b(password|options|url)\b")
# Messages by pydantic's error types. `{given}` is the value, unless it is secret.
_MESSAGES: Mapping[str, str] = {
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
    "dataclass_type": "must contain keys with values, like {{key: value}}{given}",
    "mapping_type": "must contain keys with values, like {{key: value}}{given}",
    "model_type": "must contain keys with values, like {{key: value}}{given}",
    "model_attributes_type": "must contain keys with values, like {{key: value}}{given}",
}


def describe_mistakes(error: ValidationError, model: type = BaseModel, raw: Any = None) -> dict[KeyPath, str]:
    """Return the text of each mistake by its key, unknown keys first. The key is empty for a mistake of the whole.

    `model` is a model of pydantic or a dataclass. `raw` are the values as they were written. Texts quote nothing else, which
    may be a secret. A model may have texts of its own in `MISTAKES`, by the key or by the type of the error.
    """
    errors = sorted(error.errors(include_url=False, include_input=False), key=lambda details: details["type"] not in _UNKNOWN)
    mistyped = {details["loc"][:-1] for details in errors if details["type"] in _UNKNOWN}
    mistakes: dict[KeyPath, str] = {}
    for details in errors:
        if details["type"] != "missing" or details["loc"][:-1] not in mistyped:  # the unknown key beside it says more
            path, section = _locate(details["loc"], model)
            mistakes.setdefault(path, _describe(details, path, section, model, raw))
    return mistakes


def format_key(path: Iterable[str | int]) -> str:
    """Format a key as a person writes it: agents[2].jid"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _locate(steps: Iterable[str | int], model: type) -> tuple[KeyPath, type]:
    """Return a key as a person writes it, and the section that contains it."""
    annotation: Any = model
    section, path = model, list[str | int]()
    for step in steps:
        variants = list(_sections_in(annotation))
        if step == "[key]":
            continue
        if not isinstance(step, int):
            named = next((variant for variant in variants if step == variant.__name__), None)
            if named is not None:  # pydantic's name for a member of a union
                annotation = named
                continue
            section = variants[0] if variants else section
            annotation = _keys_of(section).get(step, annotation)
        path.append(step)
    return tuple(path), section


def _describe(details: ErrorDetails, path: KeyPath, section: type, model: type, raw: Any) -> str:
    context, kind = details.get("ctx", {}), details["type"]
    own = getattr(section, "MISTAKES", {})
    if kind in _UNKNOWN:
        return own.get(path[-1]) or _describe_unknown_key(path, section, model)
    if kind == "value_error":
        return str(context["error"])
    value = _value_at(raw, path)
    # A text is shown as it was written, so that the value of a variable is not disclosed.
    given = ""
    if value is not None and not isinstance(value, dict | list) and not _SECRET.search(format_key(path)):
        given = f', not "{value}"' if isinstance(value, str) else f", not {str(value).lower()}"
    if kind == "literal_error" and (choices := re.findall(r"'([^']*)'", context["expected"])):
        hint = "" if value is None else did_you_mean(str(value).lower(), choices)
        return f"must be {join_names(choices, 'or')}{given}{f'; {hint}' if hint else ''}"
    if context.get("min_length", 1) == 1 and (text := own.get(kind) or _MESSAGES.get(kind)):
        return str(text).format(**context, given=given)
    text = details["msg"].replace("Input should be", "must be").replace("String should", "must")
    return text[:1].lower() + text[1:]


def _value_at(raw: Any, path: KeyPath) -> Any:
    for step in path:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _describe_unknown_key(path: KeyPath, section: type, model: type) -> str:
    key, keys = str(path[-1]).lower().replace("-", "_"), list(_keys_of(section))
    elsewhere = [other for other in _find_keys(model) if other[-1] == path[-1]]
    if (len(elsewhere) == 1 or (elsewhere and len(path) == 1)) and find_closest(key, keys, 0.75) is None:
        return f'unknown key here; did you mean "{".".join(elsewhere[0])}"?'
    listed = ", ".join(keys)
    return f"unknown key; {did_you_mean(key, keys, f'the keys are {listed}' if keys else 'remove it')}"


def _find_keys(section: type, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Iterate over the keys of a section and of those in it, but not of those in lists, which are many."""
    for key, annotation in _keys_of(section).items():
        yield (*above, key)
        if get_origin(annotation) in (None, Union, UnionType) and len(above) < _MAX_DEPTH:
            for inner in _sections_in(annotation):
                yield from _find_keys(inner, (*above, key))


def _keys_of(section: type) -> dict[str, Any]:
    """Return the keys of a section as they are written, each with its annotation."""
    return section_keys(section) if issubclass(section, BaseModel) else dict(getattr(section, "__dataclass_fields__", {}))


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Iterate over the models that a value of this type may be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections_in(inner)
