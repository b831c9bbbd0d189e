"""A command as values: its name, its fields, its audience and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from ...contracts import Agent
from ...domain.conversation import Rules
from ...domain.forms import Choice, Field, FieldValue
from ...domain.preferences import Preferences
from ...memory import AgentInteractionMemory
from ...storage import AgentRepository, StoredConversation
from ..access_requests import AccessRequests
from ..files import Files

Audience: TypeAlias = Literal["everybody", "operators"]
Subject: TypeAlias = Literal["the person", "a conversation", "any conversation"]
ResultKind: TypeAlias = Literal["answer", "new", "forget this", "forget me", "own"]

CONFIRMED = "sure"
"""The field that answers a question."""


class CommandContext(Protocol):
    """The agent and its runner, as commands see them."""

    agent: Agent
    repository: AgentRepository
    access_requests: AccessRequests | None
    """The requests for access that operators decide; None if there is no operator to ask."""

    @property
    def rules(self) -> Rules:
        """The rules of the agent's conversations."""
        ...

    @property
    def files(self) -> Files | None:
        """The connection to a server that stores files; None without one."""
        ...

    @property
    def interaction_memory(self) -> AgentInteractionMemory | None:
        """The agent's interaction memory; None without one."""
        ...

    @property
    def is_paused(self) -> bool:
        """True while no new turns start."""
        ...

    def now(self) -> datetime:
        """Return the current time."""
        ...

    def cancel_replies(self, owner: str) -> int:
        """Stop the agent's running turns for a person. Return their number."""
        ...

    async def get_preferences(self, owner: str) -> Preferences:
        """Return the preferences of a person."""
        ...

    async def set_preferences(self, owner: str, preferences: Preferences) -> None:
        """Store the preferences of a person."""
        ...

    async def end_conversation(self, conversation_id: str) -> bool:
        """End a conversation. Return False if it is not active."""
        ...

    async def reset_conversation(self, conversation_id: str) -> bool:
        """Start a new episode of a conversation. Return False if it does not exist."""
        ...

    def pause(self) -> None:
        """Start no new turns until `resume`."""
        ...

    def resume(self) -> None:
        """Start turns again after `pause`."""
        ...


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


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The reply to a command, and its effect on the conversation."""

    text: str
    kind: ResultKind = "answer"
    extra_texts: tuple[str, ...] = ()
    """Further messages, sent after `text`."""
    link: str | None = None
    choices: tuple[Choice, ...] = ()
    """The offered answers if `text` is a question (XEP-0439)."""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One command, for texts and for forms.

    If `subject` is a conversation and there are several, a form asks first which one is meant. In a text,
    "a conversation" is the one in which it is sent. `question` is asked before `handler` runs. `initial_values` returns
    the values that are already in the fields.
    """

    name: str
    description: str
    handler: Callable[[Invocation], Awaitable[CommandResult]]
    audience: Audience = "everybody"
    subject: Subject = "the person"
    fields: tuple[Field, ...] = ()
    question: str = ""
    is_personal: bool = False
    """True if it shows or deletes data about a person, who must be known by a JID of their own."""
    has_named_values: bool = False
    """True if its text is `name value`, for one of the fields."""
    is_immediate: bool = True
    """True if it may run beside a turn. Otherwise it waits until the conversation is between two turns."""
    usage: str = ""
    """An example of the text after the name, such as `50`, or the names of the values."""
    initial_values: Callable[[Invocation], Awaitable[Mapping[str, FieldValue]]] | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """The command as a person writes it."""
        return f"/{self.name}"

    @property
    def node(self) -> str:
        """The name of the command in XEP-0050."""
        return self.name.replace(" ", "-")

    @property
    def title(self) -> str:
        """The title of its forms."""
        return self.name.capitalize()

    @property
    def menu_label(self) -> str:
        """The entry in a client's menu."""
        return self.description[:1].upper() + self.description[1:]
