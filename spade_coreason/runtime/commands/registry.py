"""What people may ask of the platform, and an agent offers beside its answers: as texts, and as ad-hoc commands (XEP-0050)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from ...contracts import AgentInterface
from ...domain.forms import FieldError, Value
from ...exceptions import ConfigError
from ...storage import ConversationRow
from .builtin import EVERYBODY, OPERATORS
from .decorator import OwnCommand, commands_of
from .formatting import deleted
from .model import Asked, Command, House, Outcome
from .parser import Read, find, read, without_escape

__all__ = [
    "EVERYBODY",
    "OPERATORS",
    "Command",
    "Commands",
    "House",
    "Outcome",
    "Read",
    "deleted",
    "find",
    "read",
    "without_escape",
]

_PLATFORM = {command.name.split()[0] for command in (*EVERYBODY, *OPERATORS)}


class Commands:
    """The commands of one agent: those of the platform where they are on, those of operators where there are any, its own.

    ConfigError where one of its own has a name that is taken.
    """

    def __init__(self, agent: AgentInterface, *, are_on: bool, operators: Iterable[str]) -> None:
        self._operators = frozenset(operators)
        self.own = {own.name: own for own in _own(agent)}
        platform = (*EVERYBODY, *(OPERATORS if self._operators else ())) if are_on else ()
        self.all: tuple[Command, ...] = (*platform, *(_as_command(own) for own in self.own.values()))

    def find(self, text: str) -> Command | None:
        """The command that a text begins with; None if it is for the agent."""
        found = find(text, self.all)
        return None if found is None else found[0]

    def read(self, text: str) -> Read | str:
        """The command that a text is, with what it says; else what it says to the agent, see `without_escape`."""
        if not text.lstrip().startswith("/"):
            return text
        return read(text, self.all) or without_escape(text, self.all)

    def nearest(self, text: str, owner: str) -> str | None:
        """What a text that is no command probably meant: `/history`. Only of what somebody may run."""
        names = {command.text.split()[0] for command in self.of(owner)}
        return next(iter(get_close_matches(text.split()[0].lower(), names, n=1, cutoff=0.8)), None)

    def of(self, owner: str) -> tuple[Command, ...]:
        """Those that somebody (a bare JID) may run."""
        return tuple(command for command in self.all if self.may(owner, command))

    def may(self, owner: str, command: Command) -> bool:
        """Whether somebody may run a command."""
        return command.who == "everybody" or owner in self._operators

    async def do(
        self, command: Command, values: Mapping[str, Any], house: House, owner: str, row: ConversationRow | None
    ) -> Outcome:
        """What comes of a command of somebody (a bare JID) about a conversation of theirs; FieldError if it cannot be."""
        if not self.may(owner, command):
            return Outcome(f"{command.text} is for those who run me.", is_error=True)
        if command.is_personal and "/" in owner:  # an occupant of a room that does not show who they are
            problem = f"This room does not show me who you are. Send {command.text.split()[0]} to my own address."
            return Outcome(problem, is_error=True)
        return await command.do(Asked(house, owner, row, values, self.of(owner)))

    async def filled(self, command: Command, house: House, owner: str) -> dict[str, Value]:
        """What stands in the fields of a command's form already."""
        if command.filled is None:
            return {}
        return dict(await command.filled(Asked(house, owner, None, {}, self.of(owner))))

    async def do_read(self, said: Read, house: House, owner: str, row: ConversationRow) -> Outcome:
        """The same for a text."""
        if said.values is None:
            is_theirs = self.may(owner, said.command)
            return (
                Outcome(said.problem, choices=said.choices) if is_theirs else await self.do(said.command, {}, house, owner, row)
            )
        try:
            return await self.do(said.command, said.values, house, owner, row)
        except FieldError as error:
            return Outcome(str(error), is_error=True)


def _own(agent: AgentInterface) -> list[OwnCommand]:
    found = commands_of(agent)
    names = [own.name for own in found]
    for name in names:
        if name in _PLATFORM or names.count(name) > 1:
            whose = "the platform's" if name in _PLATFORM else "there twice"
            raise ConfigError("", f'{type(agent).__name__}: the command "{name}" is {whose}; give it another name')
    return found


def _as_command(own: OwnCommand) -> Command:
    names = [(field.name.upper(), field.is_required) for field in own.fields]
    usage = " ".join(name if is_required else f"[{name}]" for name, is_required in names)
    return Command(own.name, own.what, _run_own, about="a conversation", fields=own.fields, at_once=False, usage=usage)


async def _run_own(asked: Asked) -> Outcome:
    return Outcome("", "own")
