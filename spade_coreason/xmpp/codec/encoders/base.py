"""The interface of reply encoders: events to a program, text to a person, SPADE's form to a SPADE agent.

An encoder serves one turn. It is pure: it takes an event and returns stanzas as strings, in order. The ids of its stanzas
derive from the inbox key of the request, so that a reply sent twice is recognised. Each id is also the origin-id (XEP-0359).
"""

from __future__ import annotations

from typing import Protocol

from ....domain.messages import TurnEvent


class ReplyEncoder(Protocol):
    """Encoder of one turn's events as stanzas for the sender of its request."""

    @property
    def key(self) -> str:
        """The inbox key of the request, as text."""
        ...

    @property
    def recipient(self) -> str:
        """The address of all stanzas."""
        ...

    @property
    def shows_typing(self) -> bool:
        """True if the recipient uses chat states (XEP-0085)."""
        ...

    @property
    def has_live_messages(self) -> bool:
        """True if a stream is shown as a message that grows (XEP-0308)."""
        ...

    @property
    def follows_streams(self) -> bool:
        """True if it takes the chunks of a stream as they come. Otherwise it takes the whole stream at its end."""
        ...

    @property
    def shows_files(self) -> bool:
        """True if the recipient is a person: a long text may be sent as a file, and a link shows the file behind it."""
        ...

    def reads_thoughts(self, title: str | None) -> bool:
        """True if thoughts with this title, `STEP_TITLE` or none, are shown to the recipient."""
        ...

    def encode(self, event: TurnEvent) -> list[str]:
        """Encode an event. The list is empty while it waits for more events, or if it is not for the recipient."""
        ...

    def encode_update(self, stream_id: str) -> list[str]:
        """Encode the current text of a stream, if it has grown and the encoder `has_live_messages`.

        These stanzas are transient and must not be stored.
        """
        ...

    def encode_composing(self) -> str | None:
        """Encode the chat state "typing…"; None unless the encoder `shows_typing`."""
        ...

    def encode_paused(self) -> str | None:
        """Encode the end of "typing…" if no reply follows; None if it was not shown."""
        ...

    def encode_cancelled(self) -> list[str]:
        """Encode the end of a cancelled reply. The list is empty unless part of the reply was shown."""
        ...
