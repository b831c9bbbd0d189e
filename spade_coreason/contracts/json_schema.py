"""Validation of a value against a JSON Schema, with the mistake in one sentence."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # it has no types
from referencing.exceptions import Unresolvable

# Messages of jsonschema quote the value, which may be a whole document. The mistake stands at their end.
_MAX_HEAD_CHARACTERS, _MAX_TAIL_CHARACTERS = 120, 160


def find_problem(value: Any, schema: dict[str, Any], root: str = "payload") -> str | None:
    """Return the most telling mistake with its place in the value, or None. A mistake in the schema itself is one too.

    `root` is the name of the whole value.
    """
    validator = validator_for(schema, default=Draft202012Validator)
    try:
        validator.check_schema(schema)
        # The registry holds the drafts of JSON Schema only, so nothing is fetched from the network.
        error = best_match(validator(schema, registry=REGISTRY).iter_errors(value))
    except SchemaError as schema_error:
        return f"its JSON Schema is wrong: {_shorten(schema_error.message)}"
    except Unresolvable as unresolvable:
        return f'its JSON Schema refers to "{unresolvable.ref}", which is not in it'
    except RecursionError:
        return "its JSON Schema and this value are nested without end"
    if error is None:
        return None
    place = ".".join(str(step) for step in error.absolute_path)
    return f"{place or root}: {_shorten(error.message)}"


def _shorten(message: str) -> str:
    message = " ".join(message.split())
    return (
        message
        if len(message) <= _MAX_HEAD_CHARACTERS + _MAX_TAIL_CHARACTERS
        else f"{message[:_MAX_HEAD_CHARACTERS]} … {message[-_MAX_TAIL_CHARACTERS:]}"
    )
