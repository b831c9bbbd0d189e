"""The store of a topic broker, as its agent gets it: subscriptions, items, and their deliveries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from ...contracts import AgentRequest
from ...contracts.base import format_rfc3339
from ...domain.identifiers import derive_thread
from ...domain.jid import bare_jid
from ...domain.messages import RequestContext
from ...domain.topics import (
    DEAD_LETTER_METADATA,
    ITEM_METADATA,
    TOPIC_ITEM,
    check_pattern,
    check_topic,
    derive_delivery_id,
    derive_item_id,
    derive_topic_session,
)
from ...storage import SubscriberSummary, TopicDelivery, TopicItem, TopicRepository, TopicSummary
from ..open_requests import OpenRequests
from ..transport import Transport
from .deliveries import DeliveryPolicy, TopicDeliveries


class TopicStore:
    """The subscriptions and items of a topic broker. A constructor parameter named `topic_store` receives it.

    Between `open` and `close` the items are delivered to their subscribers, as requests. Methods raise StoreError if the
    database fails.
    """

    def __init__(
        self,
        jid: str,
        repository: TopicRepository,
        requests: OpenRequests,
        transport: Transport,
        clock: Callable[[], datetime],
    ) -> None:
        self._jid = jid
        self._repository = repository
        self._requests = requests
        self._transport = transport
        self._clock = clock
        self._deliveries: TopicDeliveries | None = None
        self.operators: frozenset[str] = frozenset()
        """The operators of the agent (bare JIDs)."""

    async def open(
        self,
        *,
        attempts: int = 10,
        items: int | None = 1000,
        days: float | None = 30,
        retry_s: float = 1.0,
        timeout_s: float = 180.0,
    ) -> None:
        """Begin to deliver, also what an earlier run left.

        Parameters:
            attempts: The failed attempts after which an item becomes a dead letter.
            items: The number of items of each topic that are kept. None means all.
            days: The days for which they are kept, also for an unreachable subscriber. None means for ever.
            retry_s: Seconds before the first repetition. The delay doubles with each further one.
            timeout_s: Seconds that a subscriber may take for an item.
        """
        policy = DeliveryPolicy(attempts, items, days, retry_s, timeout_s)
        self._deliveries = TopicDeliveries(self._jid, self._repository, self._deliver, policy, self._clock)
        await self._deliveries.open()

    async def close(self) -> None:
        """Stop to deliver. What was not delivered stays stored."""
        deliveries, self._deliveries = self._deliveries, None
        if deliveries is not None:
            await deliveries.close()

    async def publish(self, topic: str, payload: Mapping[str, Any], *, publisher: str, request_id: UUID, hops: int = 0) -> str:
        """Store an item with its deliveries in one transaction, and return its id. ValueError for a wrong topic.

        `publisher` is a bare JID. The id derives from it and from `request_id`: an item that is published again is stored once.
        """
        item_id = derive_item_id(publisher, request_id)
        item = TopicItem(item_id, check_topic(topic), publisher, self._clock(), dict(payload), hops)
        for subscriber in await self._repository.publish(item):
            self._wake(subscriber)
        return item_id

    async def subscribe(self, subscriber: str, patterns: Collection[str]) -> None:
        """Store all patterns of a subscriber (a bare JID). Others are removed. ValueError for a wrong pattern."""
        await self._repository.subscribe(subscriber, [check_pattern(pattern) for pattern in patterns])

    def note_presence(self, subscriber: str) -> None:
        """Deliver at once to a subscriber (a bare JID) that was unreachable, because it has just sent something."""
        self._wake(subscriber, is_reachable=True)

    async def purge(self) -> int:
        """Delete old items, as is done at the start and every hour. Return their number."""
        return 0 if self._deliveries is None else await self._deliveries.purge()

    async def list_topics(self) -> list[TopicSummary]:
        """Return the topics with stored items, in alphabetical order."""
        return await self._repository.list_topics()

    async def list_subscribers(self) -> list[SubscriberSummary]:
        """Return the subscribers with their patterns, and with the number of items that wait for them."""
        return await self._repository.list_subscribers()

    async def load_newest(self, topic: str, limit: int = 10) -> list[TopicItem]:
        """Return the newest items of a topic, the oldest of them first."""
        return await self._repository.load_newest(topic, limit)

    def is_busy(self, subscribers: Collection[str]) -> bool:
        """Return True while something is under way to one of some subscribers."""
        return self._deliveries is not None and self._deliveries.is_busy(subscribers)

    async def wait_for_change(self) -> None:
        """Wait until a delivery has ended."""
        if self._deliveries is not None:
            await self._deliveries.wait_for_change()

    def _wake(self, subscriber: str, *, is_reachable: bool = False) -> None:
        if self._deliveries is not None:
            self._deliveries.wake(subscriber, is_reachable=is_reachable)

    async def _deliver(self, delivery: TopicDelivery, timeout_s: float) -> None:
        """Send an item as a request, and wait for the end of the reply.

        After a time-out it is not retracted, as `Peers` would do: it may be on its way to a subscriber that comes back.
        """
        item, subscriber = delivery.item, delivery.subscriber
        session_id = derive_topic_session(item.topic)
        values: Sequence[str] = (item.topic, item.publisher, format_rfc3339(item.published_at), item.item_id)
        description: dict[str, Any] = dict(zip(ITEM_METADATA, values, strict=True))
        if item.dead_letter is not None:
            description[DEAD_LETTER_METADATA] = item.dead_letter
        request = AgentRequest(
            request_id=derive_delivery_id(item.item_id, subscriber, delivery.failures),
            session_id=session_id,
            payload=item.payload,
            metadata={TOPIC_ITEM: description},
        )
        context = RequestContext(item.hops + 1, accepts_batches=True)
        thread = derive_thread(session_id, bare_jid(subscriber))
        message = self._transport.encode_request(subscriber, request, thread, context)
        events = self._requests.events(subscriber, str(request.request_id), timeout_s, lambda: self._transport.send([message]))
        async for _ in events:
            pass
