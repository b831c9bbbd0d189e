"""The journal of the durable steps of one turn, in the inbox.

The journal of a request is loaded if the request runs again, and deleted when it is answered.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn
from uuid import UUID

from ...contracts.authoring import OnUncertain
from ...domain.identifiers import derive_step_key
from ...domain.messages import EarlierRuns
from ...exceptions import CoReasonError, MissingStepError, StepMismatchError, StepUncertainError, UnknownStepError
from ...storage import Commit, Inbox, SaveStep, StoredStep
from .steps import (
    KEY_PARAMETER,
    MAX_NAME_CHARACTERS,
    OUTER_STEP,
    DurableStep,
    dump_result,
    hash_arguments,
    takes_idempotency_key,
)

MAX_STEPS = 10_000
"""The most steps of one turn."""
MAX_TOTAL_BYTES = 64 * 2**20
"""The most bytes of all results of one turn."""
_HASH_CHARACTERS = 8


class StepJournal:
    """The journal of the turn of one request. All calls come from one event loop.

    Without a request in the inbox (`inbox_row` 0: a command from outside of a conversation) nothing is stored, because nothing
    would run again.
    """

    __slots__ = (
        "_earlier",
        "_inbox",
        "_inbox_row",
        "_inner_names",
        "_key",
        "_numbers",
        "_questions",
        "_step_count",
        "_total_bytes",
        "_unfinished",
        "asked",
        "earlier_runs",
        "is_closed",
        "mismatch",
    )

    # Most turns have no step. The first one makes these.
    _unfinished: dict[tuple[str, int], StoredStep]
    """The steps that have begun and have no result, by name and number."""
    _inner_names: set[str]
    """The names of steps within the functions of others. They are not repeated if those are finished."""
    _questions: set[tuple[str, int]]
    """The steps of the last questions of the earlier runs that this run has not reached."""

    def __init__(self, inbox: Inbox, inbox_row: int, key: UUID, earlier_runs: EarlierRuns | None = None) -> None:
        self._inbox = inbox
        self._inbox_row = inbox_row
        self._key = key
        self._earlier: dict[tuple[str, int], StoredStep] | None = None
        self._numbers: Counter[str] | None = None  # made by the first step: most turns have none
        self._step_count = 0
        self._total_bytes = 0
        self.earlier_runs = earlier_runs
        """The deeds of the earlier runs, until this one has come to their last question."""
        self.is_closed = False
        """True if the turn has ended, so that there are no more steps."""
        self.asked: Sequence[Any] = ()
        """The questions (`AskedQuestion`) with which this run has ended."""
        self.mismatch: CoReasonError | None = None
        """The reason why the turn does not fit its earlier runs. It fails, also if the agent has caught it."""

    @property
    def last_name(self) -> str:
        """The name of the last step; empty before the first."""
        return next(reversed(self._numbers)) if self._numbers else ""

    async def load(self) -> None:
        """Load the steps that an earlier run of the request has stored. StoreError if they cannot be read."""
        steps = await self._inbox.load_steps(self._inbox_row)
        if steps:
            self._earlier = {(step.name, step.number): step for step in steps}

    async def run_once(self, name: str, function: Callable[..., Any], args: Sequence[Any], on_uncertain: OnUncertain) -> Any:
        """Run a durable step, as `Session.run_once`."""
        if on_uncertain not in ("retry", "fail"):
            raise ValueError(f'on_uncertain must be "retry" or "fail", not {on_uncertain!r}')
        step = await self.open_step(name, args, on_uncertain)
        if step.is_finished:
            return step.result
        token = OUTER_STEP.set(step.key)
        try:
            result = function(*args, **({KEY_PARAMETER: step.key} if takes_idempotency_key(function) else {}))
            if inspect.isawaitable(result):
                result = await result
        finally:
            OUTER_STEP.reset(token)
        result_text = dump_result(name, result)
        await self.close_step(step, result_text)
        return json.loads(result_text)

    async def open_step(self, name: str, args: Sequence[Any], on_uncertain: OnUncertain) -> DurableStep:
        """Begin the next use of a step. If it is finished, its result is that of an earlier run.

        If `on_uncertain` is "fail", store that the step is about to run. StepUncertainError if an earlier run was cut off after
        that.

        ValueError if the name is not a text of at most 200 characters, or the arguments are not JSON. RuntimeError after the
        turn. StepMismatchError if an earlier run gave other arguments.
        """
        step = self._begin(name, args, on_uncertain)
        if on_uncertain == "fail" and not step.is_finished:
            await self._save(step, None)
        return step

    async def close_step(self, step: DurableStep, result_text: str) -> None:
        """Store the result of a step, a text of `dump_result`, and wait until it is durable.

        ValueError if the results of the turn are too large together; RuntimeError after the turn.
        """
        self._require_open()
        self._total_bytes += len(result_text.encode())
        if self._total_bytes > MAX_TOTAL_BYTES:
            raise ValueError(
                f"the durable step {step.name!r}: the results of one turn have more than {MAX_TOTAL_BYTES:,} bytes, the limit"
            )
        await self._save(step, result_text)

    def close_step_with(self, step: DurableStep) -> SaveStep | None:
        """Return a function that stores the result of a step in the transaction that has its effect.

        So the step does not run again, even if the process dies right after that. None if nothing is stored.
        """
        if not self._inbox_row:
            return None
        self._finish(step)
        stored = StoredStep(step.name, step.number, step.arguments_hash, None)
        return self._inbox.save_step_with(self._inbox_row, stored)

    def close_step_soon(self, step: DurableStep, result_text: str) -> None:
        """Store the result of a step that may run again without harm. Do not wait for that."""
        if self._inbox_row and not self.is_closed:
            self._finish(step)
            stored = StoredStep(step.name, step.number, step.arguments_hash, result_text)
            self._inbox.save_step_soon(self._inbox_row, stored)

    def _begin(self, name: str, args: Sequence[Any], on_uncertain: OnUncertain) -> DurableStep:
        """Number the next use of a step, and compare it with the same use in an earlier run."""
        self._require_open()
        if self.mismatch is not None:
            raise self.mismatch  # the turn fails, though the agent has caught it: nothing more may run
        given = hash_arguments(name, args)
        if outer := OUTER_STEP.get():  # numbered within it, because a run that has its result leaves its inner steps out
            name = _name_within(outer, name)
        if self._step_count >= MAX_STEPS:
            raise RuntimeError(f"a turn has at most {MAX_STEPS:,} durable steps")
        if self._numbers is None:
            self._numbers, self._unfinished, self._inner_names = Counter(), {}, set()
            if self.earlier_runs is not None:
                self._questions = set(self.earlier_runs.questions)
        if outer:
            self._inner_names.add(name)
        self._step_count += 1
        number = self._numbers[name] = self._numbers.pop(name, 0) + 1  # the last step is the last name
        if self.earlier_runs is not None:
            self._repeat(self.earlier_runs, name, number)
        key = str(derive_step_key(self._key, name, number))
        earlier = None if self._earlier is None else self._earlier.get((name, number))
        if earlier is None or earlier.result is None:
            self._unfinished[name, number] = StoredStep(name, number, given, None)
        if earlier is None:
            return DurableStep(name, number, given, key)
        if earlier.arguments_hash != given:
            stored = earlier.arguments_hash[:_HASH_CHARACTERS]
            self.fail(StepMismatchError(name, number, stored, given[:_HASH_CHARACTERS]))
        if earlier.result is None and on_uncertain == "fail":
            raise StepUncertainError(name, number, key)
        return DurableStep(name, number, given, key, earlier.result)

    def _repeat(self, earlier: EarlierRuns, name: str, number: int) -> None:
        """Check that a step is one of the earlier runs, which this one has to repeat until the last question.

        StepMismatchError if it is not, or if the question is reached and a step of theirs has not begun. Steps within others
        are not checked.
        """
        if self._earlier is None:  # they are lost, so the functions would run again
            self.fail(MissingStepError(*min(earlier.questions), name))
        if name not in self._inner_names and number > earlier.steps.get(name, 0):
            self.fail(UnknownStepError(name, number))
        self._questions.discard((name, number))
        if self._questions:
            return
        self.earlier_runs = None
        uses = self.uses
        for missing, count in earlier.steps.items():
            if uses.get(missing, 0) < count:
                self.fail(MissingStepError(missing, count, name))

    def fail(self, mismatch: CoReasonError) -> NoReturn:
        """Make the turn fail, also if the agent catches this error, which is raised. No further step runs."""
        self.mismatch = mismatch
        raise mismatch

    @property
    def uses(self) -> Mapping[str, int]:
        """The number of uses of each step so far, without those within other steps."""
        return {name: number for name, number in (self._numbers or {}).items() if name not in self._inner_names}

    @property
    def unfinished(self) -> list[StoredStep]:
        """The steps that have begun and have no result."""
        return [] if self._numbers is None else list(self._unfinished.values())

    def make_missing(self) -> MissingStepError:
        """Return the reason why this run may not end yet: it has not come to the question that the earlier ones asked."""
        assert self.earlier_runs is not None
        return MissingStepError(*min(self.earlier_runs.questions if self._numbers is None else self._questions), "the end")

    def _save(self, step: DurableStep, result_text: str | None) -> Commit[bool]:
        if result_text is not None:
            self._finish(step)
        if not self._inbox_row:
            return Commit.completed(True)
        return self._inbox.save_step(self._inbox_row, StoredStep(step.name, step.number, step.arguments_hash, result_text))

    def _finish(self, step: DurableStep) -> None:
        if self._numbers is not None:
            self._unfinished.pop((step.name, step.number), None)

    def _require_open(self) -> None:
        if self.is_closed:
            raise RuntimeError("no durable step may run after assist has returned")


def _name_within(outer: str, name: str) -> str:
    """Return the name of a step within another one, whose key is given. It is different for different names."""
    suffix = f" in {outer[:_HASH_CHARACTERS]}"
    if len(name) + len(suffix) > MAX_NAME_CHARACTERS:
        suffix = f" {hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARACTERS]}{suffix}"
    return name[: MAX_NAME_CHARACTERS - len(suffix)] + suffix
