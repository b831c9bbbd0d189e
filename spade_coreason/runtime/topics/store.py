"""The store of a topic broker, as its agent gets it: subscriptions, items, and their deliveries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from ...contracts import AgentRequest
from ...contracts.times import format_rfc3339
from ...domain.access import AccessPolicy, TrustedAgents
from ...domain.callers import refuse_caller
from ...domain.identifiers import derive_thread
from ...domain.jid import bare_jid
from ...domain.messages import RequestContext
from ...domain.topics import (
    DEAD_LETTER_METADATA,
    ITEM_METADATA,
    ROOT_SENDER,
    TOPIC_ITEM,
    check_pattern,
    check_topic,
    derive_delivery_id,
    derive_item_id,
    derive_topic_session,
)
from ...exceptions import PeerUnavailableError, RequestTooLongError
from ...storage import (
    MAX_ERROR_CHARACTERS,
    SubscriberSummary,
    TopicDelivery,
    TopicItem,
    TopicRepository,
    TopicSummary,
    make_dead_letter,
)
from ..channels import OutboundMessage, RequestSender
from ..peers.open_requests import OpenRequests
from ..tasks import AgentTasks
from .deliveries import DeliveryPolicy, TopicDeliveries

_LONG_JID = "x" * 256
"""The longest JID of a subscriber that the broker expects."""
_LONG_ERROR = "\x01" * MAX_ERROR_CHARACTERS
"""The error that takes the most bytes in JSON."""

MaySubscribe: TypeAlias = Callable[[str, str], bool]
"""A function that returns True if a subscriber (a bare JID) may have a pattern, or the items of a topic."""


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
        sender: RequestSender,
        tasks: AgentTasks,
        access: AccessPolicy,
        trusted_agents: TrustedAgents,
    ) -> None:
        self._jid = jid
        self._trusted_agents = trusted_agents
        self._repository = repository
        self._requests = requests
        self._sender = sender
        self._tasks = tasks
        self._access = access
        self._deliveries: TopicDeliveries | None = None
        self._may_subscribe: MaySubscribe = lambda subscriber, pattern: True

    @property
    def operators(self) -> frozenset[str]:
        """The operators of the agent (bare JIDs)."""
        return self._access.operators

    async def open(
        self,
        *,
        may_subscribe: MaySubscribe | None = None,
        attempts: int = 10,
        items: int | None = 1000,
        days: float | None = 30,
        retry_s: float = 1.0,
        timeout_s: float = 180.0,
    ) -> None:
        """Begin to deliver, also what an earlier run left.

        Parameters:
            may_subscribe: The rules for subscribers and patterns. By default they allow everything. Stored subscriptions that
                they do not allow are removed, with the items that wait because of them.
            attempts: The failed attempts after which an item becomes a dead letter.
            items: The number of items of each topic that are kept. None means all.
            days: The days for which they are kept, also for an unreachable subscriber. None means for ever.
            retry_s: Seconds before the first repetition. The delay doubles with each further one.
            timeout_s: Seconds that a subscriber may take for an item.
        """
        policy = DeliveryPolicy(attempts, items, days, retry_s, timeout_s)
        if may_subscribe is not None:
            self._may_subscribe = may_subscribe
        self._deliveries = TopicDeliveries(self._jid, self._repository, self._tasks, self._deliver, policy, self._find_refusal)
        await self._deliveries.open()

    async def close(self) -> None:
        """Stop to deliver. What was not delivered stays stored."""
        deliveries, self._deliveries = self._deliveries, None
        if deliveries is not None:
            deliveries.close()

    async def publish(
        self, topic: str, payload: Mapping[str, Any], *, publisher: str, request_id: UUID, hops: int = 0, root: str = ""
    ) -> str:
        """Store an item with its deliveries in one transaction, and return its id.

        `publisher` is a bare JID, and `root` the person for whom it publishes, as `find_root` returns them; "" if it is itself.
        The id derives from `publisher` and `request_id`: an item that is published again is stored once. ValueError for a wrong
        topic, for a publisher who is a caller of a door, and for an item that is too long to be delivered, or its dead letter.
        """
        item_id = derive_item_id(refuse_caller(publisher), request_id)
        item = TopicItem(item_id, check_topic(topic), publisher, self._tasks.now(), dict(payload), hops, None, root)
        self._check_length(item)
        publication = await self._repository.publish(item, self._find_refusal)
        if self._deliveries is not None:
            self._deliveries.on_published(publication)
        return item_id

    async def subscribe(self, subscriber: str, patterns: Collection[str]) -> None:
        """Store all patterns of a subscriber (a bare JID). Others are removed.

        ValueError for a wrong pattern, and for a caller of a door, whom nothing can be delivered to.
        """
        if patterns:
            refuse_caller(subscriber)
        await self._repository.subscribe(subscriber, [check_pattern(pattern) for pattern in patterns])

    def note_presence(self, subscriber: str) -> None:
        """Deliver at once to a subscriber (a bare JID) that was unreachable, because it has just sent something."""
        if self._deliveries is not None:
            self._deliveries.note_presence(subscriber)

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

    # Rights

    def _find_refusal(self, subscriber: str, pattern: str) -> str | None:
        """Return why a subscriber (a bare JID) may not have a pattern or a topic, or None if it may, or may be allowed."""
        if not self._access.is_allowed(subscriber):
            return "it has no access to the broker (access)" if self._access.is_known else None
        return None if self._may_subscribe(subscriber, pattern) else "no rule allows it (options.subscribe)"

    def on_access_changed(self) -> None:
        """Review the subscriptions: someone has gained or lost access."""
        if self._deliveries is not None:
            self._deliveries.review_soon()

    # Items as requests

    def _check_length(self, item: TopicItem) -> None:
        """Raise ValueError if the network does not carry the dead letter about an item, which is longer than the item."""
        letter = make_dead_letter(item, _LONG_JID, _LONG_ERROR, item.published_at)
        try:
            self._encode(letter, _LONG_JID, 0)
        except RequestTooLongError as error:
            raise ValueError(
                f"the item is too long: {error.size:,} bytes as a message with all that a dead letter adds"
                f" (limit: {error.limit:,}, limits.stanza_bytes of the broker); publish a link to the text instead"
            ) from error

    def _encode(self, item: TopicItem, subscriber: str, failures: int) -> tuple[UUID, OutboundMessage]:
        """Return the id of the request that delivers an item, and the request."""
        session_id = derive_topic_session(item.topic)
        values: Sequence[str] = (item.topic, item.publisher, format_rfc3339(item.published_at), item.item_id)
        description: dict[str, Any] = dict(zip(ITEM_METADATA, values, strict=True))
        if item.dead_letter is not None:
            description[DEAD_LETTER_METADATA] = item.dead_letter
        if item.root:
            description[ROOT_SENDER] = item.root if subscriber in self._trusted_agents else ""
        request = AgentRequest(
            request_id=derive_delivery_id(item.item_id, subscriber, failures),
            session_id=session_id,
            payload=item.payload,
            metadata={TOPIC_ITEM: description},
        )
        context = RequestContext(item.hops + 1, accepts_batches=True)
        thread = derive_thread(session_id, bare_jid(subscriber))
        return request.request_id, self._sender.encode_request(subscriber, request, thread, context)

    async def _deliver(self, delivery: TopicDelivery, timeout_s: float) -> None:
        """Send an item as a request, and wait for the end of the reply.

        After a time-out it is not retracted, as `Peers` would do: it may be on its way to a subscriber that comes back.
        """
        subscriber = delivery.subscriber
        if not self._access.is_allowed(subscriber):
            raise PeerUnavailableError(subscriber, "gets nothing while the roster, which may admit it, is not known")
        request_id, message = self._encode(delivery.item, subscriber, delivery.failures)
        events = self._requests.events(subscriber, str(request_id), timeout_s, lambda: self._sender.send([message]))
        async for _ in events:
            pass
