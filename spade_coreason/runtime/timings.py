"""How long one agent's runner waits for others, and when it tries again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Waits that no configuration sets, all in seconds; the defaults are right in production, and tests shorten them."""

    retry_s: float = 10.0
    """After the store failed, a turn runs again, and idle conversations are looked for again."""
    conversation_end_s: float = 10.0
    """`on_conversation_end` of an agent or a program may take this long."""
    shutdown_s: float = 10.0
    """`shutdown()` of an agent may take this long."""
    stop_s: float = 5.0
    """Before a person is forgotten, their turns that were cancelled may take this long to end."""
    blocked_s: float = 1.0
    """The log names work that keeps the event loop for longer than this."""
    hold_s: float = 0.1
    """A block waits this long for the next event, so that a quick turn's only answer leaves with its commit."""
    typing_after_s: float = 0.2
    """Typing is shown for work that lasts longer than this."""
    typing_again_s: float = 20.0
    """Typing is shown again at this interval, because clients forget it."""
    first_words_s: float = 0.015
    """A stream that is whole within this time is one message. Its first words are shown within 50 ms."""
    growth_s: float = 1.0
    """A message is corrected once in this time at most."""
