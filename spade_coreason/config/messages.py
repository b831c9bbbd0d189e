"""What is wrong with a setting, said in one sentence with its remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .environment import KeyPath, format_key
from .settings import Settings, keys_of, section_of

# Messages by pydantic's error types. `{given}` is the value, where it is no secret.
MESSAGES = {
    "missing": "is missing; every agent needs it",
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
    "greater_than_equal": "must be at least {ge}{given}",
    "less_than_equal": "must be at most {le}{given}",
    "string_type": "must be a text; put it into quotes",
    "string_too_short": "must not be empty",
    "path_type": "must be the name of a file or directory{given}",
    "tuple_type": "must be a list, like [one, two]{given}",
    "invalid_key": "keys must be texts; put it into quotes",
    "dict_type": "must hold keys with values, like {{key: value}}{given}",
    "mapping_type": "must hold keys with values, like {{key: value}}{given}",
    "model_type": "must hold keys with values, like {{key: value}}{given}",
    "model_attributes_type": "must hold keys with values, like {{key: value}}{given}",
}
SECRET = re.compile(r"\b(password|options|url)\b")


def describe_mistakes(error: ValidationError, raw: Any) -> list[tuple[KeyPath, str]]:
    """The place and the sentence of each mistake, unknown keys first. `raw` are the values before `${VAR}` was replaced."""
    details = sorted(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
    mistyped = {found["loc"][:-1] for found in details if found["type"] == "extra_forbidden"}
    said = []
    for found in details:
        if found["type"] == "missing" and found["loc"][:-1] in mistyped:
            continue  # the unknown key beside it says more
        path: KeyPath = tuple(step for step in found["loc"] if step != "[key]")
        said.append((path, _describe(found, path, raw)))
    return said


def _describe(details: ErrorDetails, path: KeyPath, raw: Any) -> str:
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return _unknown_key(path)
        case "value_error":
            return str(context["error"])
        case "literal_error":
            return _unknown_choice(re.findall(r"'([^']*)'", context["expected"]), _value_at(raw, path), path)
        case kind if kind in MESSAGES:
            return MESSAGES[kind].format(**context, given=_format_given(_value_at(raw, path), path))
        case _:
            return details["msg"][:1].lower() + details["msg"][1:]


def _format_given(value: Any, path: KeyPath) -> str:
    # A text is shown as it was written, so that what came from a variable stays where it is.
    if value is None or isinstance(value, dict | list) or SECRET.search(format_key(path)):
        return ""
    if isinstance(value, bool):
        return f", not {str(value).lower()}"
    return f', not "{value}"' if isinstance(value, str) else f", not {value}"


def _value_at(raw: Any, path: KeyPath) -> Any:
    for step in path:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _unknown_choice(choices: list[str], value: Any, path: KeyPath) -> str:
    near = difflib.get_close_matches(str(value).lower(), choices, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return f"must be {', '.join(choices[:-1])} or {choices[-1]}{_format_given(value, path)}{hint}"


def _unknown_key(path: KeyPath) -> str:
    *above, key = path
    section = _section_at(tuple(above))
    keys = list(keys_of(section))
    near = difflib.get_close_matches(str(key).lower().replace("-", "_"), keys, n=1)
    if near:
        return f'unknown key; did you mean "{near[0]}"?'
    elsewhere = [other for other in _all_keys(Settings) if other[-1] == key]
    if elsewhere:
        return f'unknown key here; did you mean "{".".join(elsewhere[0])}"?'
    return f"unknown key; there are {', '.join(keys)}"


def _section_at(path: KeyPath) -> type[BaseModel]:
    section: type[BaseModel] = Settings
    for step in path:
        inner = None if isinstance(step, int) else section_of(keys_of(section).get(step))
        section = inner or section
    return section


def _all_keys(section: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, annotation in keys_of(section).items():
        yield (*above, key)
        inner = section_of(annotation)
        if inner is not None and key != "agents":
            yield from _all_keys(inner, (*above, key))
