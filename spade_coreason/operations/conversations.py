"""The operations on conversations and their states."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from ..contracts import ConversationRecord, ConversationState
from ..contracts.base import utc_now
from ..domain import conversation
from .definition import OPERATORS, Arguments, Call, operation
from .host import stored_agents
from .memory import OfConversation
from .sessions import find_conversation


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


@dataclass(frozen=True, slots=True)
class ChangedConversation:
    """A conversation of a person. `is_changed` is False if it was not active, so that it could not be ended."""

    agent: str
    conversation_id: str
    person: str
    is_changed: bool = True


@operation("conversations.end", OPERATORS, is_change=True)
async def end_conversation(call: Call, arguments: OfConversation) -> ChangedConversation:
    """End an active conversation. A turn that runs still sends its reply."""
    agent, record = await find_conversation(call.host, arguments.agent, arguments.conversation)
    if not record.status.is_active:
        return ChangedConversation(agent, record.conversation_id, record.owner, is_changed=False)
    await call.record(agent, "conversations.end", f"conversation {record.conversation_id}", person=record.owner)
    if (running := await call.host.running_agent(agent, changes=True)) is not None:
        is_changed = await running.end(record.conversation_id)
        return ChangedConversation(agent, record.conversation_id, record.owner, is_changed)
    await call.host.repository(agent).save_conversation(record.with_status(conversation.complete(record.status)))
    return ChangedConversation(agent, record.conversation_id, record.owner)


@operation("conversations.reset", OPERATORS, is_change=True)
async def reset_conversation(call: Call, arguments: OfConversation) -> ChangedConversation:
    """Begin a new episode of a conversation. What the agent remembers of it stays."""
    agent, record = await find_conversation(call.host, arguments.agent, arguments.conversation)
    await call.record(agent, "conversations.reset", f"conversation {record.conversation_id}", person=record.owner)
    if (running := await call.host.running_agent(agent, changes=True)) is not None:
        await running.reset(record.conversation_id)
    else:
        status = conversation.restart_episode(record.status, utc_now())
        await call.host.repository(agent).save_conversation(record.with_status(status))
    return ChangedConversation(agent, record.conversation_id, record.owner)
