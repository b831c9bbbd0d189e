"""Ad-hoc commands (XEP-0050) as values: the call of a client, the stages of a command, and the reason why one is not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from .fields import Field, FieldValue

Action: TypeAlias = Literal["execute", "next", "prev", "complete", "cancel"]
Status: TypeAlias = Literal["executing", "completed", "canceled"]
ACTIONS: tuple[Action, ...] = ("execute", "next", "prev", "complete", "cancel")

_ERROR_TYPES = {"bad-request": "modify", "forbidden": "auth", "resource-constraint": "wait", "internal-server-error": "wait"}


class CommandCall(NamedTuple):
    """A client's call of a command. `form` has the submitted values by field; None without a form."""

    sender: str
    iq_id: str
    node: str
    session: str
    action: Action
    form: Mapping[str, str] | None = None
    language: str | None = None
    """The language tag of the call (`xml:lang`)."""


class CommandProblem(NamedTuple):
    """The reason why a command was not run.

    `condition` is a stanza error (RFC 6120, 8.3), `text` a sentence, `detail` one of XEP-0050's own errors or empty.
    """

    condition: str
    text: str
    detail: str = ""

    @property
    def type(self) -> str:
        """The type of the stanza error. It tells the client how to react."""
        return _ERROR_TYPES.get(self.condition, "cancel")


class CommandForm(NamedTuple):
    """A form to fill in, and the values already in its fields."""

    title: str
    instructions: str
    fields: tuple[Field, ...]
    values: Mapping[str, FieldValue]


class CommandStage(NamedTuple):
    """The stage of a command: a form with the actions that may follow, or the end with its result."""

    node: str
    session: str
    status: Status
    form: CommandForm | None = None
    actions: tuple[Action, ...] = ()
    title: str = ""
    text: str = ""
    link: str | None = None
    is_error: bool = False
