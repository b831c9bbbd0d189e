"""Voices that answer a request, what tests give them to say, and how long it becomes."""

from __future__ import annotations

from uuid import UUID

from spade_coreason.codec.encoders.base import ReplyEncoder
from spade_coreason.codec.encoders.factory import encoder_for
from spade_coreason.domain.messages import InboundRequest, TextEmitted, TurnEvent

from .foreign_stanzas import AGENT, KEY

LIMIT = 65_536
CHAT_STATE = "<active xmlns='http://jabber.org/protocol/chatstates'/>"
HEAVY = ["x", "&", "<", '"', "\\", "\n", "é", "\N{ROCKET}", "\x00", "\x01", "\ufffe", "word. ", "a\r\n", '&\N{ROCKET}\\"\n']
STYLED = "# Weather\n\n**Berlin** is [sunny](https://example.org/a_b_c).\n\n| °C | wet |\n|---|---|\n| 7 | no |"


def voice(incoming: InboundRequest, limit: int = LIMIT, key: UUID = KEY) -> ReplyEncoder:
    return encoder_for(incoming, key, AGENT, limit)


def says(text: str) -> TextEmitted:
    return TextEmitted(text, 1)


def all_of(speaker: ReplyEncoder, *events: TurnEvent) -> list[str]:
    """Everything that `events` become."""
    return [stanza for event in events for stanza in speaker.encode(event)]


def longest(stanzas: list[str]) -> int:
    return max(len(stanza.encode()) for stanza in stanzas)
