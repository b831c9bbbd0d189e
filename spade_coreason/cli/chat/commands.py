"""What may be typed behind a slash in a chat: no I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..console import one_line
from ..wrapping import IncrementalWrapper, wrap_hanging
from .roster import ChatRoster

INDENT = "  "
CHAT_COMMANDS = ("/agents", "/exit", "/help", "/quit", "/to")
_QUIT_COMMANDS = ("/exit", "/quit")


def is_command(text: str) -> bool:
    """Whether a line is a command, and no text; two slashes are a text that begins with one."""
    return text.startswith("/") and not text.startswith("//")


def is_chat_command(text: str) -> bool:
    """Whether a command is for the chat; others are for the agent."""
    return text == "/" or text.split(None, 1)[0].lower() in CHAT_COMMANDS


def parse_commands(help_text: str) -> dict[str, str]:
    """The commands that the help of an agent names, and what each does."""
    return dict(re.findall(r"^(/[a-z][a-z0-9-]*(?: me)?)   (.*)$", help_text, re.M))


def is_quit_command(text: str) -> bool:
    """Whether a line ends the chat."""
    return text.lower() in _QUIT_COMMANDS


def complete(line: str, roster: ChatRoster) -> list[str]:
    """The words that may stand where the last word of the line stands."""
    command, space, name = line.partition(" ")
    if not space:
        known = sorted({*CHAT_COMMANDS, *(name.split()[0] for name in roster.commands)})
        return [name for name in known if name.startswith(command.lower())]
    if command.lower() == "/to":
        return [known for known in roster.names if known.startswith(name.lstrip().lower())]
    return []


def run_command(text: str, roster: ChatRoster, width: int | None) -> str:
    """Does what a command for the chat says; what to show for it."""
    name, _, rest = text.partition(" ")
    match name.lower():
        case "/agents":
            return render_columns(roster.named_descriptions, width)
        case "/to":
            return _switch_agent(rest.strip(), roster, width)
        case _:
            return "\n".join(_help_lines(roster, width))


def wrap_notice(text: str, width: int | None) -> str:
    """What the chat itself says, as wide as the terminal."""
    wrapped = IncrementalWrapper(lambda: width, INDENT)
    return wrapped.feed(one_line(text, 10_000)) + wrapped.end()


def render_columns(
    descriptions: Sequence[tuple[str, str]], width: int | None, first_indent: str = INDENT, further_indent: str = INDENT
) -> str:
    """Names and what they do, a line each, behind the beginnings of the first line and of further ones."""
    column = max(len(name) for name, _ in descriptions)
    return "\n".join(
        wrap_hanging(f"{further_indent if number else first_indent}{name:<{column}}   ", one_line(description, 10_000), width)
        for number, (name, description) in enumerate(descriptions)
    )


def _switch_agent(name: str, roster: ChatRoster, width: int | None) -> str:
    if name and roster.switch_to(name):
        return ""
    there = f"there {'is' if len(roster.names) == 1 else 'are'} {', '.join(roster.names)}."
    return wrap_notice(f"There is no agent {name}; {there}" if name else f"/to NAME goes to an agent; {there}", width)


def _help_lines(roster: ChatRoster, width: int | None) -> list[str]:
    several = len(roster.names) > 1
    lines = [
        "What you type goes to the agent before the ▸.",
        "Arrow up brings back what you typed. Alt-Enter begins a new line.",
        "Ctrl-C takes back what you asked, while the answer is not whole.",
        *(["Tab changes the agent, /to NAME goes to one."] if several else []),
        f"/agents shows {'them all, and what they do' if several else 'what it does'}.",
        "Behind a / Tab completes. A text that begins with / is written //.",
        "/quit or Ctrl-D leaves.",
    ]
    help_ = [wrap_notice(line, width) for line in lines]
    known = [(name, what) for name, what in roster.commands.items() if name != "/help"]
    return [*help_, wrap_notice("The agent knows:", width), render_columns(known, width)] if known else help_
