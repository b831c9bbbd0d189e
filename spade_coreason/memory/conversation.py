"""The state of active conversations in memory: the conversation, its person, their variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from ..contracts import Identity
from ..domain.channel_kinds import ChannelKind
from ..domain.history import RecentTurns
from ..domain.jid import local_part
from ..domain.preferences import Preferences
from ..storage import COMPACTION_VARIABLE, NO_COMPACTION, CompactionState, StoredConversation


class Variables:
    """The variables of one holder: a conversation, a person, or an agent for all. Values are JSON texts.

    A process has one object for each holder, so that no session reads an old value.
    """

    def __init__(self, scope: str, holder: str, values: dict[str, str]) -> None:
        self.scope = scope
        self.holder = holder
        self.values = values
        self._parsed_compaction: tuple[str, CompactionState] = ("", NO_COMPACTION)

    @property
    def compaction(self) -> CompactionState:
        """The state of compaction of this conversation, which the platform stores among its variables."""
        text = self.values.get(COMPACTION_VARIABLE, "")
        if text is not self._parsed_compaction[0]:
            self._parsed_compaction = text, CompactionState.from_json(text)
        return self._parsed_compaction[1]


@dataclass(slots=True, eq=False, weakref_slot=True)
class ActivePerson:
    """The state of a person, in memory while any of their conversations is.

    All conversations of a person share one object, so that their values cannot differ.
    """

    variables: Variables
    preferences: Preferences


@dataclass(slots=True, eq=False)
class ActiveConversation:
    """The state of a conversation in memory between its turns. The database has all of it too."""

    record: StoredConversation
    turns: RecentTurns
    """The newest turns, oldest first."""
    variables: Variables
    person: ActivePerson
    shared: Variables
    """The variables of the agent that everybody shares."""
    last_reply: str = ""
    echo_count: int = 0
    has_run: bool = False
    """True once a turn has begun since it was loaded."""
    root_person: ActivePerson | None = None
    """The person for whom an agent asked last, if the conversation is one of an agent."""
    session_uuid: UUID = field(init=False)
    identities: dict[str, Identity] = field(init=False)

    def __post_init__(self) -> None:
        owner = self.record.owner
        self.session_uuid = UUID(self.record.session_id)
        name = local_part(owner)
        self.identities = {role: Identity(id=owner, name=name, role=role) for role in ("user", "agent")}

    def identity_for(self, kind: ChannelKind, nickname: str = "") -> Identity:
        """Return the identity of the sender of a request.

        People have the role "user", all others "agent". In a room the id is the owner's, which is the room, and the name is the
        `nickname` of the speaker.
        """
        if nickname:
            return Identity(id=self.record.owner, name=nickname, role="user")
        return self.identities["user" if kind.is_human else "agent"]
