"""The deliveries of a topic broker: each subscriber gets the items of a topic in their order, and waits for no other.

A delivery stays in the database until its subscriber has answered. What waits for a subscriber in a topic is one task. What
fails is repeated with back-off; after the last attempt the item becomes a dead letter. An unreachable subscriber costs no
attempt: its tasks wait, and one of them tries.

A delivery whose subscriber has asked a person has begun. The next item follows. It is sent again, as the same request, until
the reply is there. If that is a failure, the item is a dead letter, because another request would ask the person again.

A subscription lasts as long as the right to it. It is checked at the start, when access changes, at each publication and before
each delivery. A refused one is removed, with the items that wait because of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

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
    DELIVERY,
    WAITING,
    FindRefusal,
    Publication,
    RemovedSubscription,
    Task,
    TopicDelivery,
    TopicRepository,
    from_micros,
    is_dead_letter,
    make_dead_letter,
)
from ..access.admission import MAX_HOPS
from ..tasks import AgentTasks, Next

log = logging.getLogger(__name__)

_PAGE = 64
_EXPIRY_PAGE = 200
_MAX_RETRIES_UNTIL_LONGEST_DELAY = 30
_MAX_FAILED_DELAY_S = 300.0
_MAX_UNREACHABLE_DELAY_S = 3600.0
_PARKED_FAILURES = 8
"""A delivery that waits for a person is repeated as one that has failed so many times, or after such a part of its age."""
_RETENTION_INTERVAL = timedelta(hours=1)

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
    """The deliveries of one broker (`agent`, a bare JID), as far as `find_refusal` does not refuse them (`TaskHandler`).

    A task without a topic in its key has what waits for a person's answer, and the one without an owner deletes old items.
    """

    waits = True
    failed = WAITING, "it cannot be delivered; see the log"
    most = 10_000

    def __init__(
        self,
        agent: str,
        repository: TopicRepository,
        tasks: AgentTasks,
        deliver: Deliver,
        policy: DeliveryPolicy,
        find_refusal: FindRefusal,
    ) -> None:
        self.agent = agent
        self.repository = repository
        self.tasks = tasks
        self.deliver = deliver
        self.policy = policy
        self.find_refusal = find_refusal
        self._unreachable: Counter[str] = Counter()
        """The number of attempts in a row that did not reach a subscriber. Those of several topics at once are one."""
        self._returned: set[str] = set()
        """The subscribers that were unreachable and are there, until that is stored."""
        self._must_review = False

    async def open(self) -> None:
        """Remove what is refused now. Then begin with the deliveries that an earlier run left, and delete old items."""
        await self.review()
        await self.repository.begin(self.tasks.now())
        self.tasks.add_handler(DELIVERY, self, self._review_changes)
        self.tasks.wake()

    def close(self) -> None:
        """End all work. What was not delivered stays stored."""
        if self.tasks.handlers.pop(DELIVERY, None) is not None:
            self.tasks.reviews.remove(self._review_changes)
            self.tasks.forget(lambda task: task.kind == DELIVERY)

    def on_published(self, publication: Publication) -> None:
        """Deliver an item that was stored."""
        self._log_removed(publication.removed)
        self.tasks.wake()

    def note_presence(self, subscriber: str) -> None:
        """Deliver at once to a subscriber that was unreachable: it is there."""
        if self._unreachable.pop(subscriber, 0):
            self._returned.add(subscriber)
            self.tasks.wake()

    # The clock

    async def run(self, task: Task, now: datetime) -> Next:
        """Deliver what waits for a subscriber in a topic, one item after the other, until one fails. Or delete old items."""
        if not task.owner:
            await self.purge()
            return task.moved(now, wake_at=now + _RETENTION_INTERVAL)
        for delivery in await self.repository.load_deliveries(task.owner, _PAGE, task.key):
            if self.find_refusal(task.owner, delivery.item.topic) is not None:
                await self.remove_refused([task.owner])
                self.repository.complete(delivery)  # its pattern may be allowed
                continue
            if (waiting := await self._attempt(task, delivery)) is not None:
                return waiting
        finished = self.repository.finish(task)
        if task.key != f"{task.owner} ":
            return finished
        age = self.tasks.now() - from_micros(task.created_at)
        return task.moved(
            now, due_at=max(self._again(_PARKED_FAILURES), now + min(age / _PARKED_FAILURES, _RETENTION_INTERVAL))
        )

    async def _attempt(self, task: Task, delivery: TopicDelivery) -> Task | None:
        """Deliver an item. Return the task if it waits, and None if the next item may follow."""
        earlier = self._unreachable[task.owner]
        try:
            await self.deliver(delivery, self.policy.timeout_s)
        except PeerParkedError as error:
            self.note_presence(task.owner)
            again = self._again(_PARKED_FAILURES)
            await self.repository.record_failure(delivery, delivery.failures, str(error), again)
            self.tasks.alarm.wake_at(again)
            return None
        except (PeerTimeoutError, PeerUnavailableError) as error:
            log.info("%s: an item waits: %s", self.agent, error)
            return await self._wait_for_subscriber(task, earlier)
        except PeerError as error:
            # If it was accepted, the subscriber may have deleted its answer.
            if not (isinstance(error, PeerFailedError) and error.code == ErrorCode.NOT_FOUND):
                return await self._on_failed(task, delivery, error)
        except StoreError:
            raise
        except Exception:
            log.exception("%s: the delivery to %s failed", self.agent, task.owner)
            return await self._wait_for_subscriber(task, earlier)
        self.note_presence(task.owner)
        # Not awaited: what is repeated after a crash is answered without another run.
        self.repository.complete(delivery)
        return None

    async def _wait_for_subscriber(self, task: Task, earlier: int) -> Task:
        """Let all deliveries to a subscriber wait, longer each time. This one is the first to be tried again.

        `earlier` is the number of unreachable attempts before this one.
        """
        self._unreachable[task.owner] = min(self._unreachable[task.owner], earlier) + 1
        now, again = self.tasks.now(), self._again(self._unreachable[task.owner], _MAX_UNREACHABLE_DELAY_S)
        others_again = again + timedelta(seconds=2 * self.policy.timeout_s)
        await self.repository.move_tasks(task.owner, now, others_again)
        return task.moved(now, wake_at=again if self._unreachable[task.owner] else now)  # it may be there again

    async def _on_failed(self, task: Task, delivery: TopicDelivery, error: PeerError) -> Task | None:
        """Count a failure, and plan the next attempt. After the last one the item is a dead letter.

        A refusal for a time does not count, so that the id stays: the subscriber may have the request already.
        """
        self.note_presence(task.owner)
        wait_s = error.retry_after_s if isinstance(error, PeerRefusedError) else None
        failures = delivery.failures + (wait_s is None)
        has_asked = isinstance(error, PeerFailedError) and error.has_asked
        if has_asked or failures >= self.policy.attempts or isinstance(error, RequestTooLongError):
            await self.drop(delivery, str(error))
            return None
        log.info("%s: an item was not accepted, attempt %d: %s", self.agent, failures, error)
        await self.repository.record_failure(delivery, failures, str(error))
        wait = timedelta(seconds=min(wait_s or 0.0, _MAX_FAILED_DELAY_S))
        return task.moved(self.tasks.now(), due_at=max(self._again(failures), self.tasks.now() + wait))

    def _again(self, failures: int, max_s: float = _MAX_FAILED_DELAY_S) -> datetime:
        return self.tasks.now() + timedelta(seconds=self.policy.delay_s(failures, max_s))

    async def drop(self, delivery: TopicDelivery, error: str) -> None:
        """Make a dead letter of a delivery."""
        item, subscriber = delivery.item, delivery.subscriber
        fate = "is dropped" if is_dead_letter(item.topic) else "is a dead letter"
        log.warning("%s: the item %s of %s to %s %s: %s", self.agent, item.item_id, item.topic, subscriber, fate, error)
        letter = make_dead_letter(item, subscriber, error, self.tasks.now())
        letter = letter._replace(hops=min(item.hops, MAX_HOPS - 1))  # or its readers would refuse it
        self.on_published(await self.repository.move_to_dead_letters(delivery, letter, self.find_refusal))

    # Rights and retention

    async def review(self) -> None:
        """Remove all subscriptions that are refused now."""
        subscriptions = await self.repository.load_subscriptions()
        await self.remove_refused({name for name, pattern in subscriptions if self.find_refusal(name, pattern) is not None})

    async def remove_refused(self, subscribers: Collection[str]) -> None:
        """Remove the refused subscriptions of some subscribers, with the items that wait because of them."""
        self._log_removed(await self.repository.remove_refused(subscribers, self.find_refusal))

    def review_soon(self) -> None:
        """Review the subscriptions, because access has changed. Until then each delivery is checked by itself."""
        self._must_review = True
        self.tasks.wake()

    async def _review_changes(self) -> None:
        for subscriber in [*self._returned]:
            await self.repository.move_tasks(subscriber, self.tasks.now())
            self._returned.discard(subscriber)
        if self._must_review:
            self._must_review = False
            try:
                await self.review()
            except StoreError:
                self._must_review = True
                raise

    def _log_removed(self, removed: Iterable[RemovedSubscription]) -> None:
        for each in removed:
            patterns = ", ".join(each.patterns) or "no topic"
            text = "%s: removed the subscription of %s to %s (waiting items: %d): %s"
            log.warning(text, self.agent, each.subscriber, patterns, each.waiting, each.reason)

    async def purge(self) -> int:
        """Make dead letters of what waits for longer than the retention, and delete old items. Return their number."""
        policy = self.policy
        before = None if policy.days is None else self.tasks.now() - timedelta(days=policy.days)
        if before is not None:
            while expired := await self.repository.load_older(before, _EXPIRY_PAGE):
                for delivery in expired:
                    await self.drop(delivery, f"the subscriber was unreachable for {policy.days:g} days")
        return await self.repository.delete_old_items(before, policy.items)
