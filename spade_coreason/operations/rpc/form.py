"""The form of a call between two processes: JSON, by the type hints of what is called.

The socket of a data directory (`client.py`, `endpoint.py`) and the calls between workers carry it. The answer to a request is
any number of progresses, then a result or an error, each a line: `{"progress":{"done":3,"total":9}}`, `{"result":…}` or
`{"error":{"type":…,"place":…,"text":…}}`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from ...domain.texts.text import replace_lone_surrogates
from ...exceptions import (
    ConfigError,
    CoReasonError,
    DatabaseUnreachableError,
    ForbiddenError,
    KnowledgeError,
    ServerError,
    StoreError,
)

_ERRORS: tuple[type[CoReasonError] | type[ValueError], ...] = (
    DatabaseUnreachableError,
    StoreError,
    KnowledgeError,
    ServerError,
    ForbiddenError,
    CoReasonError,
    ValueError,
)
"""The errors, besides ConfigError, that keep their class on the way to a caller."""
FLAG = "should_go_on"
"""The argument that is a function: a call with it may be ended early."""
_JSON = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class OtherFormError(Exception):
    """The other side has another version: it sent something of another form."""


class AnswerForm:
    """The form of the answers with results of one type."""

    def __init__(self, result: Any) -> None:
        # A dict takes the configuration, which a class of its own would not.
        self._adapter: TypeAdapter[Any] = TypeAdapter(dict[Literal["result"], result], config=_JSON)

    def dump(self, result: Any) -> bytes:
        """Return a result as a line."""
        try:
            return self._adapter.dump_json({"result": result})
        except PydanticSerializationError as error:
            if "surrogates" not in str(error):
                raise
            return to_json(replace_lone_surrogates(self._adapter.dump_python({"result": result}, mode="json")))

    def load(self, line: str | bytes) -> dict[str, Any]:
        """Return the result or the progress in a line. Raise its error, or OtherFormError; ValueError if it is no JSON."""
        try:
            return dict(self._adapter.validate_json(line))
        except ValidationError as error:
            match from_json(line):
                case {"progress": {"done": int(done), "total": int(total)}}:
                    return {"progress": {"done": done, "total": total}}
                case {"error": {"type": str(name), "place": str(place), "text": str(text)}}:
                    if name == ConfigError.__name__:
                        raise ConfigError(place, text) from None
                    raise next((kind for kind in _ERRORS if kind.__name__ == name), CoReasonError)(text) from None
            raise OtherFormError from error


def dump_progress(done: int, total: int) -> bytes:
    """Return a progress as a line."""
    return to_json({"progress": {"done": done, "total": total}})


def dump_error(error: CoReasonError | ValueError) -> bytes:
    """Return an error as a line."""
    kind = next(found for found in (ConfigError, *_ERRORS) if isinstance(error, found))
    text = error.problem if isinstance(error, ConfigError) else str(error)
    values = {"type": kind.__name__, "place": getattr(error, "place", ""), "text": text}
    return to_json({"error": replace_lone_surrogates(values)})


class Method(NamedTuple):
    """A method that can be called from afar: the form of its arguments and of its answer."""

    names: tuple[str, ...]
    arguments: TypeAdapter[Any]
    answer: AnswerForm
    has_flag: bool

    @classmethod
    def of(cls, function: Callable[..., Any], types: Mapping[str, Any]) -> Method:
        """Read the type hints of a method. `types` are those that its module imports for type checkers only."""
        hints = get_type_hints(function, localns=dict(types))
        result = hints.pop("return")
        if isinstance(origin := get_origin(result), type) and issubclass(origin, Awaitable):
            result = get_args(result)[0]
        has_flag = hints.pop(FLAG, None) is not None
        arguments: Any = tuple[tuple(hints.values())] if hints else tuple[()]  # type: ignore[misc]  # built at run time
        # A tuple takes the configuration, which a class of its own would not.
        return cls(tuple(hints), TypeAdapter(arguments, config=_JSON), AnswerForm(result), has_flag)
