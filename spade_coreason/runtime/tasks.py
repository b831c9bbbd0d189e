"""The clock of one agent: it wakes when a task is due, hands it to the handler of its kind, and stores what becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from datetime import datetime, timedelta
from functools import partial
from types import EllipsisType
from typing import Any, Protocol, TypeAlias

from ..exceptions import StoreError
from ..storage import MAX_OF_LANE, WAITING, Commit, Lane, Row, Task, TaskQueue, deletion_of, from_micros, update_of

log = logging.getLogger(__name__)

_BATCH = 200
"""The most tasks that one look hands over."""
_FAILED_AGAIN = timedelta(hours=1)
"""The time after which a task that has failed, and waits, is tried again."""
_MAX_SLEEP_S = 86_400.0
"""The longest sleep: the clock of the machine may be set while it sleeps."""
_MIN_SLEEP_S = 0.001
"""The shortest sleep: the timer of the loop may be a little ahead of the clock."""

Next: TypeAlias = Task | Commit[Any] | EllipsisType | None
"""The next state of a task, None if it is over and deleted, or the commit that stores either.

After the task itself, or a commit with False, the clock looks at it again. `...` says that the handler calls `end`, `fail` or
`hand_back` later.
"""


class TaskHandler(Protocol):
    """The work on the tasks of one kind."""

    waits: bool
    """True if tasks wait for a conversation or the server. Then the agent counts as idle."""
    failed: tuple[str, str]
    """The state and the reason of a task that fails: it must not hold up the others. One that waits is tried again later."""
    most: int
    """The most tasks that are under way, so that those of other kinds wait for none of them."""

    def run(self, task: Task, now: datetime) -> Next | Coroutine[Any, Any, Next]:
        """Do what is due. After a StoreError, its own or that of its commit, it is called again."""
        ...


class RunningTask:
    """A task under way, until its end is stored."""

    def __init__(self, task: Task, *, waits: bool) -> None:
        self.task = task
        """The task as it is now."""
        self.waits = waits
        """True while it waits for its conversation, or for the server."""
        self.waits_for_database = False
        """True until it is tried again after a failure of the database."""
        self.row: tuple[int, Row] | None = None
        """The row that stores its end."""
        self.commit: Commit[bool] | None = None
        """The write of that row."""
        self.wakes_at: int | None = None
        """When the clock has to look at it again, once its end is stored."""
        self.job: asyncio.Task[Next] | None = None
        """The work of a handler that is a coroutine."""


class TaskRunner:
    """The clock of one agent. `retry_s` is the wait after a failure of the database."""

    def __init__(self, queue: TaskQueue, agent: str, clock: Callable[[], datetime], retry_s: float) -> None:
        self.handlers: dict[str, TaskHandler] = {}
        """The handlers by kind. Tasks of other kinds stay as they are."""
        self.reviews: list[Callable[[], Awaitable[None]]] = []
        """Called at each look, before it loads what is due. After a StoreError the look is repeated."""
        self._queue = queue
        self._agent = agent
        self.now = clock
        self._retry_s = retry_s
        self._timer: asyncio.TimerHandle | None = None
        self._due_at: datetime | None = None
        """The time for which the timer is set."""
        self._look: asyncio.Task[None] | None = None
        self._is_open = self._looks_again = False
        self.in_flight: dict[int, RunningTask] = {}
        """The tasks under way, by row."""
        self._lanes: Counter[Lane] = Counter()
        """The number of tasks under way in each lane."""
        self._counts: Counter[str] = Counter()
        """The number of tasks under way of each kind."""
        self._changes: set[Commit[bool]] = set()
        """The changes of tasks that are not under way, until they are stored."""
        self._waiting = 0
        """The number of tasks that wait for the database."""
        self._reserved = 0
        """The number of tasks that are changed by hand now."""
        self._generation = 0
        """Changes when tasks are changed or deleted: what was loaded before is loaded again."""
        self._progress = asyncio.Event()
        self.has_alarm = True
        """False while a test sets the clock: then `check` and `catch_up` alone notice that time has passed."""
        self.wake_ups = 0
        """The number of times that it has looked for what is due."""

    def open(self) -> None:
        """Begin to wait for the due times that `wake_at` has named."""
        self._is_open = True
        if self._due_at is not None:
            self._set_timer(self._due_at)

    async def close(self) -> None:
        """Hand over nothing more. What is under way may end."""
        self._is_open = False
        self._progress.set()
        self._cancel_timer()
        if self._look is not None:
            await asyncio.wait({self._look})  # not cancelled, because it may be reading

    def abandon(self) -> None:
        """End what is still under way: nothing can be sent any more. It is handed over again at the next start."""
        self.forget(lambda task: True)

    def wake_at(self, due_at: datetime) -> None:
        """Wake at a time, unless it wakes before. Before `open`, the time is kept."""
        if self._look is not None:
            self._looks_again = True  # it may have looked already
        elif self._due_at is None or due_at < self._due_at or self._is_late:
            self._due_at = due_at
            if self._is_open:
                self._set_timer(due_at)

    @property
    def _is_late(self) -> bool:
        """True if the timer rings after its due time: the clock was set, or the machine has slept."""
        if self._timer is None or self._due_at is None:
            return False
        rings_in_s = self._timer.when() - asyncio.get_running_loop().time()
        return rings_in_s > max((self._due_at - self.now()).total_seconds(), 0) + self._retry_s

    def check(self) -> None:
        """Look now: the clock was set."""
        if self._is_open:
            self._wake()

    async def find_next_due(self) -> datetime | None:
        """Return the next due time of what is not under way; None without one. StoreError if it cannot be read."""
        return await self._queue.find_next(self._find_room(), self.in_flight, self._lanes)

    def _find_room(self) -> dict[str, int]:
        """Return the kinds of which more tasks may begin, and how many."""
        room = {kind: handler.most - self._counts[kind] for kind, handler in self.handlers.items()}
        return {kind: count for kind, count in room.items() if count > 0}

    @property
    def is_busy(self) -> bool:
        """True while something is handed over or stored, or is about to be."""
        return self._is_working or (self._is_open and self._due_at is not None and self._due_at <= self.now())

    @property
    def _is_working(self) -> bool:
        return bool(self._look or self._reserved or self._changes) or not all(
            running.waits for running in self.in_flight.values()
        )

    async def catch_up(self) -> None:
        """Hand over what is due now, and wait until all states are stored. The clock may have been set."""
        while self.is_busy:
            if not self._is_working:
                self.check()
            await self.wait_for_progress()

    # Changes from outside

    def is_under_way(self, kind: str, owners: Collection[str]) -> bool:
        """Return True while a task of a kind is under way for one of some owners (bare JIDs)."""
        return any(running.task.kind == kind and running.task.owner in owners for running in self.in_flight.values())

    async def wait_for_progress(self) -> None:
        """Wait until a task has ended, or a look at what is due."""
        self._progress.clear()
        await self._progress.wait()

    def find(self, kind: str, key: str) -> RunningTask | None:
        """Return the work on a task that is under way, or None."""
        return next(
            (running for running in self.in_flight.values() if (running.task.kind, running.task.key) == (kind, key)), None
        )

    def forget(self, is_forgotten: Callable[[Task], bool]) -> None:
        """End the work on some tasks, which are being deleted, and begin none that was loaded before now."""
        self._generation += 1
        for running in [running for running in self.in_flight.values() if is_forgotten(running.task)]:
            self._release(running)
            if running.job is not None:
                running.job.cancel()

    @asynccontextmanager
    async def reserve(self, kind: str, key: str) -> AsyncIterator[None]:
        """Change a task by hand. If it ends now, that is stored first. The clock begins nothing until the change is done."""
        self._reserved += 1
        self._generation += 1
        try:
            while (running := self.find(kind, key)) is not None and not running.waits:
                await self.wait_for_progress()
            yield
        finally:
            self._reserved -= 1
            self._progress.set()
            self.wake_at(self.now())

    def watch(self, change: Commit[bool]) -> Commit[bool]:
        """Count as busy until a change of tasks that are not under way is stored, and look for what is due then."""
        self._changes.add(change)
        change.on_stored(lambda is_changed: self._on_changed(change, is_changed=is_changed))
        change.on_failed(lambda _: self._on_changed(change, is_changed=False))
        return change

    def _on_changed(self, change: Commit[bool], *, is_changed: bool) -> None:
        self._changes.discard(change)
        self._progress.set()
        if is_changed:
            self.wake_at(self.now())

    # The timer

    def _set_timer(self, due_at: datetime) -> None:
        self._cancel_timer()
        self._due_at = due_at
        delay_s = (due_at - self.now()).total_seconds()
        if delay_s <= 0 or self.has_alarm:
            sleep_s = min(max(delay_s, _MIN_SLEEP_S), _MAX_SLEEP_S) if delay_s > 0 else 0
            self._timer = _call_later(sleep_s, self._wake)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due_at = None

    def _wake(self) -> None:
        self._cancel_timer()
        if self._look is not None:
            self._looks_again = True
            return
        self._look = asyncio.get_running_loop().create_task(self._find_due())
        self._look.add_done_callback(self._on_looked)

    def _on_looked(self, look: asyncio.Task[None]) -> None:
        self._look = None
        self._progress.set()
        if not look.cancelled() and (error := look.exception()) is not None:
            text = "%s: cannot look for what is due; the next attempt is in %g s: %s"
            log.error(text, self._agent, self._retry_s, error, exc_info=None if isinstance(error, StoreError) else error)
            self._cancel_timer()
            if self._is_open:  # also if a due time far away is named before
                self._due_at = self.now() + timedelta(seconds=self._retry_s)
                self._timer = _call_later(self._retry_s, self._wake)
        elif self._is_open and self._looks_again:
            self._wake()

    async def _find_due(self) -> None:
        self.wake_ups += 1
        self._looks_again = False
        if self._reserved:
            return  # the end of that wakes it
        now, generation = self.now(), self._generation
        for review in self.reviews:
            await review()
        room = self._find_room()
        due = await self._queue.load_next(room, now, min([_BATCH, *room.values()]), self.in_flight, self._lanes)
        if not self._is_open:
            return
        if generation != self._generation:
            self._looks_again = True
            return
        due.sort(key=lambda task: self.handlers[task.kind].waits)  # a turn loads the conversation for what waits behind it
        for task in due:
            running = self.in_flight[task.id] = RunningTask(task, waits=self.handlers[task.kind].waits)
            self._lanes[task.lane] += 1
            self._counts[task.kind] += 1
            self._begin(running)
        # What is due next waits for these, or it would queue up for the turns.
        while self._is_open and any(not (each.waits or each.waits_for_database) for each in self.in_flight.values()):
            await self.wait_for_progress()
        if (due_at := await self.find_next_due()) is not None and self._is_open:
            self._set_timer(due_at)

    # The work

    def _begin(self, running: RunningTask) -> None:
        """Run a task, and store what becomes of it, however long the database is away."""
        try:
            ended = self.handlers[running.task.kind].run(running.task, self.now())
        except Exception as error:  # noqa: BLE001 - it is logged, and fails alone
            self.fail(running, error)
        else:
            if isinstance(ended, Coroutine):
                running.job = asyncio.create_task(ended)
                running.job.add_done_callback(partial(self._on_worked, running))
            else:
                self._take(running, ended)

    def _on_worked(self, running: RunningTask, job: asyncio.Task[Next]) -> None:
        if job.cancelled():
            self.hand_back(running)  # unless it was forgotten
        elif (error := job.exception()) is not None:
            self.fail(running, error)
        else:
            self._take(running, job.result())

    def _take(self, running: RunningTask, ended: Next) -> None:
        if isinstance(ended, Commit):
            ended.on_stored(lambda result: self._release(running, looks_again=result is False))
            ended.on_failed(lambda error: self.fail(running, error))
        elif ended is running.task:
            self.hand_back(running)
        elif ended is not ... and running.commit is None:
            self.end(running, ended)

    def end(self, running: RunningTask, ended: Task | None) -> Commit[bool]:
        """Store what becomes of a task: it is over, or has another state. That may change until it is stored."""
        running.task, running.waits = ended or running.task, False
        running.row = deletion_of(running.task) if ended is None else update_of(ended)
        running.wakes_at = None if ended is None or ended.state != WAITING else ended.wake_at
        return self._store(running, running.row)

    def _store(self, running: RunningTask, row: tuple[int, Row]) -> Commit[bool]:
        commit = running.commit = self._queue.store([row])
        commit.on_stored(lambda _: self._release(running) if commit is running.commit else None)
        commit.on_failed(lambda error: self._wait_for_database(running, error) if commit is running.commit else None)
        return commit

    def fail(self, running: RunningTask, error: BaseException) -> None:
        """Run a task again after a StoreError. After another error it has failed: it must not hold up the others."""
        if running.commit is not None or not self.is_current(running):
            return
        if isinstance(error, StoreError):
            self._wait_for_database(running, error)
        else:
            task = running.task
            log.error("%s: the %s %s cannot run", self._agent, task.kind, task.key, exc_info=error)
            state, reason = self.handlers[task.kind].failed
            again = self.now() + _FAILED_AGAIN if state == WAITING else None
            self.end(running, task.moved(self.now(), state, reason, wake_at=again))

    def hand_back(self, running: RunningTask) -> None:
        """Look again at a task that has not ended: it was deleted, or the agent stops."""
        if running.commit is None:
            self._release(running, looks_again=True)

    def is_current(self, running: RunningTask) -> bool:
        """Return False once its end is stored, or the task was forgotten."""
        return self.in_flight.get(running.task.id) is running

    def _release(self, running: RunningTask, *, looks_again: bool = False) -> None:
        if not self.is_current(running):
            return
        lane, kind = running.task.lane, running.task.kind
        looks_again |= kind not in self._find_room() or self._lanes[lane] >= MAX_OF_LANE
        del self.in_flight[running.task.id]
        self._counts[kind] -= 1
        self._lanes[lane] -= 1
        if not self._lanes[lane]:
            del self._lanes[lane]
        self._progress.set()
        if looks_again:
            self.wake_at(self.now())
        elif running.wakes_at is not None:
            self.wake_at(from_micros(running.wakes_at))

    def _wait_for_database(self, running: RunningTask, error: BaseException) -> None:
        if not self._waiting:  # one line is enough for all of them
            text = "%s: cannot store a %s; the next attempt is in %g s: %s"
            log.error(text, self._agent, running.task.kind, self._retry_s, error)
        self._waiting += 1
        running.waits_for_database = True
        self._progress.set()
        _call_later(self._retry_s, partial(self._try_again, running))

    def _try_again(self, running: RunningTask) -> None:
        self._waiting -= 1
        running.waits_for_database = False
        if not self.is_current(running):
            return
        if running.row is not None:
            self._store(running, running.row)  # what the server has must not be sent once more
        elif self._is_open:  # after `close`, nothing is begun again
            self._begin(running)
        else:
            self._release(running)


def _call_later(delay_s: float, work: Callable[[], None]) -> asyncio.TimerHandle:
    """Call a function later, in a context that has nothing of the turn that is under way."""
    return asyncio.get_running_loop().call_later(delay_s, work, context=Context())
