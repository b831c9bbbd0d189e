"""The deliveries of a topic broker: each subscriber gets the items of a topic in their order, and waits for no other.

A delivery stays in the database until its subscriber has answered. What fails is repeated with back-off; after the last attempt
the item becomes a dead letter. An unreachable subscriber costs no attempt: its deliveries wait.

A delivery whose subscriber has asked a person has begun. The next item follows. It is sent again, as the same request, until
the reply is there. If that is a failure, the item is a dead letter, because another request would ask the person again.

A subscription lasts as long as the right to it. It is checked at the start, when access changes, at each publication and before
each delivery. A refused one is removed, with the items that wait because of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from ...contracts import ErrorCode
from ...exceptions import (
    PeerError,
    PeerFailedError,
    PeerParkedError,
    PeerRefusedError,
    PeerTimeoutError,
    PeerUnavailableError,
    RequestTooLongError,
    StoreError,
)
from ...storage import (
    Commit,
    FindRefusal,
    Publication,
    RemovedSubscription,
    TopicDelivery,
    TopicRepository,
    is_dead_letter,
    make_dead_letter,
)
from ..intake.admission import MAX_HOPS

log = logging.getLogger(__name__)

_MAX_IN_FLIGHT = 8
"""The most deliveries to one subscriber that are under way, each of another topic."""
_PAGE = 64
_EXPIRY_PAGE = 200
_MAX_RETRIES_UNTIL_LONGEST_DELAY = 30
_MAX_FAILED_DELAY_S = 300.0
_MAX_UNREACHABLE_DELAY_S = 3600.0
_RETENTION_INTERVAL_S = 3600.0
_PARKED = ""
"""The key, among topics, of the deliveries that wait for a person's answer."""

Deliver: TypeAlias = Callable[[TopicDelivery, float], Awaitable[None]]
"""A function that delivers an item, and waits so many seconds for its reply. PeerError if the item was not accepted."""


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """The limits of a broker.

    attempts      Failed attempts after which an item becomes a dead letter.
    items, days   The number of items of a topic that are kept, and for how long. None means no limit.
    retry_s       Seconds before the first repetition. The delay doubles with each further one.
    timeout_s     Seconds that a subscriber may take for an item, before it counts as unreachable.
    """

    attempts: int = 10
    items: int | None = 1000
    days: float | None = 30
    retry_s: float = 1.0
    timeout_s: float = 180.0

    def delay_s(self, failures: int, max_s: float) -> float:
        """Return the delay after a number of failures in a row."""
        return float(min(max_s, self.retry_s * 2 ** min(failures - 1, _MAX_RETRIES_UNTIL_LONGEST_DELAY)))


