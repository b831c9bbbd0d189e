"""Traces as the parts of a turn use them: the protocols, the trace of the turn that runs, and the grammar of `traceparent`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, TypeVar

from .spans import SpanKind

T = TypeVar("T")

AttributeValue: TypeAlias = str | bool | int | list[str]

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def read_traceparent(value: object) -> str:
    """Return a `traceparent` as it is; "" for all that does not keep to the grammar of its version 00.

    W3C Trace Context, 3.2. A later version may be longer, and is not read.
    """
    return value if isinstance(value, str) and len(value) == 55 and _TRACEPARENT.fullmatch(value) else ""


class TraceSpan(Protocol):
    """A span that has begun."""

    @property
    def traceparent(self) -> str:
        """The context of the span, as a request carries it; "" if there is none."""
        ...

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set attributes."""
        ...

    def set_text(self, name: str, make_text: Callable[[], Any]) -> None:
        """Set an attribute with what people, agents or models wrote, if that is configured.

        `make_text` returns a text, or a value that is written as JSON. It is not called otherwise.
        """
        ...

    def fail(self, error_type: str, description: str = "") -> None:
        """Give the span the status of an error. The texts must not quote a person."""
        ...

    def end(self) -> None:
        """End the span. Further calls do nothing."""
        ...


class TurnTrace(Protocol):
    """The trace of one turn. Its spans are children of the span in which the task is, by default that of the turn."""

    @property
    def trace_id(self) -> str:
        """The id of the trace: 32 hexadecimal digits; "" if there is none."""
        ...

    @property
    def turn_span(self) -> TraceSpan:
        """The span of the turn."""
        ...

    def begin(self, name: str, kind: SpanKind, attributes: Mapping[str, AttributeValue]) -> TraceSpan:
        """Begin a span, which the caller ends. The spans of the task do not become its children."""
        ...

    def run(self, name: str, kind: SpanKind, attributes: Mapping[str, AttributeValue]) -> AbstractContextManager[TraceSpan]:
        """Return a context manager with a span around its block. It fails with the type of an exception that leaves it."""
        ...

    def bind(self, function: Callable[..., T]) -> Callable[..., T]:
        """Return a function that runs in the context of this task, wherever it is called."""
        ...


class Tracing(Protocol):
    """The traces of a platform."""

    def begin(self, name: str, kind: SpanKind, attributes: Mapping[str, AttributeValue], parent: str) -> TraceSpan:
        """Begin a span below `parent`, a `traceparent`; "" begins a trace. The caller ends it."""
        ...

    def turn(self, name: str, attributes: Mapping[str, AttributeValue], parent: str) -> AbstractContextManager[TraceSpan]:
        """Return a context manager with the span of a turn around its block, in which `TURN_TRACE` is set."""
        ...


TURN_TRACE: ContextVar[TurnTrace | None] = ContextVar("turn_trace", default=None)
"""The trace of the turn that runs in this task; None without tracing."""
