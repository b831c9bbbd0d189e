"""One conversation at work: the messages that wait, and what is held in memory while it is active."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from .codec import Incoming
from .contracts import Identity, SessionState
from .conversation import Life
from .names import local_part
from .session import Variables
from .stores import ConversationRow


class Waiting(NamedTuple):
    """A request whose turn has not come. `is_new` is done when it is durable: False for a duplicate.

    Where it `is_surely_new`, its turn begins without waiting for that.
    """

    incoming: Incoming
    key: UUID
    row: int
    is_new: asyncio.Future[bool]
    is_surely_new: bool = False
    redelivered: bool = False


@dataclass(slots=True, eq=False)
class Memory:
    """What a conversation holds in memory between its turns; the database has all of it."""

    row: ConversationRow
    state: SessionState
    variables: Variables
    person: Variables
    last_answer: str = ""
    echoes: int = 0
    session_uuid: UUID = field(init=False)
    identities: dict[str, Identity] = field(init=False)

    def __post_init__(self) -> None:
        owner = self.row.owner
        self.session_uuid = UUID(self.row.session_id)
        name = local_part(owner)
        self.identities = {role: Identity(id=owner, name=name, role=role) for role in ("user", "agent")}

    @property
    def life(self) -> Life:
        """Where the conversation is."""
        return self.row.life


class Lane:
    """The messages of one sender on one thread, which is one conversation: one at a time, in order."""

    __slots__ = ("key", "memory", "queue", "worker")

    def __init__(self, sender: str, thread: str | None) -> None:
        self.key = (sender, thread)
        self.queue: deque[Waiting] = deque()
        self.worker: asyncio.Task[None] | None = None
        self.memory: Memory | None = None
