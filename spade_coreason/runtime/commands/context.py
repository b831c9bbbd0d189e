"""The call of a command: who calls it with which values, and the parts of the agent that it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from ...contracts import Agent
from ...domain.conversation import Rules
from ...memory import AgentInteractionMemory
from ...storage import AgentRepository, StoredConversation
from ..agent_control import AgentControl
from ..files import Files
from ..intake.access_requests import AccessRequests
from ..intake.conversation_loader import ConversationLoader
from ..intake.mailboxes import Mailboxes
from ..intake.quota_limit import QuotaLimit
from .model import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContext:
    """The parts of one agent, as its commands see them."""

    agent: Agent
    repository: AgentRepository
    rules: Rules
    shows_thoughts: bool
    """True if thoughts are shown to people who have not chosen."""
    prefixes: tuple[str, ...]
    """The characters that a command may begin with."""
    clock: Callable[[], datetime]
    mailboxes: Mailboxes
    loader: ConversationLoader
    control: AgentControl
    files: Files
    quota_limit: QuotaLimit
    access_requests: AccessRequests
    """The requests for access that operators decide."""
    get_interaction_memory: Callable[[], AgentInteractionMemory] | None

    @property
    def interaction_memory(self) -> AgentInteractionMemory | None:
        """The agent's interaction memory; None without one."""
        return None if self.get_interaction_memory is None else self.get_interaction_memory()


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
        return self.owner in self.context.quota_limit.quotas.operators
