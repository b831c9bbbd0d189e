"""Encoders of replies, the events that tests give them, and the length of the result."""

from __future__ import annotations

from uuid import UUID

from spade_coreason.domain.messages import InboundRequest, TextEmitted, TurnEvent
from spade_coreason.runtime import ReplyEncoder
from spade_coreason.xmpp.transport import encoder_for
from tests.support.foreign_stanzas import AGENT, KEY

LIMIT = 65_536
CHAT_STATE = "<active xmlns='http://jabber.org/protocol/chatstates'/>"
HEAVY = ["x", "&", "<", '"', "\\", "\n", "é", "\N{ROCKET}", "\x00", "\x01", "\ufffe", "word. ", "a\r\n", '&\N{ROCKET}\\"\n']
STYLED = "# Weather\n\n**Berlin** is [sunny](https://example.org/a_b_c).\n\n| °C | wet |\n|---|---|\n| 7 | no |"


def make_encoder(request: InboundRequest, limit: int = LIMIT, key: UUID = KEY) -> ReplyEncoder:
    return encoder_for(request, key, AGENT, limit)


def text_event(text: str) -> TextEmitted:
    return TextEmitted(text, 1)


def encode_all(encoder: ReplyEncoder, *events: TurnEvent) -> list[str]:
    """Encode all events and return their stanzas."""
    return [stanza for event in events for stanza in encoder.encode(event)] + encoder.flush()


def longest_bytes(stanzas: list[str]) -> int:
    return max(len(stanza.encode()) for stanza in stanzas)
