"""A turn as text: what was asked and what was answered."""

from __future__ import annotations

import json

from .contracts import Interaction


def asked_text(turn: Interaction) -> str:
    """What was asked; JSON where it is no question, "" of a summary, which nobody asked for."""
    if turn.input is None:
        return ""
    asked = turn.input.get("query") if isinstance(turn.input, dict) else None
    return asked if isinstance(asked, str) else json.dumps(turn.dump()["input"], ensure_ascii=False)


def answered_text(turn: Interaction) -> str:
    """The text of the answer."""
    return str(turn.output.get("text", ""))


def turn_text(turn: Interaction) -> str:
    """Both, one below the other."""
    return f"{asked_text(turn)}\n{answered_text(turn)}".strip()


def turn_lines(turn: Interaction) -> list[str]:
    """Both, each with who said it."""
    said = {"User": asked_text(turn), "Agent": answered_text(turn)}
    return [f"{who}: {text}" for who, text in said.items() if text.strip()]
