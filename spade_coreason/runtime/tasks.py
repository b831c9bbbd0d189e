"""The clock of one agent: it wakes when a task is due, hands it to the handler of its kind, and stores what becomes of it.

`Alarm` has the time of the next look, `AgentTasks` what is under way, and `TaskClock` looks for what is due and begins it.
"""

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
    """A task under way, until its end is stored. `handler` is that of its kind."""

    def __init__(self, task: Task, handler: TaskHandler) -> None:
        self.task = task
        """The task as it is now."""
        self.handler = handler
        self.waits = handler.waits
        """True while it waits for its conversation, or for the server."""
        self.waits_for_database = False
        """True until it is tried again after a failure of the database."""
        self.row: tuple[int, Row] | None = None
        """The row that stores its end."""
        self.commit: Commit[bool] | None = None
        """The write of that row."""
        self.wakes_at: int | None = None
        """The time at which the clock has to look at it again, once its end is stored."""
        self.job: asyncio.Task[Next] | None = None
        """The work of a handler that is a coroutine."""


class Alarm:
    """The time of the next look at what is due. `retry_s` is the wait after a failure of the database."""

    def __init__(self, now: Callable[[], datetime], retry_s: float) -> None:
        self.now = now
        self._retry_s = retry_s
        self._ring: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.due_at: datetime | None = None
        """The time for which it is set."""
        self.is_looking = False
        """True during a look. Then a new time is a reason to look again."""
        self.looks_again = False
        self.has_timer = True
        """False while a test sets the clock: then `TaskClock.check` and `catch_up` alone notice that time has passed."""

    def open(self, ring: Callable[[], None]) -> None:
        """Call `ring` at the times that `wake_at` has named and names."""
        self._ring = ring
        if self.due_at is not None:
            self.set(self.due_at)

    def close(self) -> None:
        """Ring no more. Later times are kept."""
        self._ring = None
        self.cancel()

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`."""
        return self._ring is not None

    def wake_at(self, due_at: datetime) -> None:
        """Ring at a time, unless it rings before. Before `open`, the time is kept."""
        if self.is_looking:
            self.looks_again = True  # it may have looked already
        elif self.due_at is None or due_at < self.due_at or self._is_late:
            self.due_at = due_at
            if self.is_open:
                self.set(due_at)

    @property
    def _is_late(self) -> bool:
        """True if the timer rings after its due time: the clock was set, or the machine has slept."""
        if self._timer is None or self.due_at is None:
            return False
        rings_in_s = self._timer.when() - asyncio.get_running_loop().time()
        return rings_in_s > max((self.due_at - self.now()).total_seconds(), 0) + self._retry_s

    def set(self, due_at: datetime) -> None:
        """Ring at a time, and at no other."""
        self.cancel()
        self.due_at = due_at
        delay_s = (due_at - self.now()).total_seconds()
        if delay_s <= 0 or self.has_timer:
            self._start(min(max(delay_s, _MIN_SLEEP_S), _MAX_SLEEP_S) if delay_s > 0 else 0)

    def retry(self) -> None:
        """Ring after a failure of the database, also if a due time far away is named before."""
        self.cancel()
        if self.is_open:
            self.due_at = self.now() + timedelta(seconds=self._retry_s)
            self._start(self._retry_s)

    def cancel(self) -> None:
        """Forget the time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.due_at = None

    def _start(self, delay_s: float) -> None:
        if self._ring is not None:
            self._timer = _call_later(delay_s, self._ring)


class AgentTasks:
    """The tasks of one agent that are under way, and the handlers of their kinds."""

    def __init__(self, queue: TaskQueue, agent: str, now: Callable[[], datetime], retry_s: float) -> None:
        self.queue = queue
        self.agent = agent
        self.now = now
        self.retry_s = retry_s
        """The wait after a failure of the database."""
        self.alarm = Alarm(now, retry_s)
        self.handlers: dict[str, TaskHandler] = {}
        """The handlers by kind. Tasks of other kinds stay as they are."""
        self.reviews: list[Callable[[], Awaitable[None]]] = []
        """Called at each look, before it loads what is due. After a StoreError the look is repeated."""
        self.in_flight: dict[int, RunningTask] = {}
        """The tasks under way, by row."""
        self.lanes: Counter[Lane] = Counter()
        """The number of tasks under way in each lane."""
        self._counts: Counter[str] = Counter()
        """The number of tasks under way of each kind."""
        self._changes: set[Commit[bool]] = set()
        """The changes of tasks that are not under way, until they are stored."""
        self._waiting = 0
        """The number of tasks that wait for the database."""
        self.reserved = 0
        """The number of tasks that are changed by hand now."""
        self.generation = 0
        """Changes when tasks are changed or deleted: what was loaded before is loaded again."""
        self.progress = asyncio.Event()
        """Set when a task has ended, or a look at what is due."""

    def add_handler(self, kind: str, handler: TaskHandler, review: Callable[[], Awaitable[None]] | None = None) -> None:
        """Hand the tasks of a kind to a handler from the next look on. `review` is called at each look."""
        self.handlers[kind] = handler
        if review is not None:
            self.reviews.append(review)

    def find_room(self) -> dict[str, int]:
        """Return the kinds of which more tasks may begin, and how many."""
        room = {kind: handler.most - self._counts[kind] for kind, handler in self.handlers.items()}
        return {kind: count for kind, count in room.items() if count > 0}

    @property
    def is_busy(self) -> bool:
        """True while something is handed over or stored, or is about to be."""
        alarm = self.alarm
        return self.is_working or (alarm.is_open and alarm.due_at is not None and alarm.due_at <= self.now())

    @property
    def is_working(self) -> bool:
        """True while something is handed over or stored."""
        is_changing = bool(self.alarm.is_looking or self.reserved or self._changes)
        return is_changing or not all(running.waits for running in self.in_flight.values())

    def is_under_way(self, kind: str, owners: Collection[str]) -> bool:
        """Return True while a task of a kind is under way for one of some owners (bare JIDs)."""
        return any(running.task.kind == kind and running.task.owner in owners for running in self.in_flight.values())

    async def wait_for_progress(self) -> None:
        """Wait until a task has ended, or a look at what is due."""
        self.progress.clear()
        await self.progress.wait()

    def wake(self) -> None:
        """Look for what is due: something was stored."""
        self.alarm.wake_at(self.now())

    # Changes from outside

    def find(self, kind: str, key: str) -> RunningTask | None:
        """Return the work on a task that is under way, or None."""
        return next(
            (running for running in self.in_flight.values() if (running.task.kind, running.task.key) == (kind, key)), None
        )

    def forget(self, is_forgotten: Callable[[Task], bool]) -> None:
        """End the work on some tasks, which are being deleted, and begin none that was loaded before now."""
        self.generation += 1
        for running in [running for running in self.in_flight.values() if is_forgotten(running.task)]:
            self._release(running)
            if running.job is not None:
                running.job.cancel()

    @asynccontextmanager
    async def reserve(self, kind: str, key: str) -> AsyncIterator[None]:
        """Change a task by hand. If it ends now, that is stored first. The clock begins nothing until the change is done."""
        self.reserved += 1
        self.generation += 1
        try:
            while (running := self.find(kind, key)) is not None and not running.waits:
                await self.wait_for_progress()
            yield
        finally:
            self.reserved -= 1
            self.progress.set()
            self.wake()

    def watch(self, change: Commit[bool]) -> Commit[bool]:
        """Count as busy until a change of tasks that are not under way is stored, and look for what is due then."""
        self._changes.add(change)
        change.on_stored(lambda is_changed: self._on_changed(change, is_changed=is_changed))
        change.on_failed(lambda _: self._on_changed(change, is_changed=False))
        return change

    def _on_changed(self, change: Commit[bool], *, is_changed: bool) -> None:
        self._changes.discard(change)
        self.progress.set()
        if is_changed:
            self.wake()

    # The work

    def begin(self, task: Task) -> None:
        """Hand a task to the handler of its kind, and store what becomes of it, however long the database is away."""
        running = self.in_flight[task.id] = RunningTask(task, self.handlers[task.kind])
        self.lanes[task.lane] += 1
        self._counts[task.kind] += 1
        self._work(running)

    def _work(self, running: RunningTask) -> None:
        try:
            ended = running.handler.run(running.task, self.now())
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
        commit = running.commit = self.queue.store([row])
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
            log.error("%s: the %s %s cannot run", self.agent, task.kind, task.key, exc_info=error)
            state, reason = running.handler.failed
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
        looks_again |= kind not in self.find_room() or self.lanes[lane] >= MAX_OF_LANE
        del self.in_flight[running.task.id]
        self._counts[kind] -= 1
        self.lanes[lane] -= 1
        if not self.lanes[lane]:
            del self.lanes[lane]
        self.progress.set()
        if looks_again:
            self.wake()
        elif running.wakes_at is not None:
            self.alarm.wake_at(from_micros(running.wakes_at))

    def _wait_for_database(self, running: RunningTask, error: BaseException) -> None:
        if not self._waiting:  # one line is enough for all of them
            text = "%s: cannot store a %s; the next attempt is in %g s: %s"
            log.error(text, self.agent, running.task.kind, self.retry_s, error)
        self._waiting += 1
        running.waits_for_database = True
        self.progress.set()
        _call_later(self.retry_s, partial(self._try_again, running))

    def _try_again(self, running: RunningTask) -> None:
        self._waiting -= 1
        running.waits_for_database = False
        if not self.is_current(running):
            return
        if running.row is not None:
            self._store(running, running.row)  # what the server has must not be sent once more
        elif self.alarm.is_open:  # after `close`, nothing is begun again
            self._work(running)
        else:
            self._release(running)


class TaskClock:
    """The clock of one agent: at each look it begins the tasks that are due."""

    def __init__(self, tasks: AgentTasks) -> None:
        self.tasks = tasks
        self._alarm = tasks.alarm
        self._look: asyncio.Task[None] | None = None
        self.wake_ups = 0
        """The number of times that it has looked for what is due."""

    def open(self) -> None:
        """Begin to wait for the due times that were named."""
        self._alarm.open(self._wake)

    async def close(self) -> None:
        """Hand over nothing more. What is under way may end."""
        self._alarm.close()
        self.tasks.progress.set()
        if self._look is not None:
            await asyncio.wait({self._look})  # not cancelled, because it may be reading

    def abandon(self) -> None:
        """End what is still under way: nothing can be sent any more. It is handed over again at the next start."""
        self.tasks.forget(lambda task: True)

    def check(self) -> None:
        """Look now: the clock was set."""
        if self._alarm.is_open:
            self._wake()

    async def find_next_due(self) -> datetime | None:
        """Return the next due time of what is not under way; None without one. StoreError if it cannot be read."""
        tasks = self.tasks
        return await tasks.queue.find_next(tasks.find_room(), tasks.in_flight, tasks.lanes)

    async def catch_up(self) -> None:
        """Hand over what is due now, and wait until all states are stored. The clock may have been set."""
        while self.tasks.is_busy:
            if not self.tasks.is_working:
                self.check()
            await self.tasks.wait_for_progress()

    def _wake(self) -> None:
        self._alarm.cancel()
        if self._look is not None:
            self._alarm.looks_again = True
            return
        self._alarm.is_looking = True
        self._look = asyncio.get_running_loop().create_task(self._find_due())
        self._look.add_done_callback(self._on_looked)

    def _on_looked(self, look: asyncio.Task[None]) -> None:
        tasks, alarm, self._look = self.tasks, self._alarm, None
        alarm.is_looking = False
        tasks.progress.set()
        if not look.cancelled() and (error := look.exception()) is not None:
            text = "%s: cannot look for what is due; the next attempt is in %g s: %s"
            log.error(text, tasks.agent, tasks.retry_s, error, exc_info=None if isinstance(error, StoreError) else error)
            alarm.retry()
        elif alarm.is_open and alarm.looks_again:
            self._wake()

    async def _find_due(self) -> None:
        self.wake_ups += 1
        tasks, alarm = self.tasks, self._alarm
        alarm.looks_again = False
        if tasks.reserved:
            return  # the end of that wakes it
        now, generation = tasks.now(), tasks.generation
        for review in tasks.reviews:
            await review()
        room = tasks.find_room()
        due = await tasks.queue.load_next(room, now, min([_BATCH, *room.values()]), tasks.in_flight, tasks.lanes)
        if not alarm.is_open:
            return
        if generation != tasks.generation:
            alarm.looks_again = True
            return
        due.sort(key=lambda task: tasks.handlers[task.kind].waits)  # a turn loads the conversation for what waits behind it
        for task in due:
            tasks.begin(task)
        # What is due next waits for these, or it would queue up for the turns.
        while alarm.is_open and any(not (each.waits or each.waits_for_database) for each in tasks.in_flight.values()):
            await tasks.wait_for_progress()
        if (due_at := await self.find_next_due()) is not None and alarm.is_open:
            alarm.set(due_at)


def _call_later(delay_s: float, work: Callable[[], None]) -> asyncio.TimerHandle:
    """Call a function later, in a context that has nothing of the turn that is under way."""
    return asyncio.get_running_loop().call_later(delay_s, work, context=Context())
