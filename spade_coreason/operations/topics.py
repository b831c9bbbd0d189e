"""The operations on topics: those of agents that are topic brokers."""

from __future__ import annotations

from dataclasses import dataclass

from ..storage import SubscriberSummary, TopicSummary
from .definition import OPERATORS, Call, operation
from .host import stored_agents
from .memory import OfAgents


@dataclass(frozen=True, slots=True)
class AgentTopics:
    """The topics of an agent, and the agents that subscribe to them with what waits for them."""

    agent: str
    topics: list[TopicSummary]
    subscribers: list[SubscriberSummary]


@operation("topics.list", OPERATORS)
async def list_topics(call: Call, arguments: OfAgents) -> list[AgentTopics]:
    """List the topics of agents and their subscribers."""
    found = []
    for agent in await stored_agents(call.host, arguments.agent):
        topics = call.host.repository(agent).topics
        found.append(AgentTopics(agent, await topics.list_topics(), await topics.list_subscribers()))
    return [each for each in found if each.topics or each.subscribers]
