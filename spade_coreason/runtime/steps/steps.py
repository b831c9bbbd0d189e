"""Durable steps: a turn that runs again does not repeat what it has finished.

A step is known by its name, the number of its use within the turn, and a hash of its arguments. Its result is stored in the
journal of the turn (`step_journal`) when it has finished.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ...domain.texts.json_text import dump_json

MAX_RESULT_BYTES = 2**20
"""The largest result of a step, as JSON in UTF-8."""
MAX_NAME_CHARACTERS = 200
KEY_PARAMETER = "idempotency_key"


@dataclass(frozen=True, slots=True)
class DurableStep:
    """A durable step that has begun. `key` is its idempotency key, `result_text` its stored result as JSON, if it has one."""

    name: str
    number: int
    """The use of the name within the turn, from 1."""
    arguments_hash: str
    key: str
    result_text: str | None = None

    @property
    def is_finished(self) -> bool:
        """True if an earlier run of the turn has stored the result."""
        return self.result_text is not None

    @property
    def result(self) -> Any:
        """The stored result."""
        return None if self.result_text is None else json.loads(self.result_text)


class TurnParkedError(BaseException):
    """The end of a run of `assist` that has asked a person. It is no Exception, so that `except Exception` lets it pass."""


OUTER_STEP: ContextVar[str] = ContextVar("outer_step", default="")
"""The key of the step in whose function this task is; "" outside. Its inner steps do not begin again once it has a result."""


def takes_idempotency_key(function: Callable[..., Any]) -> bool:
    """Return True if a function has a parameter `idempotency_key`."""
    return KEY_PARAMETER in _find_parameters(function)


def find_positional_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that a function takes by position, as far as it tells them."""
    return [each.name for each in _find_parameters(function).values() if each.kind <= each.POSITIONAL_OR_KEYWORD]


def _find_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions that are written in C have no signature
        return {}


_NO_ARGUMENTS_HASH = hashlib.sha256(b"[]").hexdigest()


def hash_arguments(name: str, arguments: object) -> str:
    """Return the SHA-256 of the canonical JSON of arguments. ValueError for a wrong name, or arguments that are not JSON."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_CHARACTERS or "\0" in name:
        raise ValueError(
            f"the name of a durable step must be a text of 1 to {MAX_NAME_CHARACTERS} characters, not {name!r:.300}"
        )
    try:
        name.encode()  # a lone surrogate cannot be stored
        if arguments == ():
            return _NO_ARGUMENTS_HASH
        text = dump_json(arguments, is_canonical=True)
    except ValueError as error:
        raise ValueError(f"the durable step {name!r}: {error}; its arguments must be JSON values") from error
    return hashlib.sha256(text.encode()).hexdigest()


def dump_result(name: str, result: object) -> str:
    """Return the JSON text of a result. ValueError, which names the step, if it is not JSON or too large."""
    try:
        text = dump_json(result)
    except ValueError as error:
        problem = "its result is not stored: it must be a JSON value"
        raise ValueError(f"the durable step {name!r}: {error}; {problem}") from error
    size = len(text.encode())
    if size > MAX_RESULT_BYTES:
        raise ValueError(
            f"the durable step {name!r}: its result has {size:,} bytes and is not stored (limit: {MAX_RESULT_BYTES:,});"
            " return a reference to it instead"
        )
    return text
