"""How long what an agent says waits."""

from __future__ import annotations

from .alarms import Alarms
from .timings import Timings


class Pace:
    """How long things wait: blocks to leave, typing to be shown, streams to grow; one for all turns of an agent."""

    def __init__(self, timings: Timings) -> None:
        self.holding = Alarms(timings.hold_s)
        self.typing = Alarms(timings.typing_after_s)
        self.still_typing = Alarms(timings.typing_again_s)
        self.first_words = Alarms(timings.first_words_s)
        self.growing = Alarms(timings.growth_s)

    def stop(self) -> None:
        """After the last turn."""
        for alarms in (self.holding, self.typing, self.still_typing, self.first_words, self.growing):
            alarms.stop()
