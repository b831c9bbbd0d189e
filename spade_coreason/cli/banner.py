"""The lines printed before a platform runs or a chat starts: server, agents, language model, guest."""

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
    """Print JIDs and descriptions, a line each."""
    title = "Agents"
    lines = render_columns(agents, terminal_width(), f"{title:<{_COLUMN}}", " " * _COLUMN)
    print(f"{paint(title, 'bold')}{lines.removeprefix(title)}", flush=True)


def print_model(line: str) -> None:
    """Print which language model answers; nothing if the line is empty."""
    if line:
        print(
            wrap_hanging(f"{'Model':<{_COLUMN}}", line, terminal_width()).replace("Model", paint("Model", "bold"), 1),
            flush=True,
        )


def print_guest(jid: str, agents: int) -> None:
    """Print the guest's JID and the keys of a chat with that many agents, in one line if it fits, else in two."""
    identity, key_hints = (
        f"{'You are':<{_COLUMN}}{jid}.",
        f"{'Tab switches agents, ' if agents > 1 else ''}/help shows more, Ctrl-D quits.",
    )
    width = terminal_width()
    fits = width is None or get_cwidth(f"{identity}  {key_hints}") < width
    print(
        f"{identity}  {key_hints}\n" if fits else f"{identity}\n{wrap_hanging(' ' * _COLUMN, key_hints, width)}\n", flush=True
    )


def print_platform(platform: Platform) -> None:
    """Print the server and the agents, a line each."""
    print(f"{paint('XMPP server', 'bold')}   {platform.server_description}")
    if platform.agent_descriptions:
        print_agents(platform.agent_descriptions)
    sys.stdout.flush()
