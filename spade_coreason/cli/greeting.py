"""What stands above a chat: who is there, and who you are."""

from __future__ import annotations

from collections.abc import Sequence

from prompt_toolkit.utils import get_cwidth

from .console import paint, terminal_width
from .slash import columns
from .wrapping import hanging

_COLUMN = 14


def print_agents(agents: Sequence[tuple[str, str]]) -> None:
    """JIDs and descriptions, a line each."""
    title = "Agents"
    lines = columns(agents, terminal_width(), f"{title:<{_COLUMN}}", " " * _COLUMN)
    print(f"{paint(title, 'bold')}{lines.removeprefix(title)}", flush=True)


def print_model(line: str) -> None:
    """What answers as a language model; nothing where there is none to speak of."""
    if line:
        print(hanging(f"{'Model':<{_COLUMN}}", line, terminal_width()).replace("Model", paint("Model", "bold"), 1), flush=True)


def print_guest(jid: str, agents: int) -> None:
    """Who talks with that many agents, and the keys for it: in one line, or in two where that is too long."""
    who, keys = (
        f"{'You are':<{_COLUMN}}{jid}.",
        f"{'Tab changes the agent, ' if agents > 1 else ''}/help shows more, Ctrl-D leaves.",
    )
    width = terminal_width()
    fits = width is None or get_cwidth(f"{who}  {keys}") < width
    print(f"{who}  {keys}\n" if fits else f"{who}\n{hanging(' ' * _COLUMN, keys, width)}\n", flush=True)
