"""Bar charts of the benchmarks, as SVG. `docs/assets/benchmarks.json` has the figures, the machine and the date."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

FIGURES = "docs/assets/benchmarks.json"
SPEED, MEMORY = "docs/assets/benchmark-speed.svg", "docs/assets/benchmark-memory.svg"

_WIDTH, _ROW, _BAR = 760, 22, 14
_CHARACTER = 7.6
"""At least the width of a character of a label."""
_COLOURS = {"slixmpp": "#8a8f98", "SPADE": "#c77d2b", "hosted": "#3f51b5"}
_RATIOS = (
    ("answers_ratio", "answers a second, 64 messages in flight (more is better)"),
    ("cpu_ratio", "CPU of an answer (less is better)"),
    ("p50_ratio", "median time, one message in flight (less is better)"),
)
_NAMES = {"hosted": "spade_coreason", "prosody": "Prosody"}

Row = tuple[str, float, str, str]
"""A bar: its name, its length, its label and its colour."""


def keep(measured: Path, root: Path) -> None:
    """Keep the figures of `python -m benchmarks --json` without its single rounds."""
    figures = json.loads(measured.read_text(encoding="utf-8"))
    for part in figures["speed"].values():
        del part["rounds"]
    kept = {name: figures[name] for name in ("made", "machine", "load", "speed", "memory") if name in figures}
    (root / FIGURES).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def draw_all(root: Path) -> list[str]:
    """Draw what there are figures of, and return the pictures."""
    figures = json.loads((root / FIGURES).read_text(encoding="utf-8"))
    pictures = []
    if figures["speed"]:
        (root / SPEED).write_text(draw_speed(figures), encoding="utf-8")
        pictures.append(SPEED)
    if figures.get("memory", {}).get("peer_us"):
        (root / MEMORY).write_text(draw_memory(figures), encoding="utf-8")
        pictures.append(MEMORY)
    return pictures


def draw_speed(figures: Mapping[str, Any]) -> str:
    """Draw the echo agents on each server as ratios to slixmpp."""
    groups = []
    for key, title in _RATIOS:
        rows = [
            (
                f"{_NAMES.get(kind, kind)}, {_NAMES.get(server, server)}",
                part["measured"][kind][key],
                f"{part['measured'][kind][key]:.2f}",
                colour,
            )
            for server, part in figures["speed"].items()
            for kind, colour in _COLOURS.items()
        ]
        groups.append((title, rows))
    return _draw("Echo agents beside slixmpp, which is 1", groups, _source(figures))


def draw_memory(figures: Mapping[str, Any]) -> str:
    """Draw how many times faster than spade_llm each way to add to an interaction memory is."""
    memory = figures["memory"]
    rows: list[Row] = []
    for way, by_size in memory["add_us"].items():
        size = max(by_size, key=int)
        times = memory["peer_us"] / by_size[size]
        rows.append((way, times, f"{times:,.0f}", _COLOURS["hosted"]))
    group = ("times as fast as spade_llm's addition at 10,000 entries, which never syncs (more is better)", rows)
    return _draw("Adding to an interaction memory of 100,000 entries", [group], _source(figures))


def _source(figures: Mapping[str, Any]) -> str:
    made, machine = figures["made"], figures["machine"]
    return f"{made['date']}, commit {made['commit']}, {machine['cores']} cores of {machine['cpu']}, Python {machine['python']}"


def _draw(title: str, groups: Sequence[tuple[str, Sequence[Row]]], source: str) -> str:
    left = 30 + _CHARACTER * max(len(label) for _, rows in groups for label, *_ in rows)
    parts, y = [_text(20, 32, title, "b")], 48
    for name, rows in groups:
        parts.append(_text(20, y + 16, name))
        y += 28
        scale = (_WIDTH - left - 80) / max(1.0, *(value for _, value, _, _ in rows))
        for label, value, shown, colour in rows:
            middle = y + _ROW / 2 + 4
            parts.append(_text(left - 10, middle, label, "e"))
            parts.append(
                f'<rect x="{left:g}" y="{y + (_ROW - _BAR) / 2:g}" width="{value * scale:.1f}" height="{_BAR}" rx="2" '
                f'fill="{colour}"/>'
            )
            parts.append(_text(left + value * scale + 8, middle, shown))
            y += _ROW
        y += 14
    parts.append(_text(20, y + 14, source, "s"))
    height = y + 30
    style = (
        "text{font:13px system-ui,sans-serif;fill:#24292f}.b{font-size:16px;font-weight:600}.e{text-anchor:end}"
        ".s{font-size:11px;fill:#57606a}"
    )
    # A card of its own colour: readable on a light page and on a dark one.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" height="{height:g}" '
        f'role="img"><title>{escape(title)}</title><style>{style}</style>'
        f'<rect width="100%" height="100%" rx="6" fill="#f6f8fa"/>{"".join(parts)}</svg>\n'
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.5g}" y="{y:.5g}"{attribute}>{escape(text)}</text>'
