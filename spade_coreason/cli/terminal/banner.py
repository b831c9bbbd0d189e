"""The lines printed before a platform runs or a chat starts: server, agents, language model, guest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...domain.texts.terminal_text import escape_label
from ..chat.commands import render_columns
from .console import paint, print_cleaned, print_line, terminal_width
from .wrapping import count_columns, wrap_hanging

if TYPE_CHECKING:
    from ...app import Platform

_COLUMN = 14


def print_agents(agents: Sequence[tuple[str, str]]) -> None:
    """Print JIDs and descriptions, a line each."""
    title = "Agents"
    labels = [(escape_label(jid), description) for jid, description in agents]
    lines = render_columns(labels, terminal_width(), f"{title:<{_COLUMN}}", " " * _COLUMN)
    print_cleaned(f"{paint(title, 'bold')}{lines.removeprefix(title)}")


def print_model(line: str) -> None:
    """Print which language model answers; nothing if the line is empty."""
    if line:
        wrapped = wrap_hanging(f"{'Model':<{_COLUMN}}", escape_label(line), terminal_width())
        print_cleaned(wrapped.replace("Model", paint("Model", "bold"), 1))


def print_guest(jid: str, agents: int) -> None:
    """Print the guest's JID and the keys of a chat with that many agents, in one line if it fits, else in two."""
    identity, key_hints = (
        f"{'You are':<{_COLUMN}}{escape_label(jid)}.",
        f"{'Tab switches agents, ' if agents > 1 else ''}/help shows more, Ctrl-D quits.",
    )
    width = terminal_width()
    fits = width is None or count_columns(f"{identity}  {key_hints}") < width
    print_cleaned(f"{identity}  {key_hints}\n" if fits else f"{identity}\n{wrap_hanging(' ' * _COLUMN, key_hints, width)}\n")


def print_platform(platform: Platform) -> None:
    """Print the server and the agents, a line each."""
    print_line(paint("XMPP server", "bold"), f"  {platform.server_description}")
    if platform.web_status is not None:
        print_line(paint("Doors", "bold"), f"        {platform.web_status}")
    if platform.settings.metrics is not None:
        print_line(paint("Metrics", "bold"), f"      {platform.settings.metrics.url}")
    if platform.agent_descriptions:
        print_agents(platform.agent_descriptions)
    sys.stdout.flush()
