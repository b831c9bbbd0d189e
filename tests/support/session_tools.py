"""The tools of a session for tests of its variables and its history."""

from __future__ import annotations

from typing import NoReturn

from spade_coreason.runtime.steps.step_journal import StepJournal


class StepsOnly:
    """The tools of a session that opens neither schedules nor questions."""

    def __init__(self, steps: StepJournal) -> None:
        self.steps = steps

    def open_schedules(self) -> NoReturn:
        raise AssertionError("the turn makes no schedules")

    def open_questions(self) -> NoReturn:
        raise AssertionError("the turn asks nobody")
