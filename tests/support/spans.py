"""The spans of a test in memory, and of other processes in a file. A process has one provider, which all its tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.line_log import append_line, read_lines


class RecordedSpans:
    """The spans that have ended since it was made."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def ended(self) -> Sequence[ReadableSpan]:
        """All spans of the platform, in the order of their ends. The packages of MCP and A2A make spans of their own."""
        return [
            span
            for span in self._exporter.get_finished_spans()
            if span.instrumentation_scope is not None and span.instrumentation_scope.name == "spade_coreason"
        ]

    def of(self, name: str) -> list[ReadableSpan]:
        """Return the spans with a name, or whose name begins with it and a space."""
        return [span for span in self.ended if span.name == name or span.name.startswith(f"{name} ")]

    def get(self, name: str) -> ReadableSpan:
        """Return the only span with a name."""
        [span] = self.of(name)
        return span

    def path(self, span: ReadableSpan) -> list[str]:
        """Return the names from the first span of a trace to this one."""
        by_id = {each.context.span_id: each for each in self.ended}
        names = [span.name]
        while span.parent is not None:
            span = by_id[span.parent.span_id]
            names.insert(0, span.name)
        return names

    @property
    def trace_ids(self) -> set[str]:
        """The ids of all traces."""
        return {f"{span.context.trace_id:032x}" for span in self.ended}

    @property
    def texts(self) -> str:
        """Everything that the spans say, as one text."""
        return "\n".join(span.to_json() for span in self.ended)


@cache
def _get_exporter() -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@contextmanager
def record_spans() -> Iterator[RecordedSpans]:
    """Record the spans of this process."""
    exporter = _get_exporter()
    exporter.clear()
    yield RecordedSpans(exporter)


def attribute(span: ReadableSpan, name: str) -> object:
    """Return an attribute of a span; None without it."""
    return (span.attributes or {}).get(name)


class WrittenSpan(NamedTuple):
    """A span as a process has written it. The ids are hexadecimal; `parent` is "" at the begin of a trace."""

    name: str
    trace: str
    ident: str
    parent: str
    pid: int


class _FileExporter(SpanExporter):
    """Writes the spans of the platform into a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            if span.instrumentation_scope is not None and span.instrumentation_scope.name == "spade_coreason":
                parent = "" if span.parent is None else f"{span.parent.span_id:016x}"
                ids = f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"
                append_line(self._file, *WrittenSpan(span.name, *ids, parent, os.getpid()))
        return SpanExportResult.SUCCESS


@cache
def write_spans(file: Path) -> None:
    """Let this process append its spans to a file from now on."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_FileExporter(file)))
    trace.set_tracer_provider(provider)


def read_spans(file: Path, trace_id: str) -> list[WrittenSpan]:
    """Return the spans of a trace that processes have written, in the order of their ends."""
    return [span for line in read_lines(file) if (span := WrittenSpan(*line)).trace == trace_id]
