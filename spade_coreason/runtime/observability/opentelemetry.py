"""Traces by OpenTelemetry. Only this module imports it, and only a platform with `tracing.enabled` imports this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from opentelemetry import context as contexts, trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic_core import to_json

from ..._version import __version__
from ...domain.observability.spans import ERROR_TYPE, SpanKind
from ...domain.observability.tracing import TURN_TRACE, AttributeValue, TraceSpan
from ...domain.texts.text import replace_lone_surrogates

T = TypeVar("T")

_MAX_TEXT_CHARACTERS = 16_384
_TRACEPARENT = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()
_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}


class OpenTelemetryTracing:
    """The traces of a platform (`Tracing`). With `takes_texts`, spans have what was said."""

    def __init__(self, *, takes_texts: bool) -> None:
        self.takes_texts = takes_texts
        self._tracer = trace.get_tracer("spade_coreason", __version__)

    @property
    def has_sdk(self) -> bool:
        """True if the operator has chosen an SDK. Without one, no span is recorded."""
        return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    def begin(self, name: str, kind: SpanKind, attributes: Mapping[str, AttributeValue], parent: str) -> TraceSpan:
        return self.begin_in(_read_context(parent), name, kind, attributes)

    def begin_in(
        self, context: Context | None, name: str, kind: SpanKind, attributes: Mapping[str, AttributeValue]
    ) -> _OpenTelemetrySpan:
        """Begin a span below that of a context, by default the current one."""
        span = self._tracer.start_span(
            name,
            context,
            _KINDS[kind],
            attributes,
            record_exception=False,  # its text may quote a person
            set_status_on_exception=False,
        )
        return _OpenTelemetrySpan(span, takes_texts=self.takes_texts)

    @contextmanager
    def turn(self, name: str, attributes: Mapping[str, AttributeValue], parent: str) -> Iterator[TraceSpan]:
        # Not below the current span: a request from this process is received in the turn of the agent that asks.
        context = _read_context(parent)
        span = self.begin_in(context, name, "internal", attributes)
        token = TURN_TRACE.set(_OpenTelemetryTurnTrace(self, span))
        try:
            with span.make_current(context):
                yield span
        finally:
            TURN_TRACE.reset(token)


def _read_context(traceparent: str) -> Context:
    return _PROPAGATOR.extract({_TRACEPARENT: traceparent}, Context()) if traceparent else Context()


class _OpenTelemetrySpan:
    """A span (`TraceSpan`)."""

    __slots__ = ("_span", "_takes_texts")

    def __init__(self, span: trace.Span, *, takes_texts: bool) -> None:
        self._span = span
        self._takes_texts = takes_texts and span.is_recording()

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, self.as_context())
        return carrier.get(_TRACEPARENT, "")

    @property
    def context(self) -> trace.SpanContext:
        """The ids of the span and its trace."""
        return self._span.get_span_context()

    def as_context(self) -> Context:
        """Return a context with this span alone."""
        return trace.set_span_in_context(self._span, Context())

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        self._span.set_attributes(attributes)

    def set_text(self, name: str, make_text: Callable[[], Any]) -> None:
        if self._takes_texts:
            text = replace_lone_surrogates(make_text())
            if not isinstance(text, str):
                text = to_json(text, fallback=str, inf_nan_mode="strings").decode()
            self._span.set_attribute(name, text[:_MAX_TEXT_CHARACTERS])

    def fail(self, error_type: str, description: str = "") -> None:
        self._span.set_attribute(ERROR_TYPE, error_type)
        self._span.set_status(trace.StatusCode.ERROR, description or None)

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()

    @contextmanager
    def make_current(self, context: Context | None = None) -> Iterator[None]:
        """Let the spans of a block be below this one, and end it after the block."""
        token = contexts.attach(trace.set_span_in_context(self._span, context))
        try:
            yield
        except BaseException as error:
            self.fail(type(error).__name__)
            raise
        finally:
            contexts.detach(token)
            self.end()


class _OpenTelemetryTurnTrace:
    """The trace of a turn (`TurnTrace`)."""

    __slots__ = ("_tracing", "turn_span")

    def __init__(self, tracing: OpenTelemetryTracing, turn_span: _OpenTelemetrySpan) -> None:
        self._tracing = tracing
        self.turn_span = turn_span

    @property
    def trace_id(self) -> str:
        context = self.turn_span.context
        return trace.format_trace_id(context.trace_id) if context.is_valid else ""

    def begin(self, name: str, kind: SpanKind, attributes: Mapping[str, AttributeValue]) -> TraceSpan:
        return self._tracing.begin_in(self._find_context(), name, kind, attributes)

    @contextmanager
    def run(self, name: str, kind: SpanKind, attributes: Mapping[str, AttributeValue]) -> Iterator[TraceSpan]:
        span = self._tracing.begin_in(self._find_context(), name, kind, attributes)
        with span.make_current():
            yield span

    def _find_context(self) -> Context | None:
        """Return None, which means the current context, unless that is not in this trace: then the context of the turn."""
        current = trace.get_current_span().get_span_context()
        return None if current.trace_id == self.turn_span.context.trace_id else self.turn_span.as_context()

    def bind(self, function: Callable[..., T]) -> Callable[..., T]:
        return partial(copy_context().run, function)
