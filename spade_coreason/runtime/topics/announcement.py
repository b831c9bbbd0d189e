"""The announcement of an agent's subscriptions to the topic broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ...concurrency import cancel_tasks
from ...exceptions import PeerError, StoreError
from ...storage import AgentRepository, StoredAgent
from ..peers.peers import Peers
from ..peers.topic_requests import make_subscribe_request, read_refused_patterns

log = logging.getLogger(__name__)

_STORED_NAME = "topic_subscriptions"
_TIMEOUT_S = 30.0
_FIRST_DELAY_S = 1.0
_MAX_DELAY_S = 300.0
_FAILURES_UNTIL_WARNING = 3  # the broker may start after its subscribers


class SubscriptionAnnouncement:
    """The announcement of the patterns of one agent to `broker` (a bare JID, or None without one).

    It is one request with all patterns, repeated until the broker has answered. The broker stores them. So it is sent at the
    start and in each new session, which also tells the broker that the agent is back. An agent that never had a
    subscription sends nothing.
    """

    def __init__(self, peers: Peers, repository: AgentRepository, patterns: Sequence[str], broker: str | None) -> None:
        self._peers = peers
        self._repository = repository
        self._patterns = list(dict.fromkeys(patterns))
        self._broker = None if broker == repository.agent else broker
        self._stored: dict[str, Any] = {}
        """The broker and the patterns that were announced last, as they are stored."""
        self._task: asyncio.Task[None] | None = None
        self._was_tried = asyncio.Event()

    def start(self, stored: StoredAgent) -> None:
        """Announce the subscriptions, in a task that ends when the broker has answered.

        `stored` was loaded when the agent opened.
        """
        self._stored = stored.get_value(_STORED_NAME) or {}
        if self._patterns and self._broker is None:
            log.warning(
                "%s: subscribes to topics, but no topic broker is configured, so it gets no items; set peers.topics",
                self._repository.agent,
            )
        self._start_task()

    def repeat(self) -> None:
        """Announce the subscriptions again in a new session, if there are any."""
        if self._patterns and (self._task is None or self._task.done()):
            self._start_task()

    def _start_task(self) -> None:
        self._task = asyncio.create_task(self._announce())
        self._task.add_done_callback(lambda _: self._was_tried.set())

    async def wait_until_tried(self) -> None:
        """Wait until the broker has answered, or the first attempt has failed."""
        await self._was_tried.wait()

    async def close(self) -> None:
        """End the task."""
        await cancel_tasks(self._task)
        self._task = None

    async def _announce(self) -> None:
        try:
            stored = self._stored
            former = stored.get("broker")
            if former is not None and former != self._broker:
                await self._send_until_answered(former, [])
            if self._broker is not None and (self._patterns or (former == self._broker and stored.get("patterns"))):
                await self._send_until_answered(self._broker, self._patterns)
            current = {"broker": self._broker, "patterns": self._patterns} if self._patterns and self._broker else {}
            if current != stored:
                await self._repository.save_agent_value(_STORED_NAME, current)
                self._stored = current
        except StoreError as error:
            log.error("%s: cannot store the subscriptions: %s", self._repository.agent, error)

    async def _send_until_answered(self, broker: str, patterns: Sequence[str]) -> None:
        """Tell a broker all patterns. One that is not configured any more is told once."""
        agent, delay_s, failures = self._repository.agent, _FIRST_DELAY_S, 0
        while True:
            try:
                answer = await self._peers.ask(broker, make_subscribe_request(patterns), _TIMEOUT_S)
            except PeerError as error:
                failures += 1
                level = logging.WARNING if failures == _FAILURES_UNTIL_WARNING else logging.INFO
                log.log(level, "%s: cannot subscribe to topics yet: %s", agent, error)
            else:
                if refused := read_refused_patterns(answer.data):
                    log.error("%s: %s refuses the subscriptions %s", agent, broker, ", ".join(refused))
                return
            if broker != self._broker:
                return
            self._was_tried.set()
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_DELAY_S)
