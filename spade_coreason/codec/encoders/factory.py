from __future__ import annotations

from uuid import UUID

from ...domain.messages import Incoming
from .base import PLAIN, Manner, Voice
from .chat import PersonVoice
from .groupchat import RoomVoice
from .program import ProgramVoice
from .spade import SpadeVoice


def voice_for(incoming: Incoming, key: UUID, agent: str, stanza_bytes: int, manner: Manner = PLAIN) -> Voice:
    """The voice for whoever sent `incoming` to the bare JID `agent`. No stanza it makes exceeds `stanza_bytes`.

    `manner` is how it is shown to a person.
    """
    if incoming.language == "program":
        return ProgramVoice(incoming, key, agent, stanza_bytes)
    if incoming.language == "spade":
        return SpadeVoice(incoming, key, stanza_bytes)
    if incoming.language == "room":
        return RoomVoice(incoming, key, stanza_bytes)
    return PersonVoice(incoming, key, stanza_bytes, manner)
