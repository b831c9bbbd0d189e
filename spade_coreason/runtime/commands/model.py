"""A command as values: what it is called, what it asks for, who may, and what comes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from ...contracts import AgentInterface
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
"""The field by which a question is answered."""


class CommandContext(Protocol):
    """What commands need of whoever runs the agent."""

    agent: AgentInterface
    store: AgentRepository
    access_requests: AccessRequests | None
    """Where operators say who may talk to the agent, where there is somebody to ask them."""

    @property
    def rules(self) -> Rules:
        """The rules of its conversations."""
        ...

    @property
    def files(self) -> Files | None:
        """The way to a server that keeps files."""
        ...

    @property
    def interaction_memory(self) -> AgentInteractionMemory | None:
        """The agent's interaction memory, where there is one."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether nothing new is begun."""
        ...

    def now(self) -> datetime:
        """The time."""
        ...

    def cancel_replies(self, owner: str) -> int:
        """Stops the agent at work for a person; how many answers."""
        ...

    async def get_preferences(self, owner: str) -> Preferences:
        """What a person prefers."""
        ...

    async def set_preferences(self, owner: str, preferences: Preferences) -> None:
        """Keeps what a person prefers."""
        ...

    async def end_conversation(self, conversation_id: str) -> bool:
        """Ends a conversation, if it is active."""
        ...

    async def reset_conversation(self, conversation_id: str) -> bool:
        """Begins a new episode of a conversation, if it is there."""
        ...

    def pause(self) -> None:
        """Begins nothing new."""
        ...

    def resume(self) -> None:
        """Goes on."""
        ...


class Invocation(NamedTuple):
    """Who asks (a bare JID, as the server says), and which conversation of theirs is meant; None where they have none yet."""

    context: CommandContext
    owner: str
    record: StoredConversation | None
    values: Mapping[str, Any]
    commands: tuple[Command, ...]
    """All that the asker may run."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What to say, and what else to do."""

    text: str
    kind: ResultKind = "answer"
    extra_texts: tuple[str, ...] = ()
    """Messages that follow."""
    link: str | None = None
    choices: tuple[Choice, ...] = ()
    """What the asker may say next, where a text asks (XEP-0439)."""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One command, over text and over forms.

    `subject` says what a form asks first where there are several conversations; in a text "a conversation" is the one it is
    said in. `question` is asked before `handler`. `initial_values` gives what stands in the fields already.
    """

    name: str
    description: str
    handler: Callable[[Invocation], Awaitable[CommandResult]]
    audience: Audience = "everybody"
    subject: Subject = "the person"
    fields: tuple[Field, ...] = ()
    question: str = ""
    is_personal: bool = False
    """Whether it shows or deletes what is known of a person: whoever asks must be known by a JID of their own."""
    has_named_values: bool = False
    """Whether a text says `name value`, for one of the fields."""
    is_immediate: bool = True
    """Whether it may run beside a turn; else it waits until the conversation is between two."""
    usage: str = ""
    """What stands behind the name in a text."""
    initial_values: Callable[[Invocation], Awaitable[Mapping[str, FieldValue]]] | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """What a person writes."""
        return f"/{self.name}"

    @property
    def node(self) -> str:
        """What it is called over XEP-0050."""
        return self.name.replace(" ", "-")

    @property
    def title(self) -> str:
        """What stands above its forms."""
        return self.name.capitalize()

    @property
    def menu_label(self) -> str:
        """What stands in a menu."""
        return self.description[:1].upper() + self.description[1:]
