"""The deliveries of a topic broker: each subscriber gets the items of a topic in their order, and waits for no other.

A delivery stays in the database until its subscriber has answered. What fails is repeated with back-off; after the last attempt
the item becomes a dead letter. An absent subscriber costs no attempt: its deliveries wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from ...contracts import ErrorCode
from ...exceptions import (
    PeerError,
    PeerFailedError,
    PeerRefusedError,
    PeerTimeoutError,
    PeerUnavailableError,
    RequestTooLongError,
    StoreError,
)
from ...storage import Commit, TopicDelivery, TopicRepository, is_dead_letter

log = logging.getLogger(__name__)

_MAX_IN_FLIGHT = 8
"""The most deliveries to one subscriber that are under way, each of another topic."""
_PAGE = 64
_EXPIRY_PAGE = 200
_MAX_RETRIES_UNTIL_LONGEST_DELAY = 30
_MAX_FAILED_DELAY_S = 300.0
_MAX_ABSENT_DELAY_S = 3600.0
_RETENTION_INTERVAL_S = 3600.0

Deliver: TypeAlias = Callable[[TopicDelivery, float], Awaitable[None]]
"""A function that delivers an item, and waits so many seconds for the end of the reply. PeerError if the item was not taken."""


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """The limits of a broker.

    attempts      Failed attempts after which an item becomes a dead letter.
    items, days   The number of items of a topic that are kept, and for how long. None means no limit.
    retry_s       Seconds before the first repetition. The delay doubles with each further one.
    timeout_s     Seconds that a subscriber may take for an item, before it counts as absent.
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
    """The deliveries to all subscribers of one broker (`agent`, a bare JID)."""

    def __init__(
        self,
        agent: str,
        repository: TopicRepository,
        deliver: Deliver,
        policy: DeliveryPolicy,
        clock: Callable[[], datetime],
    ) -> None:
        self.agent = agent
        self.repository = repository
        self.deliver = deliver
        self.policy = policy
        self.clock = clock
        self._queues: dict[str, _SubscriberQueue] = {}
        self._retention: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Begin with the deliveries that an earlier run left, and with the deletion of old items."""
        self._retention = asyncio.get_running_loop().create_task(self._purge_hourly(), context=Context())
        for subscriber in await self.repository.list_waiting_subscribers():
            self.wake(subscriber)

    async def close(self) -> None:
        """End all work. What was not delivered stays stored."""
        tasks = [task for queue in self._queues.values() for task in queue.tasks]
        if self._retention is not None:
            tasks.append(self._retention)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._queues.clear()

    def wake(self, subscriber: str, *, is_present: bool = False) -> None:
        """Look for deliveries to a subscriber. `is_present`: it is there, so one that was absent is tried at once."""
        queue = self._queues.get(subscriber)
        if queue is None:
            queue = self._queues[subscriber] = _SubscriberQueue(self, subscriber)
            queue.start()
        else:
            queue.wake(is_present=is_present)

    def remove(self, subscriber: str) -> None:
        """Remove the queue of a subscriber for whom nothing waits."""
        del self._queues[subscriber]

    def is_busy(self, subscribers: Collection[str]) -> bool:
        """Return True while something is under way to one of some subscribers. What waits for a repetition does not count."""
        return any(queue.is_busy for name, queue in self._queues.items() if name in subscribers)

    async def wait_for_change(self) -> None:
        """Wait until a delivery has ended, or a queue has been looked at."""
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
        for other in await self.repository.move_to_dead_letters(delivery, error, self.clock()):
            self.wake(other)

    # Retention

    async def purge(self) -> int:
        """Make dead letters of what waits for longer than the retention, and delete old items. Return their number."""
        policy = self.policy
        before = None if policy.days is None else self.clock() - timedelta(days=policy.days)
        if before is not None:
            while expired := await self.repository.load_older(before, _EXPIRY_PAGE):
                for delivery in expired:
                    await self.drop(delivery, f"the subscriber was absent for {policy.days:g} days")
        return await self.repository.delete_old_items(before, policy.items)

    async def _purge_hourly(self) -> None:
        while True:
            try:
                await self.purge()
            except StoreError as error:
                log.error("%s: cannot delete old items; the next attempt is in an hour: %s", self.agent, error)
            await asyncio.sleep(_RETENTION_INTERVAL_S)


class _SubscriberQueue:
    """The deliveries to one subscriber: a line for each topic, and some lines at once."""

    def __init__(self, deliveries: TopicDeliveries, subscriber: str) -> None:
        self._deliveries = deliveries
        self._subscriber = subscriber
        self._lines: dict[str, asyncio.Task[None]] = {}
        self._retry_at: dict[str, float] = {}
        """The time at which a topic whose delivery has failed is tried again."""
        self._absences = 0
        """The number of attempts in a row that found the subscriber absent."""
        self._absent_until = 0.0
        self._wakeup = asyncio.Event()
        self._is_looking = True
        self._worker: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the queue."""
        return [*self._lines.values(), *([] if self._worker is None else [self._worker])]

    @property
    def is_busy(self) -> bool:
        """True while a delivery is under way, or the next ones are looked for."""
        return bool(self._lines) or self._is_looking

    def start(self) -> None:
        """Start the work, in a context that has nothing of the turn that published."""
        self._worker = asyncio.get_running_loop().create_task(self._work(), context=Context())

    def wake(self, *, is_present: bool = False) -> None:
        """Look for deliveries, also to a subscriber that was absent if `is_present`."""
        if is_present:
            self._absences, self._absent_until = 0, 0.0
        if not self._absent_until:
            self._is_looking = True
        self._wakeup.set()

    async def _work(self) -> None:
        """Start lines until nothing waits."""
        loop = asyncio.get_running_loop()
        while True:
            self._wakeup.clear()
            try:
                has_more = await self._start_lines()
            except StoreError as error:
                log.error("%s: cannot load items for %s: %s", self._deliveries.agent, self._subscriber, error)
                self._set_absent()
                has_more = True
            if self._wakeup.is_set():
                continue
            self._is_looking = False
            self._deliveries.notify()
            if not (has_more or self._lines or self._retry_at):
                self._deliveries.remove(self._subscriber)
                return
            times = [*self._retry_at.values(), *([self._absent_until] if self._absent_until else [])]
            try:
                async with asyncio.timeout_at(min(times) if times else None):
                    await self._wakeup.wait()
            except TimeoutError:
                now = loop.time()
                self._retry_at = {topic: time for topic, time in self._retry_at.items() if time > now}
                if self._absent_until <= now:
                    self._absent_until = 0.0
            self._is_looking = not self._absent_until

    async def _start_lines(self) -> bool:
        """Start a line for each topic with deliveries, as far as there is room. Return True if something waits."""
        # An absent subscriber is tried with one item.
        room = (1 if self._absences else _MAX_IN_FLIGHT) - len(self._lines)
        if self._absent_until or room <= 0:
            return True
        skipped = {*self._lines, *self._retry_at}
        by_topic: dict[str, list[TopicDelivery]] = {}
        for delivery in await self._deliveries.repository.load_deliveries(self._subscriber, skipped, _PAGE):
            by_topic.setdefault(delivery.item.topic, []).append(delivery)
        for topic, line in list(by_topic.items())[:room]:
            self._lines[topic] = asyncio.create_task(self._run_line(topic, line[:1] if self._absences else line))
        return bool(by_topic)

    async def _run_line(self, topic: str, line: list[TopicDelivery]) -> None:
        """Deliver items of one topic, one after the other, until one fails."""
        taken: Commit[Any] | None = None
        try:
            for delivery in line:
                if not await self._attempt(delivery):
                    break
                # Awaited only after the last one: what is repeated after a crash is answered without another run.
                taken = self._deliveries.repository.complete(delivery)
            if taken is not None:
                await taken  # or the next page would have it again
        except StoreError as error:
            log.error("%s: cannot store the delivery to %s: %s", self._deliveries.agent, self._subscriber, error)
            self._set_absent()
        except Exception:
            log.exception("%s: the delivery to %s failed", self._deliveries.agent, self._subscriber)
            self._set_absent()
        finally:
            del self._lines[topic]
            self.wake()
            self._deliveries.notify()

    async def _attempt(self, delivery: TopicDelivery) -> bool:
        """Deliver an item. Return True if the next one of its topic may follow."""
        try:
            await self._deliveries.deliver(delivery, self._deliveries.policy.timeout_s)
        except (PeerTimeoutError, PeerUnavailableError) as error:
            log.info("%s: an item waits: %s", self._deliveries.agent, error)
            self._set_absent()
            return False
        except PeerFailedError as error:
            if error.code != ErrorCode.NOT_FOUND:  # else it was taken, and the subscriber has deleted its answer
                return await self._on_failed(delivery, error)
        except PeerError as error:
            return await self._on_failed(delivery, error)
        self._absences = 0
        return True

    async def _on_failed(self, delivery: TopicDelivery, error: PeerError) -> bool:
        """Count a failure, and plan the next attempt. After the last one the item is a dead letter."""
        self._absences = 0
        policy, failures = self._deliveries.policy, delivery.failures + 1
        if failures >= policy.attempts or isinstance(error, RequestTooLongError):
            await self._deliveries.drop(delivery, str(error))
            return True
        log.info("%s: an item was not taken, attempt %d: %s", self._deliveries.agent, failures, error)
        await self._deliveries.repository.record_failure(delivery, failures, str(error))
        delay_s = policy.delay_s(failures, _MAX_FAILED_DELAY_S)
        if isinstance(error, PeerRefusedError) and error.retry_after_s is not None:
            delay_s = max(delay_s, min(error.retry_after_s, _MAX_FAILED_DELAY_S))
        self._retry_at[delivery.item.topic] = asyncio.get_running_loop().time() + delay_s
        return False

    def _set_absent(self) -> None:
        """Let all deliveries wait, longer each time."""
        self._absences += 1
        delay_s = self._deliveries.policy.delay_s(self._absences, _MAX_ABSENT_DELAY_S)
        self._absent_until = asyncio.get_running_loop().time() + delay_s
