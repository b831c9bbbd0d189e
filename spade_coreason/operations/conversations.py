"""The operations on conversations and their states."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from ..contracts import ConversationRecord, ConversationState
from .definition import Arguments, Call, operation
from .host import stored_agents


@dataclass(frozen=True, slots=True)
class ListedConversation:
    """A conversation of an agent, as its record."""

    agent: str
    record: ConversationRecord


class ListConversations(Arguments):
    """Which conversations. `limit` counts those of each agent, the newest."""

    agent: str | None = None
    state: ConversationState | None = None
    limit: int = Field(100, ge=1)


@operation("conversations.list")
async def list_conversations(call: Call, arguments: ListConversations) -> list[ListedConversation]:
    """List conversations and their states."""
    return [
        ListedConversation(agent, found.contract_record)
        for agent in await stored_agents(call.host, arguments.agent)
        for found in await call.host.repository(agent).list_conversations(state=arguments.state, limit=arguments.limit)
    ]
