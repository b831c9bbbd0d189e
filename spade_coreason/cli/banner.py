"""The lines above a running platform or a chat: server, agents, language model, guest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prompt_toolkit.utils import get_cwidth

from .chat.commands import render_columns
from .console import paint, terminal_width
from .wrapping import wrap_hanging

if TYPE_CHECKING:
    from ..app import Platform

_COLUMN = 14


def print_agents(agents: Sequence[tuple[str, str]]) -> None:
    """JIDs and descriptions, a line each."""
    title = "Agents"
    lines = render_columns(agents, terminal_width(), f"{title:<{_COLUMN}}", " " * _COLUMN)
    print(f"{paint(title, 'bold')}{lines.removeprefix(title)}", flush=True)


def print_model(line: str) -> None:
    """What answers as a language model; nothing where there is none to speak of."""
    if line:
        print(
            wrap_hanging(f"{'Model':<{_COLUMN}}", line, terminal_width()).replace("Model", paint("Model", "bold"), 1),
            flush=True,
        )


def print_guest(jid: str, agents: int) -> None:
    """Who talks with that many agents, and the keys for it: in one line, or in two where that is too long."""
    who, keys = (
        f"{'You are':<{_COLUMN}}{jid}.",
        f"{'Tab changes the agent, ' if agents > 1 else ''}/help shows more, Ctrl-D leaves.",
    )
    width = terminal_width()
    fits = width is None or get_cwidth(f"{who}  {keys}") < width
    print(f"{who}  {keys}\n" if fits else f"{who}\n{wrap_hanging(' ' * _COLUMN, keys, width)}\n", flush=True)


def print_platform(platform: Platform) -> None:
    """The server and the agents, a line each."""
    print(f"{paint('XMPP server', 'bold')}   {platform.server_line}")
    if platform.agent_descriptions:
        print_agents(platform.agent_descriptions)
    sys.stdout.flush()
