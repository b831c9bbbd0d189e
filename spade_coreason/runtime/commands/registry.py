"""The commands of the platform and of an agent, as texts and as ad-hoc commands (XEP-0050)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from ...contracts import Agent
from ...domain.forms.command_parser import DEFAULT_PREFIXES, ParsedCommand, parse_command, remove_escape
from ...domain.forms.commands import Command, CommandResult
from ...domain.forms.fields import FieldError
from ...domain.messages import InboundRequest
from ...domain.texts.translation import translate
from ...exceptions import ConfigError
from ...storage import StoredConversation
from .builtin import COMMANDS_FOR_EVERYBODY, COMMANDS_FOR_OPERATORS
from .context import CommandContext, Invocation
from .decorator import AgentCommand, commands_of

_YIELDING_NAMES = {"reminders", "answer", "approve", "deny", "web"}
"""The names that an agent may take: commands of a later version must not stop an agent that has one of the same name."""
_PLATFORM_NAMES = {command.name.split()[0] for command in (*COMMANDS_FOR_EVERYBODY, *COMMANDS_FOR_OPERATORS)} - _YIELDING_NAMES


class Commands:
    """The commands of one agent: the platform's if enabled, those for operators if there are any, and its own.

    `prefixes` are the characters that a command may begin with. With `has_page`, /web gives a link to the page in the browser.
    ConfigError if a name of its own commands is taken.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        is_enabled: bool,
        operators: Iterable[str],
        prefixes: tuple[str, ...] = DEFAULT_PREFIXES,
        has_page: bool = False,
    ) -> None:
        self.prefixes = prefixes
        self._operators = frozenset(operators)
        self.agent_commands = {agent_command.name: agent_command for agent_command in _agent_commands(agent)}
        platform = (*COMMANDS_FOR_EVERYBODY, *(COMMANDS_FOR_OPERATORS if self._operators else ())) if is_enabled else ()
        self.all: tuple[Command, ...] = (
            *(
                command
                for command in platform
                if command.name.split()[0] not in self.agent_commands and (has_page or command.name != "web")
            ),
            *(_as_command(agent_command) for agent_command in self.agent_commands.values()),
        )

    def parse(self, text: str, *, is_in_room: bool = False) -> ParsedCommand | str:
        """Parse a text as a command with its values. If it is for the agent, return its text for it, see `remove_escape`.

        In a room only the agent's own commands are commands: with the others, any occupant could stop another's request.
        """
        if not text.lstrip().startswith(self.prefixes):
            return text
        commands = [command for command in self.all if command.name in self.agent_commands] if is_in_room else self.all
        return parse_command(text, commands, self.prefixes) or remove_escape(text, commands, self.prefixes)

    def parse_request(self, incoming: InboundRequest) -> tuple[InboundRequest, ParsedCommand | str | None, bool]:
        """Parse the command that a request may be.

        Return the request as the agent gets it, the command or None, and True if the agent handles the request.
        """
        text = str(incoming.payload.get("query", ""))
        kind = incoming.kind
        if kind.is_human and not text.lstrip().startswith(self.prefixes):
            return incoming, None, True
        if incoming.may_be_command or (kind.is_room and not kind.is_due):
            parsed = self.parse(text, is_in_room=kind.is_room)
            if isinstance(parsed, ParsedCommand):
                return incoming, parsed, parsed.command.name in self.agent_commands
            if kind.is_program and not kind.is_page:
                return incoming, parsed, True
            if parsed is not text:
                return replace(incoming, payload={**incoming.payload, "query": parsed}), None, True
        return incoming, None, True

    def suggest(self, text: str, owner: str) -> str | None:
        """Suggest the command that a misspelt one probably meant, such as `/history`. Only those that `owner` may run."""
        names = {command.text.split()[0] for command in self.available_to(owner)}
        return next(iter(get_close_matches(text.split()[0].lower(), names, n=1, cutoff=0.8)), None)

    def available_to(self, owner: str) -> tuple[Command, ...]:
        """Return the commands that a person (a bare JID) may run."""
        return tuple(command for command in self.all if self.may_run(owner, command))

    def describe(self, owner: str) -> list[tuple[str, str]]:
        """Return the texts of the commands that a person (a bare JID) may run, each with what it does in their language."""
        return [(command.text, command.menu_label) for command in self.available_to(owner)]

    def may_run(self, owner: str, command: Command) -> bool:
        """True if a person (a bare JID) may run a command."""
        return command.audience == "everybody" or owner in self._operators

    async def run(
        self,
        command: Command,
        values: Mapping[str, Any],
        context: CommandContext,
        owner: str,
        record: StoredConversation | None,
        *,
        is_from_program: bool = False,
    ) -> CommandResult:
        """Run a command of a person (a bare JID) for one of their conversations. FieldError for an invalid value."""
        if not self.may_run(owner, command):
            return CommandResult(translate("{command} is for my operators only.", command=command.text), is_error=True)
        if command.is_personal and "/" in owner:  # an occupant of a room that does not show who they are
            name = command.text.split()[0]
            problem = translate("This room does not show me who you are. Send {command} to my own address.", command=name)
            return CommandResult(problem, is_error=True)
        invocation = Invocation(context, owner, record, values, self.available_to(owner), is_from_program)
        try:
            return await command.handler(invocation)
        except ConfigError as error:
            return CommandResult(error.problem, is_error=True)

    def make_invocation(self, context: CommandContext, owner: str, values: Mapping[str, Any]) -> Invocation:
        """Return the call of a command by a person (a bare JID) who fills in its form, with the values so far."""
        return Invocation(context, owner, None, values, self.available_to(owner))

    async def run_parsed(
        self,
        parsed: ParsedCommand,
        context: CommandContext,
        owner: str,
        record: StoredConversation,
        *,
        is_from_program: bool = False,
    ) -> CommandResult:
        """Run a command that was parsed from a text. The result reports an invalid value."""
        if parsed.values is None:
            may_run = self.may_run(owner, parsed.command)
            return (
                CommandResult(parsed.problem, choices=parsed.choices)
                if may_run
                else await self.run(parsed.command, {}, context, owner, record)
            )
        try:
            return await self.run(parsed.command, parsed.values, context, owner, record, is_from_program=is_from_program)
        except FieldError as error:
            return CommandResult(str(error), is_error=True)


def _agent_commands(agent: Agent) -> list[AgentCommand]:
    agent_commands = commands_of(agent)
    names = [agent_command.name for agent_command in agent_commands]
    for name in names:
        if name in _PLATFORM_NAMES or names.count(name) > 1:
            conflict = "the platform's" if name in _PLATFORM_NAMES else "there twice"
            raise ConfigError("", f'{type(agent).__name__}: the command "{name}" is {conflict}; give it another name')
    return agent_commands


def _as_command(agent_command: AgentCommand) -> Command:
    names = [(field.name.upper(), field.is_required) for field in agent_command.fields]
    usage = " ".join(name if is_required else f"[{name}]" for name, is_required in names)
    return Command(
        agent_command.name,
        agent_command.description,
        _run_agent_command,
        audience=agent_command.audience,
        subject="a conversation",
        fields=agent_command.fields,
        is_immediate=False,
        usage=usage,
    )


async def _run_agent_command(invocation: Invocation) -> CommandResult:
    raise AssertionError("the executor runs the agent's own commands as turns")
