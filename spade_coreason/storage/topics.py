"""Topics of a broker: subscriptions, items, and the deliveries that subscribers have not accepted yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Connection, Select, case, delete, func, insert, select, update

from ..domain.topics import DEAD_LETTER, dead_letter_topic, derive_dead_letter_id, matches
from .backends.database import Database
from .backends.dialect_sql import insert_or_skip
from .backends.group_commit import Commit
from .backends.sequences import take_row_ids
from .records import from_micros, to_micros
from .schema import DELIVERY, WAITING, Task, tasks, topic_deliveries, topic_items, topic_subscriptions
from .tasks import TaskQueue

MAX_ERROR_CHARACTERS = 500
"""The most characters of an error that are stored with a delivery or a dead letter."""

FindRefusal: TypeAlias = Callable[[str, str], str | None]
"""A function that returns why a subscriber (a bare JID) may not have a pattern or a topic, or None if it may.

It decides from values in memory, because the thread of the writer calls it inside a transaction.
"""


class TopicItem(NamedTuple):
    """An item: a payload that was published to a topic.

    `publisher` is a bare JID, "" once its data were deleted. `hops` is the number of agents that passed on the request which
    published it. `root` is the person behind that request: "" if it is the publisher, and `HIDDEN_PERSON` if not known.
    `dead_letter` says of an item that was not delivered to whom, and why not.
    """

    item_id: str
    topic: str
    publisher: str
    published_at: datetime
    payload: dict[str, Any]
    hops: int = 0
    dead_letter: dict[str, Any] | None = None
    root: str = ""


class TopicDelivery(NamedTuple):
    """An item for one subscriber (a bare JID), who has not accepted it yet. `row` is the row of the item."""

    row: int
    subscriber: str
    failures: int
    item: TopicItem


class RemovedSubscription(NamedTuple):
    """The patterns of a subscriber (a bare JID) that were removed, and the number of items that waited because of them."""

    subscriber: str
    patterns: tuple[str, ...]
    reason: str
    waiting: int


class Publication(NamedTuple):
    """An item that was stored: the subscribers that get it, and the subscriptions that were removed with it as refused."""

    subscribers: list[str]
    removed: list[RemovedSubscription]


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic with stored items: their number, and the time of the newest."""

    topic: str
    items: int
    newest_at: datetime


@dataclass(frozen=True, slots=True)
class SubscriberSummary:
    """A subscriber (a bare JID) with its patterns.

    `waiting` counts the items that it has not accepted, `oldest_at` is the time of the oldest, and `error` its last problem.
    """

    subscriber: str
    patterns: tuple[str, ...]
    waiting: int = 0
    oldest_at: datetime | None = None
    error: str = ""


class PersonTopics(NamedTuple):
    """The data of a person or an agent at a broker: its patterns, and the items that it has published."""

    patterns: tuple[str, ...]
    published: tuple[TopicItem, ...]


_is_parked = topic_deliveries.c.parked.is_not(None)
_task_key = topic_deliveries.c.subscriber + " " + case((_is_parked, ""), else_=topic_deliveries.c.topic)
"""The key of the task of a delivery: its subscriber and its topic, or no topic if it waits for a person's answer."""


def _refuse_none(subscriber: str, pattern: str) -> None:
    return None


