"""What an agent says, as stanzas: events to a program, text to a person, SPADE's form to a SPADE agent.

A voice serves one turn. It is pure: an event goes in, stanzas come out as strings, in order. The ids of what it makes derive
from the inbox key of the request, so that an answer sent twice is recognised; each id is also the origin-id (XEP-0359).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from ...domain.messages import TurnEvent
from ...domain.value import value

FindChainedDevice: TypeAlias = Callable[[], str | None]


@value
class PresentationOptions:
    """What the devices of a person show of one turn, and what they want to see of it."""

    has_live_messages: bool = False
    """Every device of theirs shows corrections (XEP-0308)."""
    find_chained_device: FindChainedDevice = lambda: None
    """Names, whenever it is called, the one device of theirs where each correction has to name the version before it."""
    is_rerun: bool = False
    """Of the same turn something may have been said before."""
    shows_thoughts: bool = False
    """They read thoughts."""
    shows_steps: bool = False
    """They read which tools are used."""
    has_replies: bool = False
    """The device that asked shows replies (XEP-0461)."""


PLAIN_PRESENTATION = PresentationOptions()


class ReplyEncoder(Protocol):
    """The language of one turn."""

    @property
    def key(self) -> str:
        """The inbox key of the request, as text."""
        ...

    @property
    def shows_typing(self) -> bool:
        """Whether the other side uses chat states (XEP-0085)."""
        ...

    @property
    def has_live_messages(self) -> bool:
        """Whether a stream is shown as a message that grows (XEP-0308)."""
        ...

    @property
    def follows_streams(self) -> bool:
        """Whether it is told of a stream as it goes on; else only of all of it, at its end."""
        ...

    @property
    def shows_files(self) -> bool:
        """Whether a text that is too long may be a file, and a link the file behind it: a person listens."""
        ...

    def reads_thoughts(self, title: str | None) -> bool:
        """Whether thoughts with this title, `STEP_TITLE` or none, are shown to this listener."""
        ...

    def encode(self, event: TurnEvent) -> list[str]:
        """The stanzas that `event` becomes now; none where it waits for more, or is not for this listener."""
        ...

    def encode_update(self, stream_id: str) -> list[str]:
        """Where it `has_live_messages`: a stream that has more to show than before, as it stands. Nothing of it is to be kept."""
        ...

    def encode_composing(self) -> str | None:
        """The stanza that says "typing…", where `shows_typing`."""
        ...

    def encode_paused(self) -> str | None:
        """The stanza that takes "typing…" back, where it was said and no answer comes."""
        ...

    def encode_cancelled(self) -> list[str]:
        """The last words of an answer that nobody wants any more: only where something of it is seen already."""
        ...
