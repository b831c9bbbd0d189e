"""The task queue: what an agent does at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeAlias

from sqlalchemy import ColumnElement, Connection, bindparam, case, func, insert, literal_column, select, tuple_, update

from ..contracts import Notification, NotificationState
from .backends.database import Database
from .backends.group_commit import Commit, Row, Rows
from .backends.statements import ADD_INTERACTION, ADD_TASK, DELETE_TASK, SAVE_CONVERSATION, UPDATE_TASK
from .records import StoredConversation, TurnRecord, conversation_columns, from_micros, to_micros
from .row_repository import RowRepository
from .schema import WAITING, Lane, Task, tasks

MAX_OF_LANE = 20
"""The most tasks of a lane that are under way at once: a room without voice, or a long turn, must not hold up all others."""

SaveStep: TypeAlias = Callable[[Connection, object], None]
"""A function that stores a result, a JSON value, as that of a durable step, in a transaction of the writer."""


def addition_of(task: Task) -> tuple[int, Row]:
    """Return the row that stores a new task, for a transaction of the caller."""
    return ADD_TASK, task


def update_of(task: Task, *, with_data: bool = False) -> tuple[int, Row]:
    """Return the row that stores the state of a task, and its data if they have changed, unless it was deleted."""
    data = task.data if with_data else None
    return UPDATE_TASK, (task.id, task.state, task.reason, task.attempts, data, task.changed_at, task.due_at, task.wake_at)


def deletion_of(task: Task) -> tuple[int, Row]:
    """Return the row that deletes a task."""
    return DELETE_TASK, (task.id,)


def to_notification(task: Task) -> Notification:
    """Return a notification as agents and operators read it."""
    created, due, changed = map(from_micros, (task.created_at, task.due_at, task.changed_at))
    state = NotificationState(task.state)
    return Notification(task.key, task.owner, task.thread, state, task.reason, task.attempts, created, due, changed)


def send_again(task: Task, now: datetime) -> Task | None:
    """Return a notification as it is when it is sent again. None if it is waiting."""
    return None if task.state == WAITING else task.moved(now, due_at=now)._replace(attempts=0)


class TaskQueue(RowRepository[Task]):
    """The tasks of one agent, of one kind if that is given."""

    table, row, ident, order = tasks, Task, "key", "due_at"

    def __init__(self, database: Database, agent: str, kind: str = "") -> None:
        super().__init__(database, agent)
        self._kind = kind

    def make(
        self,
        key: str,
        owner: str,
        thread: str | None,
        root: str,
        data: str,
        now: datetime,
        *,
        due_at: datetime | None = None,
    ) -> Task:
        """Return a new task that waits, not stored yet. It is due now by default. `data` is JSON."""
        micros, due = to_micros(now), to_micros(due_at or now)
        root, row = "" if root == owner else root, self.row_ids.next()
        return Task(row, self._agent, self._kind, key, owner, root, thread, WAITING, "", 0, data, micros, micros, due, due)

    def make_notification(self, key: str, person: str, thread: str | None, root: str, content: str, now: datetime) -> Task:
        """Return a new notification, not stored yet. `content` is JSON: the blocks, or a question."""
        return self.make(key, person, thread, root, f'{{"content":{content}}}', now)

    async def create(
        self,
        new: Task,
        decide: Callable[[int, int], Task | None],
        *,
        since: datetime | None = None,
        save_step: SaveStep | None = None,
    ) -> Task | None:
        """Store a new task as `decide` returns it, or nothing, unless there is one with its key. Return the stored one.

        `decide` gets the numbers of those that its owner had `since`, without the refused ones: of those without a root, and of
        those that others have caused. `save_step` stores the key in the same transaction, as the result of the step that makes
        it.
        """
        is_own = tasks.c.root == ""
        since_then = tasks.c.created_at > (0 if since is None else to_micros(since))
        is_counted = tasks.c.owner == new.owner, since_then, tasks.c.state != NotificationState.REFUSED.value
        count = select(func.count(case((is_own, 1))), func.count(case((~is_own, 1)))).where(*self._own(*is_counted))

        def work(connection: Connection) -> Task | None:
            stored = self.get(connection, self._has(new.key))
            if stored is None and (stored := decide(*connection.execute(count).one())) is not None:
                connection.execute(insert(tasks).values(stored._asdict()))
            if stored is not None and save_step is not None:
                save_step(connection, stored.key)
            return stored

        return await self._database.write(work)

    def store(self, rows: Rows) -> Commit[bool]:
        """Store rows of tasks in one transaction."""
        return self._database.writes.submit(rows)

    def store_turn(self, composed: Task, conversation: StoredConversation, turn: TurnRecord) -> Commit[bool]:
        """Store the turn of a notification with its conversation and its messages, in one transaction."""
        columns = turn.interaction_id, to_micros(turn.timestamp), turn.body, turn.root
        interaction = self.row_ids.next(), conversation.id, conversation.turns, *columns
        rows = [
            (SAVE_CONVERSATION, conversation_columns(self._agent, conversation)),
            (ADD_INTERACTION, interaction),
            update_of(composed, with_data=True),
        ]
        return self._database.writes.submit(rows, is_turn_end=True)

    def change(self, decide: Callable[[Task], Task | None], **values: object) -> Commit[bool]:
        """Store what `decide` makes of each task with some values, None for no change. The commit has False without any."""

        def work(connection: Connection) -> bool:
            found = map(Task._make, connection.execute(select(tasks).where(*self._own(**values))).all())
            changed = [after for task in found if (after := decide(task)) is not None]
            for task in changed:
                connection.execute(update(tasks).where(tasks.c.id == task.id).values(task._asdict()))
            return bool(changed)

        return self._database.run(work)

    async def load_next(
        self, kinds: Iterable[str], now: datetime, limit: int, begun: Iterable[int], lanes: Mapping[Lane, int]
    ) -> list[Task]:
        """Return at most `limit` tasks of some kinds that are due, the first due ones first.

        `begun` are the rows of those under way, which are left out, and `lanes` their numbers by lane.
        """
        found: list[Task] = []
        rows, counts, is_last = [*begun], Counter(lanes), False
        while len(found) < limit and not is_last:
            is_due = tasks.c.wake_at <= to_micros(now)
            page = await self.load(is_due, *_choose(kinds, rows, counts), order=tasks.c.wake_at, limit=limit)
            for task in page:
                counts[task.lane] += 1
                if counts[task.lane] <= MAX_OF_LANE:
                    found.append(task)
            rows += [task.id for task in page]
            is_last = len(page) < limit
        return found[:limit]

    async def find_next(self, kinds: Iterable[str], begun: Iterable[int], lanes: Mapping[Lane, int]) -> datetime | None:
        """Return when the clock has to look next, without the rows of `begun` and full lanes. None if nothing waits."""
        query = select(tasks.c.wake_at).where(*self._own(*_choose(kinds, [*begun], lanes))).order_by(tasks.c.wake_at).limit(1)
        return next(map(from_micros, await self._database.fetch_scalars(query)), None)

    def _own(self, *conditions: ColumnElement[bool], **values: object) -> list[ColumnElement[bool]]:
        return super()._own(*conditions, **{"kind": self._kind or None, **values})


class ScheduleRows(TaskQueue):
    """Schedules, in the order of their times."""

    time, is_newest_first = "due_at", False


def _choose(kinds: Iterable[str], rows: list[int], lanes: Mapping[Lane, int]) -> list[ColumnElement[bool]]:
    full = [lane for lane, count in lanes.items() if count >= MAX_OF_LANE]
    is_waiting = tasks.c.state == literal_column(f"'{WAITING}'")  # as the condition of the index
    conditions = [is_waiting, tasks.c.kind.in_(list(kinds))]
    conditions += [tasks.c.id.not_in(bindparam("rows", rows, expanding=True))] if rows else []  # or each would be checked
    return [*conditions, tuple_(tasks.c.kind, tasks.c.owner).not_in(full)] if full else conditions
