"""A command as values: its name, its fields, its audience and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from ..texts.translation import translate
from .fields import Choice, Field, FieldValue


class FormStep(NamedTuple):
    """One form of a command, in the language of the person."""

    instructions: str
    fields: tuple[Field, ...]
    is_last: bool = True
    """False if another form follows, which depends on what is filled in here."""


Audience: TypeAlias = Literal["everybody", "operators"]
Subject: TypeAlias = Literal["the person", "a conversation", "any conversation"]
ResultKind: TypeAlias = Literal["answer", "new", "forget this", "forget me", "forget everywhere"]

CONFIRMED = "sure"
"""The field that answers a question."""


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
    handler: Callable[..., Awaitable[CommandResult]]
    """Called with an `Invocation`."""
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
    initial_values: Callable[..., Awaitable[Mapping[str, FieldValue]]] | None = field(default=None, repr=False)
    find_step: Callable[..., Awaitable[FormStep | None]] | None = field(default=None, repr=False)
    """Return the next form in a client's menu, for an `Invocation` with the values so far, if it depends on the person; None if
    there is nothing to choose from. A program that fills in `fields` at once gets no form."""

    @property
    def needs_own_account(self) -> bool:
        """True if the word of a room is not enough to know who sends it: it is for operators, or concerns all agents."""
        return self.audience == "operators" or self.name.endswith(" everywhere")

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
        """The entry in a client's menu, in the language of the person."""
        description = translate(self.description)
        return description[:1].upper() + description[1:]
