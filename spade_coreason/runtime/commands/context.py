"""The call of a command: who calls it with which values. What it does to the agent and its data it does by operations."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from ...contracts import Agent
from ...domain.forms.commands import Command
from ...domain.policy import Rules
from ...operations.definition import Actor, Arguments, Call, CallerKind, Operation
from ...storage import StoredConversation
from ..conversations.conversation_loader import ConversationLoader
from ..files import Files
from ..mailboxes.mailboxes import Mailboxes
from ..mailboxes.withdrawal import Withdrawal
from .agent_host import AgentHost

A = TypeVar("A", bound=Arguments)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContext:
    """The parts of one agent, as its commands see them."""

    agent: Agent
    operators: frozenset[str]
    """The bare JIDs of its operators."""
    rules: Rules
    shows_thoughts: bool
    """True if thoughts are shown to people who have not chosen."""
    zone: str
    """The time zone of people who have not chosen."""
    prefixes: tuple[str, ...]
    """The characters that a command may begin with."""
    approvals_page: str
    """The address of the page if approvals are decided only there; "" if by chat too."""
    clock: Callable[[], datetime]
    mailboxes: Mailboxes
    withdrawal: Withdrawal
    erased_people: Container[str]
    """The people (bare JIDs) whose data are being deleted."""
    loader: ConversationLoader
    files: Files
    host: AgentHost
    """The agent as operations see it."""

    @property
    def jid(self) -> str:
        """The bare JID of the agent."""
        return self.host.agent

    async def perform(self, owner: str, operation: Operation[A, R], arguments: A) -> R:
        """Perform an operation for a person (a bare JID), who has the rights of an operator if they are one.

        Raise ConfigError for arguments that match nothing, StoreError, and ForbiddenError.
        """
        is_operator = owner in self.operators and CallerKind.OPERATOR in operation.callers
        actor = Actor(CallerKind.OPERATOR if is_operator else CallerKind.PERSON, owner, self.jid)
        return await operation(Call(self.host, actor), arguments)


class Invocation(NamedTuple):
    """One call of a command.

    `owner` is the bare JID of the person, as set by the server. `record` is the conversation that the command is about;
    None if the person has none yet.
    """

    context: CommandContext
    owner: str
    record: StoredConversation | None
    values: Mapping[str, Any]
    commands: tuple[Command, ...]
    """All commands that the person may run."""
    is_from_program: bool = False
    """True if a program sent it, such as `chat`."""

    @property
    def is_operator(self) -> bool:
        """True if the person is an operator of the agent."""
        return self.owner in self.context.operators

    async def perform(self, operation: Operation[A, R], arguments: A) -> R:
        """Perform an operation for the person, see `CommandContext.perform`."""
        return await self.context.perform(self.owner, operation, arguments)
