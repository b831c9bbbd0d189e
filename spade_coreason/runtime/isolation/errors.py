"""Exceptions on the wire: type, text and traceback of each, and the exception that the other side raises for it."""

from __future__ import annotations

import builtins
import traceback
from typing import Any

from ... import exceptions
from ...domain.texts.error_chain import RemoteTracebackError, describe_error_chain, dump_error_chain, load_error_chain

_MAX_TEXT = 10_000
_MAX_TRACEBACK = 50_000
_MAX_TYPES = 20
_MAX_FRAMES = 30


def dump_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON: the names of its types, its text, its traceback, and its simple attributes."""
    text = str(error.args[0]) if isinstance(error, exceptions.CoReasonError) and error.args else str(error)
    attributes = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
    return {
        "types": [kind.__name__ for kind in type(error).__mro__][:_MAX_TYPES],
        "text": text[:_MAX_TEXT],
        "traceback": "".join(traceback.format_exception(error, limit=_MAX_FRAMES))[-_MAX_TRACEBACK:],
        "chain": dump_error_chain(describe_error_chain(error)),
        "attributes": attributes if isinstance(error, exceptions.CoReasonError) else {},
    }


def load_error(data: dict[str, Any]) -> Exception:
    """Return the exception for the result of `dump_error`: of the same type, if it is one of Python or of this package.

    For any other it has a type of the same name, derived from the nearest base class that is one. It is an `Exception` in any
    case: nothing that ends a process is raised here.
    """
    names, text = [str(name) for name in data["types"]], str(data["text"])[:_MAX_TEXT]
    base, base_name = next(((kind, name) for name in names if (kind := _find_type(name)) is not None), (Exception, ""))
    kind = base if names[:1] == [base_name] else type(names[0] if names else "Exception", (base,), {})
    error: Exception = kind.__new__(kind)
    error.args = (text,)
    if isinstance(error, exceptions.CoReasonError):
        error.__dict__.update(
            (str(name), value) for name, value in data["attributes"].items() if isinstance(value, str | int | float | None)
        )
    error.__cause__ = RemoteTracebackError(str(data["traceback"])[-_MAX_TRACEBACK:], load_error_chain(data["chain"]))
    return error


def _find_type(name: str) -> type[Exception] | None:
    """Return the exception class of this name, of this package or of Python. Its instances have a text only."""
    kind = vars(exceptions).get(name) or (vars(builtins).get(name) if name not in _WITH_FIELDS else None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None


# Their texts are made of fields, which do not cross.
_WITH_FIELDS = {"UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup", "StopIteration"}
_WITH_FIELDS |= {"SyntaxError", "IndentationError", "TabError"}
