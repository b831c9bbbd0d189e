"""The figures that must not be exceeded (`figures.toml`), and the comparison of measurements with them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).with_name("figures.toml")
TOLERANCE = 0.01
"""The part of a figure by which a measurement may exceed it."""


def load_figures(file: Path = FIGURES) -> dict[str, int]:
    """Return the figures by name: the keys of their tables, joined by spaces. Each is its base and all its raises.

    ValueError for a raise that does not say what was bought for it, or exceeds the budget that this was given.
    """
    figures: dict[str, int] = {}
    _add_figures(figures, "", tomllib.loads(file.read_text(encoding="utf-8")))
    return figures


def _add_figures(figures: dict[str, int], name: str, table: Mapping[str, Any]) -> None:
    if "base" not in table:
        for key, inner in table.items():
            _add_figures(figures, f"{name} {key}".strip(), inner)
        return
    figures[name] = table["base"]
    for entry in table.get("raises", ()):
        if not str(entry.get("bought", "")).strip():
            raise ValueError(f"{name}: a raise does not say what was bought for it")
        if entry["by"] > entry.get("budget", 0):
            raise ValueError(f"{name}: the raise for {entry['bought']!r} exceeds its budget of {entry.get('budget', 0):,}")
        figures[name] += entry["by"]


def find_exceeded(measured: Mapping[str, float], figures: Mapping[str, int]) -> list[str]:
    """Return a line for each measurement that exceeds its figure by more than one per cent. One without a figure does not."""
    remedy = "make it cheaper, or say in benchmarks/figures.toml what was bought, within its budget"
    return [
        f"{name}: {value:,.0f} is more than {figures[name]:,}: {remedy}"
        for name, value in measured.items()
        if name in figures and value > figures[name] * (1 + TOLERANCE)
    ]
