"""What may be typed behind a slash in a chat: no I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..console import one_line
from ..wrapping import Wrapped, hanging
from .roster import Company

INDENT = "  "
COMMANDS = ("/agents", "/exit", "/help", "/quit", "/to")
_LEAVE = ("/exit", "/quit")


def is_command(text: str) -> bool:
    """Whether a line is a command, and no text; two slashes are a text that begins with one."""
    return text.startswith("/") and not text.startswith("//")


def is_ours(text: str) -> bool:
    """Whether a command is for the chat; others are for the agent."""
    return text == "/" or text.split(None, 1)[0].lower() in COMMANDS


def commands_in(help_text: str) -> dict[str, str]:
    """The commands that the help of an agent names, and what each does."""
    return dict(re.findall(r"^(/[a-z][a-z0-9-]*(?: me)?)   (.*)$", help_text, re.M))


def is_leave(text: str) -> bool:
    """Whether a line ends the chat."""
    return text.lower() in _LEAVE


def completions(line: str, company: Company) -> list[str]:
    """The words that may stand where the last word of the line stands."""
    command, space, name = line.partition(" ")
    if not space:
        known = sorted({*COMMANDS, *(name.split()[0] for name in company.commands)})
        return [name for name in known if name.startswith(command.lower())]
    if command.lower() == "/to":
        return [known for known in company.names if known.startswith(name.lstrip().lower())]
    return []


def obey(text: str, company: Company, width: int | None) -> str:
    """Does what a command for the chat says; what to show for it."""
    name, _, rest = text.partition(" ")
    match name.lower():
        case "/agents":
            return columns(company.described, width)
        case "/to":
            return _go(rest.strip(), company, width)
        case _:
            return "\n".join(_help(company, width))


def shown(text: str, width: int | None) -> str:
    """What the chat itself says, as wide as the terminal."""
    wrapped = Wrapped(lambda: width, INDENT)
    return wrapped.feed(one_line(text, 10_000)) + wrapped.end()


def columns(described: Sequence[tuple[str, str]], width: int | None, begin: str = INDENT, further: str = INDENT) -> str:
    """Names and what they do, a line each, behind the beginnings of the first line and of further ones."""
    column = max(len(name) for name, _ in described)
    return "\n".join(
        hanging(f"{further if number else begin}{name:<{column}}   ", one_line(description, 10_000), width)
        for number, (name, description) in enumerate(described)
    )


def _go(name: str, company: Company, width: int | None) -> str:
    if name and company.go_to(name):
        return ""
    there = f"there {'is' if len(company.names) == 1 else 'are'} {', '.join(company.names)}."
    return shown(f"There is no agent {name}; {there}" if name else f"/to NAME goes to an agent; {there}", width)


def _help(company: Company, width: int | None) -> list[str]:
    several = len(company.names) > 1
    lines = [
        "What you type goes to the agent before the ▸.",
        "Arrow up brings back what you typed. Alt-Enter begins a new line.",
        "Ctrl-C takes back what you asked, while the answer is not whole.",
        *(["Tab changes the agent, /to NAME goes to one."] if several else []),
        f"/agents shows {'them all, and what they do' if several else 'what it does'}.",
        "Behind a / Tab completes. A text that begins with / is written //.",
        "/quit or Ctrl-D leaves.",
    ]
    help_ = [shown(line, width) for line in lines]
    known = [(name, what) for name, what in company.commands.items() if name != "/help"]
    return [*help_, shown("The agent knows:", width), columns(known, width)] if known else help_