class TopicDeliveries:
    """The deliveries to all subscribers of one broker (`agent`, a bare JID), as far as `find_refusal` does not refuse them."""

    def __init__(
        self,
        agent: str,
        repository: TopicRepository,
        deliver: Deliver,
        policy: DeliveryPolicy,
        clock: Callable[[], datetime],
        find_refusal: FindRefusal,
    ) -> None:
        self.agent = agent
        self.repository = repository
        self.deliver = deliver
        self.policy = policy
        self.clock = clock
        self.find_refusal = find_refusal
        self._queues: dict[str, _SubscriberQueue] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._must_review = asyncio.Event()
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Remove what is refused now. Then begin with the deliveries that an earlier run left, and delete old items."""
        await self.review()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work, context=Context()) for work in (self._purge_hourly(), self._review_changes())]
        for subscriber in await self.repository.list_waiting_subscribers():
            self.wake(subscriber)

    async def close(self) -> None:
        """End all work. What was not delivered stays stored."""
        tasks = [*self._tasks, *(task for queue in self._queues.values() for task in queue.tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._queues.clear()

    def wake(self, subscriber: str, *, is_reachable: bool = False) -> None:
        """Load the deliveries to a subscriber. `is_reachable`: it has just sent something, so it is tried at once."""
        queue = self._queues.get(subscriber)
        if queue is None:
            queue = self._queues[subscriber] = _SubscriberQueue(self, subscriber)
            queue.start()
        else:
            queue.wake(is_reachable=is_reachable)

    def remove(self, subscriber: str) -> None:
        """Remove the queue of a subscriber for whom nothing waits."""
        del self._queues[subscriber]

    def is_busy(self, subscribers: Collection[str]) -> bool:
        """Return True while something is under way to one of some subscribers. What waits for a repetition does not count."""
        return any(queue.is_busy for name, queue in self._queues.items() if name in subscribers)

    async def wait_for_change(self) -> None:
        """Wait until a delivery has ended, or a queue has loaded its next ones."""
        self._changed.clear()
        await self._changed.wait()

    def notify(self) -> None:
        """Wake the tasks in `wait_for_change`."""
        self._changed.set()

    async def drop(self, delivery: TopicDelivery, error: str) -> None:
        """Make a dead letter of a delivery."""
        item, subscriber = delivery.item, delivery.subscriber
        fate = "is dropped" if is_dead_letter(item.topic) else "is a dead letter"
        log.warning("%s: the item %s of %s to %s %s: %s", self.agent, item.item_id, item.topic, subscriber, fate, error)
        letter = make_dead_letter(item, subscriber, error, self.clock())
        letter = letter._replace(hops=min(item.hops, MAX_HOPS - 1))  # or its readers would refuse it
        self.on_published(await self.repository.move_to_dead_letters(delivery, letter, self.find_refusal))

    def on_published(self, publication: Publication) -> None:
        """Deliver an item that was stored."""
        self._log_removed(publication.removed)
        for subscriber in publication.subscribers:
            self.wake(subscriber)

    # Rights

    async def review(self) -> None:
        """Remove all subscriptions that are refused now."""
        subscriptions = await self.repository.load_subscriptions()
        await self.remove_refused({name for name, pattern in subscriptions if self.find_refusal(name, pattern) is not None})

    async def remove_refused(self, subscribers: Collection[str]) -> None:
        """Remove the refused subscriptions of some subscribers, with the items that wait for them."""
        self._log_removed(await self.repository.remove_refused(subscribers, self.find_refusal))

    def review_soon(self) -> None:
        """Review the subscriptions in a task, because access has changed. Until then each delivery is checked by itself."""
        self._must_review.set()

    async def _review_changes(self) -> None:
        while True:
            await self._must_review.wait()
            self._must_review.clear()
            try:
                await self.review()
            except StoreError as error:
                text = "%s: cannot review the subscriptions: %s; each is checked before its next delivery"
                log.error(text, self.agent, error)

    def _log_removed(self, removed: Iterable[RemovedSubscription]) -> None:
        for each in removed:
            patterns = ", ".join(each.patterns) or "no topic"
            text = "%s: removed the subscription of %s to %s (waiting items: %d): %s"
            log.warning(text, self.agent, each.subscriber, patterns, each.waiting, each.reason)

    # Retention

    async def purge(self) -> int:
        """Make dead letters of what waits for longer than the retention, and delete old items. Return their number."""
        policy = self.policy
        before = None if policy.days is None else self.clock() - timedelta(days=policy.days)
        if before is not None:
            while expired := await self.repository.load_older(before, _EXPIRY_PAGE):
                for delivery in expired:
                    await self.drop(delivery, f"the subscriber was unreachable for {policy.days:g} days")
        return await self.repository.delete_old_items(before, policy.items)

    async def _purge_hourly(self) -> None:
        while True:
            try:
                await self.purge()
            except StoreError as error:
                log.error("%s: cannot delete old items; the next attempt is in an hour: %s", self.agent, error)
            await asyncio.sleep(_RETENTION_INTERVAL_S)


class _SubscriberQueue:
    """The deliveries to one subscriber: those of a topic one after the other, and some topics at once."""

    def __init__(self, deliveries: TopicDeliveries, subscriber: str) -> None:
        self._deliveries = deliveries
        self._subscriber = subscriber
        self._topic_tasks: dict[str, asyncio.Task[None]] = {}
        self._retry_at: dict[str, float] = {}
        """The time at which a topic whose delivery has failed is tried again."""
        self._unreachable_attempts = 0
        """The number of attempts in a row that did not reach the subscriber, or failed in the database."""
        self._paused_until = 0.0
        self._wakeup = asyncio.Event()
        self._is_loading = True
        self._worker: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the queue."""
        return [*self._topic_tasks.values(), *([] if self._worker is None else [self._worker])]

    @property
    def is_busy(self) -> bool:
        """True while a delivery is under way, or the next ones are loaded."""
        return bool(self._topic_tasks) or self._is_loading

    def start(self) -> None:
        """Start the work, in a context that has nothing of the turn that published."""
        self._worker = asyncio.get_running_loop().create_task(self._work(), context=Context())

    def wake(self, *, is_reachable: bool = False) -> None:
        """Load the deliveries again. An unreachable subscriber is tried only if `is_reachable`."""
        if is_reachable:
            self._unreachable_attempts, self._paused_until = 0, 0.0
        if not self._paused_until:
            self._is_loading = True
        self._wakeup.set()

    async def _work(self) -> None:
        """Start the topics with deliveries, until nothing waits."""
        loop = asyncio.get_running_loop()
        while True:
            self._wakeup.clear()
            try:
                has_more = await self._start_topics()
            except StoreError as error:
                log.error("%s: cannot load items for %s: %s", self._deliveries.agent, self._subscriber, error)
                self._back_off()
                has_more = True
            if self._wakeup.is_set():
                continue
            self._is_loading = False
            self._deliveries.notify()
            if not (has_more or self._topic_tasks or self._retry_at):
                self._deliveries.remove(self._subscriber)
                return
            times = [*self._retry_at.values(), *([self._paused_until] if self._paused_until else [])]
            try:
                async with asyncio.timeout_at(min(times) if times else None):
                    await self._wakeup.wait()
            except TimeoutError:
                now = loop.time()
                self._retry_at = {topic: time for topic, time in self._retry_at.items() if time > now}
                if self._paused_until <= now:
                    self._paused_until = 0.0
            self._is_loading = not self._paused_until

    async def _start_topics(self) -> bool:
        """Start a task for each topic with deliveries, as far as there is room. Return True if something waits."""
        # An unreachable subscriber is tried with one item.
        room = (1 if self._unreachable_attempts else _MAX_IN_FLIGHT) - len(self._topic_tasks)
        if self._paused_until or room <= 0:
            return True
        skipped = {*self._topic_tasks, *self._retry_at}
        by_topic: dict[str, list[TopicDelivery]] = {}
        for delivery in await self._deliveries.repository.load_deliveries(
            self._subscriber, skipped, _PAGE, _PARKED not in skipped
        ):
            by_topic.setdefault(delivery.item.topic, []).append(delivery)
        for topic, waiting in list(by_topic.items())[:room]:
            batch = waiting[:1] if self._unreachable_attempts else waiting
            self._topic_tasks[topic] = asyncio.create_task(self._deliver_topic(topic, batch))
        return bool(by_topic)

    async def _deliver_topic(self, topic: str, batch: list[TopicDelivery]) -> None:
        """Deliver items of one topic, one after the other, until one fails."""
        commit: Commit[Any] | None = None
        try:
            for delivery in batch:
                if self._deliveries.find_refusal(self._subscriber, topic) is not None:
                    await self._deliveries.remove_refused([self._subscriber])
                    break
                if (has_ended := await self._attempt(delivery)) is False:
                    break
                # Awaited only after the last one: what is repeated after a crash is answered without another run.
                if has_ended:
                    commit = self._deliveries.repository.complete(delivery)
            if commit is not None:
                await commit  # or the next page would have it again
        except StoreError as error:
            log.error("%s: cannot store the delivery to %s: %s", self._deliveries.agent, self._subscriber, error)
            self._back_off()
        except Exception:
            log.exception("%s: the delivery to %s failed", self._deliveries.agent, self._subscriber)
            self._back_off()
        finally:
            del self._topic_tasks[topic]
            self.wake()
            self._deliveries.notify()

    async def _attempt(self, delivery: TopicDelivery) -> bool | None:
        """Deliver an item. Return True if it has ended, and None if its subscriber waits for a person's answer.

        In both cases the next one of its topic may follow.
        """
        try:
            await self._deliveries.deliver(delivery, self._deliveries.policy.timeout_s)
        except PeerParkedError as error:
            self._unreachable_attempts = 0
            await self._deliveries.repository.record_failure(delivery, delivery.failures, str(error), True)
            self._retry_after(_PARKED, self._deliveries.policy.delay_s(8, _MAX_FAILED_DELAY_S))
            return None
        except (PeerTimeoutError, PeerUnavailableError) as error:
            log.info("%s: an item waits: %s", self._deliveries.agent, error)
            self._back_off()
            return False
        except PeerFailedError as error:
            if error.code != ErrorCode.NOT_FOUND:  # else it was accepted, and the subscriber has deleted its answer
                return await self._on_failed(delivery, error)
        except PeerError as error:
            return await self._on_failed(delivery, error)
        self._unreachable_attempts = 0
        return True

    async def _on_failed(self, delivery: TopicDelivery, error: PeerError) -> bool:
        """Count a failure, and plan the next attempt. After the last one the item is a dead letter.

        A refusal for a time does not count, so that the id stays: the subscriber may have the request already.
        """
        self._unreachable_attempts = 0
        wait_s = error.retry_after_s if isinstance(error, PeerRefusedError) else None
        policy, failures = self._deliveries.policy, delivery.failures + (wait_s is None)
        has_asked = isinstance(error, PeerFailedError) and error.has_asked
        if has_asked or failures >= policy.attempts or isinstance(error, RequestTooLongError):
            await self._deliveries.drop(delivery, str(error))
            return True
        log.info("%s: an item was not accepted, attempt %d: %s", self._deliveries.agent, failures, error)
        await self._deliveries.repository.record_failure(delivery, failures, str(error))
        delay_s = policy.delay_s(failures, _MAX_FAILED_DELAY_S)
        self._retry_after(delivery.item.topic, max(delay_s, min(wait_s or 0.0, _MAX_FAILED_DELAY_S)))
        return False

    def _retry_after(self, topic: str, delay_s: float) -> None:
        self._retry_at[topic] = asyncio.get_running_loop().time() + delay_s

    def _back_off(self) -> None:
        """Let all deliveries wait, longer each time."""
        self._unreachable_attempts += 1
        delay_s = self._deliveries.policy.delay_s(self._unreachable_attempts, _MAX_UNREACHABLE_DELAY_S)
        self._paused_until = asyncio.get_running_loop().time() + delay_s
