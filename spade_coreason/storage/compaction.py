"""The compaction state of a conversation: its summary, and the number of its last compacted turn. It is a variable."""

from __future__ import annotations

import json
from typing import NamedTuple

from sqlalchemy import Connection, select, update

from .schema import conversations, variables

COMPACTION_VARIABLE = "coreason.window"
"""The name of the variable, in the scope of the conversation."""


class CompactionState(NamedTuple):
    """The result of compaction: turns up to number `through` are in `summary`, or in the knowledge of the conversation.

    `strategy` is the memory strategy that compacted them.
    """

    strategy: str = ""
    through: int = 0
    summary: str = ""

    @classmethod
    def from_json(cls, text: str) -> CompactionState:
        """Read the stored form."""
        fields = json.loads(text)
        return cls(fields["strategy"], fields["through"], fields.get("summary", ""))

    def to_json(self) -> str:
        """Return the form to store."""
        return json.dumps(self._asdict(), ensure_ascii=False)


NO_COMPACTION = CompactionState()


def delete_summary(connection: Connection, conversation: int, through: int) -> None:
    """Delete the summary of a conversation (its row id) whose turns up to `through` are deleted.

    The remaining turns are summarised again. Run this inside a transaction of the writer.
    """
    row = connection.execute(
        select(conversations.c.agent, conversations.c.conversation_id).where(conversations.c.id == conversation)
    ).one_or_none()
    if row is None:
        return
    agent, conversation_id = row
    is_state = (
        (variables.c.agent == agent)
        & (variables.c.scope == "conversation")
        & (variables.c.holder == conversation_id)
        & (variables.c.name == COMPACTION_VARIABLE)
    )
    text = connection.scalar(select(variables.c.value).where(is_state))
    if text is not None and (state := CompactionState.from_json(text)).summary:
        cleared = state._replace(through=through, summary="")
        connection.execute(update(variables).where(is_state).values(value=cleared.to_json()))
