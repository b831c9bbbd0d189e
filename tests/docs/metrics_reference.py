"""The metrics as tables: the name, the kind, the labels and the meaning of each, and the values of labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spade_coreason.app.metrics.definitions import (
    GROUPS,
    OUTCOMES,
    REASONS,
    REDELIVERIES,
    REDELIVERY_KINDS,
    REFUSALS,
    REQUESTS,
    MetricDefinition,
)


def to_markdown() -> str:
    """Return the tables of docs/reference/metrics.md."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for heading, metrics in GROUPS.items():
        yield from (f"## {heading}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|")
        yield from map(_row, metrics)
        yield ""
    yield from ("## Values of labels", "")
    yield from _values(REQUESTS, "outcome", OUTCOMES)
    yield from _values(REFUSALS, "reason", REASONS)
    yield from _values(REDELIVERIES, "kind", REDELIVERY_KINDS)


def _row(metric: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.shown_name}` | {metric.kind} | {labels} | {metric.meaning} |"


def _values(metric: MetricDefinition, label: str, meanings: Mapping[str, str]) -> Iterator[str]:
    yield from (f"| `{label}` of `{metric.shown_name}` | meaning |", "|---|---|")
    yield from (f"| `{value}` | {meaning} |" for value, meaning in meanings.items())
    yield ""
