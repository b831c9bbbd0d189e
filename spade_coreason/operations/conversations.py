"""The operations on conversations and their states."""

from __future__ import annotations

from dataclasses import dataclass

from ..domain.texts.translation import N_
from .definition import OPERATORS, Call, operation
from .memory import OfConversation
from .sessions import find_conversation
from .view import Slash, View

_MISSING = N_("There is no conversation {conversation}. /all lists them.")


@dataclass(frozen=True, slots=True)
class ChangedConversation:
    """A conversation of a person. `is_changed` is False if it was not active, so that it could not be ended."""

    agent: str
    conversation_id: str
    person: str
    is_changed: bool = True


@operation(
    "conversations.end",
    OPERATORS,
    is_change=True,
    view=View(
        done=("The conversation {conversation_id} is ended.", "The conversation {conversation_id} is not active."),
        slash=Slash(
            name="end",
            description=N_("end a conversation of any person"),
            done=N_("The conversation {conversation_id} is ended."),
            unchanged=N_("The conversation {conversation_id} is not active."),
            usage="ID",
            missing=_MISSING,
        ),
        offered=lambda row: row.state == "active",
    ),
)
async def end_conversation(call: Call, arguments: OfConversation) -> ChangedConversation:
    """End an active conversation. A turn that runs still sends its reply."""
    agent, record = await find_conversation(call.host, arguments.agent, arguments.conversation)
    if not record.status.is_active:
        return ChangedConversation(agent, record.conversation_id, record.owner, is_changed=False)
    await call.record(agent, "conversations.end", f"conversation {record.conversation_id}", person=record.owner)
    is_changed = await (await call.host.open_agent(agent, changes=True)).end(record.conversation_id)
    return ChangedConversation(agent, record.conversation_id, record.owner, is_changed)


@operation(
    "conversations.reset",
    OPERATORS,
    is_change=True,
    view=View(
        done="The conversation {conversation_id} begins anew.",
        slash=Slash(
            name="reset",
            description=N_("let a conversation start anew"),
            done=N_("The conversation {conversation_id} starts anew. What I remember of it stays."),
            usage="ID",
            missing=_MISSING,
        ),
    ),
)
async def reset_conversation(call: Call, arguments: OfConversation) -> ChangedConversation:
    """Begin a new episode of a conversation. What the agent remembers of it stays."""
    agent, record = await find_conversation(call.host, arguments.agent, arguments.conversation)
    await call.record(agent, "conversations.reset", f"conversation {record.conversation_id}", person=record.owner)
    await (await call.host.open_agent(agent, changes=True)).reset(record.conversation_id)
    return ChangedConversation(agent, record.conversation_id, record.owner)