class TopicRepository:
    """The topics of one broker (a bare JID). Methods raise StoreError if the database fails."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent
        self.tasks = TaskQueue(database, agent, DELIVERY)
        """The tasks: one for each subscriber and topic with something that waits, and one that deletes old items."""

    # Subscriptions

    async def subscribe(self, subscriber: str, patterns: Collection[str]) -> None:
        """Store all patterns of a subscriber. Others are removed, with the items that wait because of them."""

        def work(connection: Connection) -> None:
            own = topic_subscriptions.c.agent == self._agent, topic_subscriptions.c.subscriber == subscriber
            before = set(connection.scalars(select(topic_subscriptions.c.pattern).where(*own)))
            for pattern in sorted(set(patterns) - before):
                connection.execute(
                    insert(topic_subscriptions).values(agent=self._agent, subscriber=subscriber, pattern=pattern)
                )
            if removed := before - set(patterns):
                connection.execute(delete(topic_subscriptions).where(*own, topic_subscriptions.c.pattern.in_(removed)))
                self._delete_unmatched(connection, subscriber, patterns)

        await self._database.write(work)

    async def load_subscriptions(self) -> list[tuple[str, str]]:
        """Return each subscriber with each of its patterns."""
        columns = topic_subscriptions.c
        rows = await self._fetch(select(columns.subscriber, columns.pattern).where(columns.agent == self._agent))
        return [(row.subscriber, row.pattern) for row in rows]

    async def remove_refused(self, subscribers: Collection[str], find_refusal: FindRefusal) -> list[RemovedSubscription]:
        """Remove the patterns of some subscribers that are refused, with the items that wait because of them.

        Each subscriber is one transaction.
        """
        removed: list[RemovedSubscription] = []
        for subscriber in subscribers:
            removed += await self._database.write(
                partial(self._remove_refused, subscriber=subscriber, find_refusal=find_refusal)
            )
        return removed

    def _remove_refused(self, connection: Connection, subscriber: str, find_refusal: FindRefusal) -> list[RemovedSubscription]:
        own = topic_subscriptions.c.agent == self._agent, topic_subscriptions.c.subscriber == subscriber
        patterns = list(
            connection.scalars(select(topic_subscriptions.c.pattern).where(*own).order_by(topic_subscriptions.c.pattern))
        )
        refused = {pattern: reason for pattern in patterns if (reason := find_refusal(subscriber, pattern)) is not None}
        if refused:
            connection.execute(delete(topic_subscriptions).where(*own, topic_subscriptions.c.pattern.in_(list(refused))))
        waiting = self._delete_unmatched(connection, subscriber, [pattern for pattern in patterns if pattern not in refused])
        if not refused and not waiting:
            return []
        reason = next(iter(refused.values()), "no subscription matches them")
        return [RemovedSubscription(subscriber, tuple(refused), reason, waiting)]

    def _delete_unmatched(self, connection: Connection, subscriber: str, patterns: Collection[str]) -> int:
        """Delete the deliveries to a subscriber that none of its patterns matches. Return their number."""
        waiting = topic_deliveries.c.agent == self._agent, topic_deliveries.c.subscriber == subscriber
        count = 0
        for topic in list(connection.scalars(select(topic_deliveries.c.topic).where(*waiting).distinct())):
            if not any(matches(pattern, topic) for pattern in patterns):
                count += connection.execute(
                    delete(topic_deliveries).where(*waiting, topic_deliveries.c.topic == topic)
                ).rowcount
        return count

    # Items

    def publish(self, item: TopicItem, find_refusal: FindRefusal = _refuse_none) -> Commit[Publication]:
        """Store an item with a delivery for each subscriber, in one transaction.

        A matching subscription that is refused now is removed in the same transaction, with the items that wait because of it.
        An item that is stored already is not stored again; then it has no subscribers.
        """
        row = self._database.row_ids.next()
        return self._database.run(lambda connection: self._add_item(connection, row, item, find_refusal))

    def _add_item(self, connection: Connection, row: int, item: TopicItem, find_refusal: FindRefusal) -> Publication:
        known = select(topic_items.c.id).where(topic_items.c.agent == self._agent, topic_items.c.item_id == item.item_id)
        if connection.scalar(known) is not None:
            return Publication([], [])
        connection.execute(
            insert(topic_items).values(
                id=row,
                agent=self._agent,
                item_id=item.item_id,
                topic=item.topic,
                publisher=item.publisher,
                published_at=to_micros(item.published_at),
                hops=item.hops,
                root=item.root,
                # JSON with escapes only: PostgreSQL stores no NUL, and no database a lone surrogate.
                payload=json.dumps(item.payload),
                dead_letter=None if item.dead_letter is None else json.dumps(item.dead_letter),
            )
        )
        columns = topic_subscriptions.c
        subscriptions = connection.execute(
            select(columns.subscriber, columns.pattern).where(columns.agent == self._agent).order_by(columns.subscriber)
        ).all()
        subscribers: dict[str, None] = {}
        refused: dict[str, None] = {}
        for name, pattern in subscriptions:
            if matches(pattern, item.topic):
                (subscribers if find_refusal(name, pattern) is None else refused)[name] = None
        if subscribers:
            common = {"item": row, "agent": self._agent, "topic": item.topic, "failures": 0, "error": ""}
            connection.execute(insert(topic_deliveries), [{**common, "subscriber": name} for name in subscribers])
            self._add_tasks(connection, [(name, f"{name} {item.topic}") for name in subscribers], item.published_at)
        removed = [each for name in refused for each in self._remove_refused(connection, name, find_refusal)]
        return Publication(list(subscribers), removed)

    async def load_newest(self, topic: str, limit: int) -> list[TopicItem]:
        """Return the newest items of a topic, the oldest of them first."""
        query = select(topic_items).where(topic_items.c.agent == self._agent, topic_items.c.topic == topic)
        rows = await self._fetch(query.order_by(topic_items.c.id.desc()).limit(limit))
        return [_item(row) for row in reversed(rows)]

    # Deliveries

    async def begin(self, now: datetime) -> None:
        """Let all that waits be delivered now, and old items be deleted: store a task for each subscriber and topic."""
        waiting = select(topic_deliveries.c.subscriber, _task_key).where(topic_deliveries.c.agent == self._agent).distinct()

        def work(connection: Connection) -> None:
            connection.execute(delete(tasks).where(tasks.c.agent == self._agent, tasks.c.kind == DELIVERY))
            self._add_tasks(connection, [("", ""), *((name, key) for name, key in connection.execute(waiting))], now)

        await self._database.write(work)

    def _add_tasks(self, connection: Connection, queues: Sequence[tuple[str, str]], now: datetime) -> None:
        """Store the tasks of some subscribers with these keys, unless there are any."""
        due = to_micros(now)
        rows = [
            Task(row, self._agent, DELIVERY, key, subscriber, "", "", WAITING, "", 0, "{}", due, due, due, due)._asdict()
            for row, (subscriber, key) in zip(take_row_ids(connection, len(queues)), queues, strict=True)
        ]
        connection.execute(insert_or_skip(tasks), rows)

    def move_tasks(self, subscriber: str, now: datetime, wake_at: datetime | None = None) -> Commit[bool]:
        """Let the tasks of a subscriber wait until a time, by default until they are due."""
        own = tasks.c.agent == self._agent, tasks.c.kind == DELIVERY, tasks.c.owner == subscriber
        wakes = tasks.c.due_at if wake_at is None else to_micros(wake_at)
        moved = update(tasks).where(*own).values(state=WAITING, reason="", changed_at=to_micros(now), wake_at=wakes)
        return self._database.run(lambda connection: bool(connection.execute(moved).rowcount))

    async def load_deliveries(self, subscriber: str, limit: int, key: str | None = None) -> list[TopicDelivery]:
        """Return the oldest deliveries to a subscriber, in the order of their items; those of the task with a key, if given."""
        of_task = [topic_deliveries.c.subscriber == subscriber] if key is None else _of_task(subscriber, key)
        rows = await self._fetch(self._select_deliveries().where(*of_task).order_by(topic_deliveries.c.item).limit(limit))
        return [_delivery(row) for row in rows]

    def finish(self, task: Task) -> Commit[bool]:
        """Delete a task if nothing waits for it. The commit has False if something does."""
        of_task = topic_deliveries.c.agent == self._agent, *_of_task(task.owner, task.key)
        over = delete(tasks).where(tasks.c.id == task.id, ~select(topic_deliveries.c.item).where(*of_task).exists())
        return self._database.run(lambda connection: bool(connection.execute(over).rowcount))

    async def load_older(self, before: datetime, limit: int) -> list[TopicDelivery]:
        """Return deliveries of items that were published before a time, except those that wait for a person's answer."""
        query = self._select_deliveries().where(topic_items.c.published_at < to_micros(before), ~_is_parked)
        return [_delivery(row) for row in await self._fetch(query.order_by(topic_deliveries.c.item).limit(limit))]

    def complete(self, delivery: TopicDelivery) -> Commit[Any]:
        """Delete a delivery, because the subscriber has accepted the item."""
        return self._database.run(
            lambda connection: connection.execute(delete(topic_deliveries).where(*_is(delivery))).rowcount
        )

    async def record_failure(self, delivery: TopicDelivery, failures: int, error: str, again: datetime | None = None) -> None:
        """Store the number of failures of a delivery, and the last one.

        With `again`, it is parked until then: its subscriber waits for a person's answer.
        """
        failed = update(topic_deliveries).where(*_is(delivery)).values(failures=failures, error=error[:MAX_ERROR_CHARACTERS])
        if again is not None:
            failed = failed.where(~_is_parked).values(parked=True)
        key = f"{delivery.subscriber} "
        earlier = delete(tasks).where(tasks.c.agent == self._agent, tasks.c.kind == DELIVERY, tasks.c.key == key)

        def work(connection: Connection) -> None:
            if connection.execute(failed).rowcount and again is not None:
                connection.execute(earlier)  # it looks seldom, if the others have waited for long
                self._add_tasks(connection, [(delivery.subscriber, key)], again)

        await self._database.write(work)

    async def move_to_dead_letters(
        self, delivery: TopicDelivery, letter: TopicItem, find_refusal: FindRefusal = _refuse_none
    ) -> Publication:
        """Delete a delivery, and publish its dead letter.

        A dead letter that is not delivered is only dropped. Nothing happens if the delivery was deleted.
        """
        row = self._database.row_ids.next()

        def work(connection: Connection) -> Publication:
            deleted = connection.execute(delete(topic_deliveries).where(*_is(delivery))).rowcount
            if not deleted or is_dead_letter(delivery.item.topic):
                return Publication([], [])
            return self._add_item(connection, row, letter, find_refusal)

        return await self._database.write(work)

    # Retention

    async def delete_old_items(self, before: datetime | None, items: int | None) -> int:
        """Delete items that were published before a time, and all but the newest `items` of each topic.

        Items that a subscriber has not accepted yet stay. Return the number of deleted items.
        """
        waits = select(topic_deliveries.c.item).where(topic_deliveries.c.item == topic_items.c.id).exists()
        own = topic_items.c.agent == self._agent

        def work(connection: Connection) -> int:
            count = 0
            if before is not None:
                count += connection.execute(
                    delete(topic_items).where(own, topic_items.c.published_at < to_micros(before), ~waits)
                ).rowcount
            if items is not None:
                query = select(topic_items.c.topic).where(own).group_by(topic_items.c.topic).having(func.count() > items)
                for topic in list(connection.scalars(query)):
                    of_topic = own, topic_items.c.topic == topic
                    newest = select(topic_items.c.id).where(*of_topic).order_by(topic_items.c.id.desc())
                    last = connection.scalar(newest.offset(items).limit(1))
                    count += connection.execute(delete(topic_items).where(*of_topic, topic_items.c.id <= last, ~waits)).rowcount
            return count

        return await self._database.erase(work)

    # Summaries

    async def list_topics(self) -> list[TopicSummary]:
        """Return the topics with stored items, in alphabetical order."""
        columns = topic_items.c.topic, func.count().label("items"), func.max(topic_items.c.published_at).label("newest_at")
        query = select(*columns).where(topic_items.c.agent == self._agent).group_by(topic_items.c.topic)
        rows = await self._fetch(query.order_by(topic_items.c.topic))
        return [TopicSummary(row.topic, row.items, from_micros(row.newest_at)) for row in rows]

    async def list_subscribers(self) -> list[SubscriberSummary]:
        """Return all subscribers, in alphabetical order."""
        own = topic_subscriptions.c.agent == self._agent
        patterns: dict[str, list[str]] = {}
        for row in await self._fetch(
            select(topic_subscriptions.c.subscriber, topic_subscriptions.c.pattern)
            .where(own)
            .order_by(topic_subscriptions.c.pattern)
        ):
            patterns.setdefault(row.subscriber, []).append(row.pattern)
        counts = (
            select(
                topic_deliveries.c.subscriber,
                func.count().label("waiting"),
                func.min(topic_items.c.published_at).label("oldest_at"),
                func.max(topic_deliveries.c.error).label("error"),
            )
            .join(topic_items, topic_items.c.id == topic_deliveries.c.item)
            .where(topic_deliveries.c.agent == self._agent)
            .group_by(topic_deliveries.c.subscriber)
        )
        waiting = {row.subscriber: row for row in await self._fetch(counts)}
        return [
            SubscriberSummary(name, tuple(patterns.get(name, ())), row.waiting, from_micros(row.oldest_at), row.error)
            if (row := waiting.get(name)) is not None
            else SubscriberSummary(name, tuple(patterns.get(name, ())))
            for name in sorted({*patterns, *waiting})
        ]

    # Persons

    async def load_of_person(self, person: str) -> PersonTopics:
        """Return what the broker stores about a person or an agent (a bare JID)."""
        own = topic_subscriptions.c.agent == self._agent, topic_subscriptions.c.subscriber == person
        patterns = await self._fetch(select(topic_subscriptions.c.pattern).where(*own).order_by(topic_subscriptions.c.pattern))
        published = select(topic_items).where(topic_items.c.agent == self._agent, topic_items.c.publisher == person)
        rows = await self._fetch(published.order_by(topic_items.c.id))
        return PersonTopics(tuple(row.pattern for row in patterns), tuple(map(_item, rows)))

    def _select_deliveries(self) -> Select[Any]:
        columns = topic_deliveries.c.subscriber, topic_deliveries.c.failures
        joined = select(topic_items, *columns).join(topic_deliveries, topic_deliveries.c.item == topic_items.c.id)
        return joined.where(topic_deliveries.c.agent == self._agent)

    async def _fetch(self, query: Select[Any]) -> Sequence[Any]:
        return await self._database.fetch(query, is_background=True)


