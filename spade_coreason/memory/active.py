from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from uuid import UUID

from ..contracts import Identity
from ..domain.conversation import Life
from ..domain.history import HeldTurns
from ..domain.jid import local_part
from ..domain.preferences import Preferences
from ..storage import NOTHING, WINDOW, ConversationRow, Window

Scope: TypeAlias = Literal["conversation", "person"]


class Variables:
    """The variables of one holder, as JSON texts. One object a holder in a process, so that nobody reads an old value."""

    def __init__(self, scope: Scope, holder: str, values: dict[str, str]) -> None:
        self.scope = scope
        self.holder = holder
        self.values = values
        self._window: tuple[str, Window] = ("", NOTHING)

    @property
    def window(self) -> Window:
        """What the platform keeps about the window of this conversation."""
        text = self.values.get(WINDOW, "")
        if text is not self._window[0]:
            self._window = text, Window.from_json(text)
        return self._window[1]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Person:
    """What is held in memory of somebody while conversations of theirs are: one object a person, or they would differ."""

    variables: Variables
    preferences: Preferences


@dataclass(slots=True, eq=False)
class Memory:
    """What a conversation holds in memory between its turns; the database has all of it."""

    row: ConversationRow
    turns: HeldTurns
    """The newest of them."""
    variables: Variables
    person: Person
    last_answer: str = ""
    echoes: int = 0
    session_uuid: UUID = field(init=False)
    identities: dict[str, Identity] = field(init=False)

    def __post_init__(self) -> None:
        owner = self.row.owner
        self.session_uuid = UUID(self.row.session_id)
        name = local_part(owner)
        self.identities = {role: Identity(id=owner, name=name, role=role) for role in ("user", "agent")}

    def identity(self, language: str, nickname: str = "") -> Identity:
        """Who asks in a language; in a room the id is the owner's, the name that of whoever speaks."""
        if nickname:
            return Identity(id=self.row.owner, name=nickname, role="user")
        return self.identities["agent" if language in ("program", "spade") else "user"]

    @property
    def life(self) -> Life:
        """Where the conversation is."""
        return self.row.life

    @life.setter
    def life(self, life: Life) -> None:
        if life is not self.row.life:
            self.row = self.row.with_life(life)
