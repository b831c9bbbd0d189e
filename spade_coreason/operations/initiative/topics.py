"""The operations on topics: those of agents that are topic brokers."""

from __future__ import annotations

from dataclasses import dataclass

from ... import storage
from ..definition import OPERATORS, Call, OfAgents, operation
from ..host import stored_agents
from ..view import TableView, View


@dataclass(frozen=True, slots=True)
class AgentTopics:
    """The topics of an agent, and the agents that subscribe to them with what waits for them."""

    agent: str
    topics: list[storage.TopicSummary]
    subscribers: list[storage.SubscriberSummary]


@operation(
    "topics.list",
    OPERATORS,
    view=View(command="topics", examples=["topics", "topics --agent topics --json"], table=TableView("topics")),
)
async def list_topics(call: Call, arguments: OfAgents) -> list[AgentTopics]:
    """List the topics of topic brokers and their subscribers, with what waits for them.

    An operator of the broker gets the same in a chat with /topics.
    """
    found = []
    for agent in await stored_agents(call.host, arguments.agent):
        topics = call.host.repository(agent).topics
        found.append(AgentTopics(agent, await topics.list_topics(), await topics.list_subscribers()))
    return [each for each in found if each.topics or each.subscribers]
