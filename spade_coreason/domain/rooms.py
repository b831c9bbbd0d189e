"""The options of a chat room, with the defaults of the settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RoomAnswers = Literal["mention", "command", "all"]


@dataclass(frozen=True, slots=True)
class RoomConfig:
    """A room to join, and the messages to answer there. The configuration describes the keys of the same names."""

    jid: str
    nick: str
    password: str | None = field(default=None, repr=False)
    answers: RoomAnswers = "mention"
    agent_turns: int = 6
    command_prefixes: tuple[str, ...] = ("/",)
    is_invited: bool = False
    """True if the room comes from an invitation, not from the configuration."""
