"""What is wrong with a value by its JSON Schema, in one sentence."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # it has no types
from referencing.exceptions import Unresolvable

# jsonschema's messages quote the value, which may be a whole document, and say at their end what is wrong with it.
_MAX_HEAD_CHARACTERS, _MAX_TAIL_CHARACTERS = 120, 160


def find_problem(value: Any, schema: dict[str, Any]) -> str | None:
    """The mistake that says most, with its place in the value, or None. Also where the schema itself is wrong."""
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
        # The registry knows the drafts of JSON Schema only: nothing is fetched from the network.
        error = best_match(kind(schema, registry=REGISTRY).iter_errors(value))
    except SchemaError as wrong:
        return f"its JSON Schema is wrong: {_shorten(wrong.message)}"
    except Unresolvable as unknown:
        return f'its JSON Schema refers to "{unknown.ref}", which is not in it'
    except RecursionError:
        return "its JSON Schema and this value are nested without end"
    if error is None:
        return None
    place = ".".join(str(step) for step in error.absolute_path)
    return f"{place or 'payload'}: {_shorten(error.message)}"


def _shorten(message: str) -> str:
    message = " ".join(message.split())
    return (
        message
        if len(message) <= _MAX_HEAD_CHARACTERS + _MAX_TAIL_CHARACTERS
        else f"{message[:_MAX_HEAD_CHARACTERS]} … {message[-_MAX_TAIL_CHARACTERS:]}"
    )
