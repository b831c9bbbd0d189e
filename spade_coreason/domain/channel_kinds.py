"""The kinds of channels: what the platform may expect of those who write on one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class ChannelKind:
    """The kind of a channel: who reads the replies, and in which form. Compare their properties, not them."""

    name: str
    """The name by which it is stored."""
    is_human: bool = False
    """True if people read the replies. All others have the role "agent"."""
    is_program: bool = False
    """True if the sender reads events and waits for the end of each reply.

    Its requests have ids, by which a repeated one gets the same reply. It is told of every refusal.
    """
    is_room: bool = False
    """True if many people write on it and all read the replies."""
    is_due: bool = False
    """True if the requests are due times of schedules. No person has written them, and no limit of a conversation ends them."""
    is_door: bool = False
    """True if the sender asks by a door, with a key. Its address is one that no server has (`callers.py`)."""
    is_job: bool = False
    """True if the requests are work that takes long. Their reply is a notification."""

    word: str = field(init=False)
    """The word that agents read as `request.metadata["channel"]`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "word", "schedule" if self.is_due else self.name)

    @property
    def has_buttons(self) -> bool:
        """True if what shows the replies has a way of its own to answer a question: no command is named."""
        return self.is_door or self.is_page

    @property
    def is_page(self) -> bool:
        """True for a person in the browser: commands work, and the requests have ids."""
        return self.is_human and self.is_program

    @property
    def has_commands(self) -> bool:
        """True if a text may be any command of the platform."""
        return self.is_human and not (self.is_room or self.is_due)

    @property
    def may_have_archive(self) -> bool:
        """True if a network may keep older messages of the same sender for an agent that was away."""
        return not (self.is_program or self.is_room or self.is_due)


PERSON = ChannelKind("person", is_human=True)
ROOM = ChannelKind("room", is_human=True, is_room=True)
PROGRAM = ChannelKind("program", is_program=True)
DOOR = ChannelKind("door", is_program=True, is_door=True)
PAGE = ChannelKind("page", is_human=True, is_program=True)
"""A person in the browser: commands work, and the requests have ids."""
SPADE = ChannelKind("spade")
"""A SPADE agent without this platform: a program that reads texts."""
DUE_TO_PERSON = ChannelKind("due_to_person", is_human=True, is_due=True)
DUE_IN_ROOM = ChannelKind("due_in_room", is_human=True, is_room=True, is_due=True)
DUE_TO_NOBODY = ChannelKind("due_to_nobody", is_due=True)
"""A due time whose reply is recorded, and not sent."""
JOB = ChannelKind("job", is_due=True, is_job=True)

DEFAULT_CHANNEL = "xmpp"
"""The name of the channel of a request that names none."""
SCHEDULE_CHANNEL = "schedule"
"""The name of the channel of due times."""
DOOR_CHANNEL = "door"
"""The name of the channel of requests that come by a door."""
PAGE_CHANNEL = "page"
"""The name of the channel of requests that come by the page in the browser."""
_KINDS = (PERSON, ROOM, PROGRAM, DOOR, PAGE, SPADE, DUE_TO_PERSON, DUE_IN_ROOM, DUE_TO_NOBODY, JOB)
CHANNEL_KINDS: Mapping[str, ChannelKind] = {kind.name: kind for kind in _KINDS}
