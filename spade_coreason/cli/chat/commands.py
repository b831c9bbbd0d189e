"""The slash commands of a chat: no I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..terminal.console import one_line
from ..terminal.wrapping import IncrementalWrapper, wrap_hanging
from .roster import ChatRoster

INDENT = "  "
CHAT_COMMANDS = ("/agents", "/exit", "/help", "/quit", "/to")
_QUIT_COMMANDS = ("/exit", "/quit")


def is_command(text: str) -> bool:
    """Return True if a line is a command; two slashes start a text that begins with one slash."""
    return text.startswith("/") and not text.startswith("//")


def is_chat_command(text: str) -> bool:
    """Return True if a command is for the chat; other commands are for the agent."""
    return text == "/" or text.split(None, 1)[0].lower() in CHAT_COMMANDS


def parse_commands(help_text: str) -> dict[str, str]:
    """Return the commands in the help text of an agent, each with its description."""
    return dict(re.findall(r"^(/[a-z][a-z0-9-]*(?: me)?)   (.*)$", help_text, re.M))


def is_quit_command(text: str) -> bool:
    """Return True if a line ends the chat."""
    return text.lower() in _QUIT_COMMANDS


def complete(line: str, roster: ChatRoster) -> list[str]:
    """List the words that can replace the last word of the line."""
    command, space, name = line.partition(" ")
    if not space:
        known = sorted({*CHAT_COMMANDS, *(name.split()[0] for name in roster.commands)})
        return [name for name in known if name.startswith(command.lower())]
    if command.lower() == "/to":
        return [known for known in roster.names if known.startswith(name.lstrip().lower())]
    return []


def run_command(text: str, roster: ChatRoster, width: int | None) -> str:
    """Run a command for the chat and return the text to show."""
    name, _, rest = text.partition(" ")
    match name.lower():
        case "/agents":
            return render_columns(roster.named_descriptions, width)
        case "/to":
            return _switch_agent(rest.strip(), roster, width)
        case _:
            return "\n".join(_help_lines(roster, width))


def wrap_notice(text: str, width: int | None) -> str:
    """Wrap a notice of the chat to the width of the terminal."""
    wrapped = IncrementalWrapper(lambda: width, INDENT)
    return wrapped.feed(one_line(text, 10_000)) + wrapped.end()


def render_columns(
    descriptions: Sequence[tuple[str, str]], width: int | None, first_indent: str = INDENT, further_indent: str = INDENT
) -> str:
    """Format names and descriptions, a line each, with an indent for the first line and one for the others."""
    column = max(len(name) for name, _ in descriptions)
    return "\n".join(
        wrap_hanging(f"{further_indent if number else first_indent}{name:<{column}}   ", one_line(description, 10_000), width)
        for number, (name, description) in enumerate(descriptions)
    )


def _switch_agent(name: str, roster: ChatRoster, width: int | None) -> str:
    if name and roster.switch_to(name):
        return ""
    known_names = f"there {'is' if len(roster.names) == 1 else 'are'} {', '.join(roster.names)}."
    return wrap_notice(
        f"There is no agent {name}; {known_names}" if name else f"/to NAME switches to an agent; {known_names}", width
    )


def _help_lines(roster: ChatRoster, width: int | None) -> list[str]:
    has_several = len(roster.names) > 1
    lines = [
        "Your messages go to the agent named before the ▸.",
        "Arrow up recalls earlier messages. Alt-Enter starts a new line.",
        "Ctrl-C cancels your request while the agent answers.",
        *(["Tab switches to the next agent, /to NAME to a certain one."] if has_several else []),
        f"/agents shows {'them all, and what they do' if has_several else 'what it does'}.",
        "Tab completes commands after a /. Use // to send a text that begins with /.",
        "/quit or Ctrl-D quits.",
    ]
    help_ = [wrap_notice(line, width) for line in lines]
    known = [(name, description) for name, description in roster.commands.items() if name != "/help"]
    return [*help_, wrap_notice("Commands of the agent:", width), render_columns(known, width)] if known else help_
