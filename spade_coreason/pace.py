"""How long what an agent says waits."""

from __future__ import annotations

from .alarms import Alarms

# A block waits this long for the next event, so that a quick turn's only answer leaves with its commit.
HOLD_S = 0.1
# Typing is shown for work that lasts longer than this.
TYPING_AFTER_S = 0.2
# Clients forget a typing that is not said again.
TYPING_AGAIN_S = 20.0
# A stream that is whole within this time is one message; its first words are shown no later than 50 ms after they were said.
FIRST_WORDS_S = 0.015
# A message is corrected once in this time at most.
GROWTH_S = 1.0


class Pace:
    """How long things wait: blocks to leave, typing to be shown, streams to grow; one for all turns of an agent."""

    def __init__(self, growth_s: float = GROWTH_S) -> None:
        self.holding = Alarms(HOLD_S)
        self.typing = Alarms(TYPING_AFTER_S)
        self.still_typing = Alarms(TYPING_AGAIN_S)
        self.first_words = Alarms(FIRST_WORDS_S)
        self.growing = Alarms(growth_s)

    def stop(self) -> None:
        """After the last turn."""
        for alarms in (self.holding, self.typing, self.still_typing, self.first_words, self.growing):
            alarms.stop()