def make_dead_letter(item: TopicItem, subscriber: str, error: str, now: datetime) -> TopicItem:
    """Make the dead letter about an item that a subscriber (a bare JID) did not take."""
    return item._replace(
        item_id=derive_dead_letter_id(item.item_id, subscriber),
        topic=dead_letter_topic(item.topic),
        published_at=now,
        dead_letter={
            "subscriber": subscriber,
            "error": error[:MAX_ERROR_CHARACTERS],
            "item_id": item.item_id,
            "topic": item.topic,
        },
    )


def is_dead_letter(topic: str) -> bool:
    """Return True for a topic of items that were not delivered."""
    return topic.startswith(f"{DEAD_LETTER}/")


def clear_dead_letters(connection: Connection, agent: str, person: str) -> None:
    """Delete the name of a subscriber (a bare JID) from dead letters, in a transaction of the writer."""
    items = topic_items.c
    letters = select(items.id, items.dead_letter).where(items.agent == agent, items.dead_letter.is_not(None))
    for row in connection.execute(letters).all():
        if (dead_letter := json.loads(row.dead_letter))["subscriber"] == person:
            text = json.dumps({**dead_letter, "subscriber": "", "error": ""})  # the error may name it too
            connection.execute(update(topic_items).where(items.id == row.id).values(dead_letter=text))


def _of_task(subscriber: str, key: str) -> list[ColumnElement[bool]]:
    """Return the conditions that deliveries are those of a task, as the index finds them."""
    topic = key.removeprefix(f"{subscriber} ")
    of_topic = topic_deliveries.c.topic == topic, ~_is_parked
    return [topic_deliveries.c.subscriber == subscriber, *(of_topic if topic else [_is_parked])]


def _is(delivery: TopicDelivery) -> tuple[Any, Any]:
    return topic_deliveries.c.item == delivery.row, topic_deliveries.c.subscriber == delivery.subscriber


def _delivery(row: Any) -> TopicDelivery:
    return TopicDelivery(row.id, row.subscriber, row.failures, _item(row))


def _item(row: Any) -> TopicItem:
    dead_letter: Mapping[str, Any] | None = None if row.dead_letter is None else json.loads(row.dead_letter)
    return TopicItem(
        row.item_id,
        row.topic,
        row.publisher,
        from_micros(row.published_at),
        json.loads(row.payload),
        row.hops,
        None if dead_letter is None else dict(dead_letter),
        row.root or "",
    )
