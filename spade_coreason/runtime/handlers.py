"""The way of a request to the method of an agent that handles it: `@subscribe`, `@every`, else `assist`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..contracts import Agent, AgentDefinition, AgentRequest, Response, Session
from ..domain.messages import EVERY
from ..domain.topics import matches
from .initiative.decorator import every_of
from .topics.decorator import Subscription, subscriptions_of

log = logging.getLogger(__name__)


def route_to_handlers(agent: Agent) -> Agent:
    """Return an agent whose `assist` passes items of topics and due times to their methods; the same one without any."""
    subscriptions, every = subscriptions_of(agent), {handler.name: handler.handle for handler in every_of(agent)}
    return _HandlingAgent(agent, subscriptions, every) if subscriptions or every else agent


class _HandlingAgent:
    """An agent with methods besides `assist`."""

    def __init__(
        self, agent: Agent, subscriptions: Sequence[Subscription], every: Mapping[str, Callable[..., Awaitable[Any]]]
    ) -> None:
        self._agent = agent
        self._subscriptions = subscriptions
        self._every = every

    @property
    def manifest(self) -> AgentDefinition:
        return self._agent.manifest

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Run the method that handles a request."""
        topic, every = request.metadata.get("topic"), request.metadata.get(EVERY)
        if topic is None and every is None:
            await self._agent.assist(request, session, response)
        elif (handle := self._find(topic) if every is None else self._every.get(every)) is not None:
            await handle(request, session, response)
        elif every is None:
            log.info("an item of the topic %s is dropped: the agent has no handler for it any more", topic)
        else:
            log.info("a due time of %s is dropped: the agent has no such method any more", every)

    def _find(self, topic: Any) -> Callable[..., Awaitable[Any]] | None:
        return next((one.handle for one in self._subscriptions if matches(one.pattern, topic)), None)
