"""How far the turns of a conversation are taken in, and what its summary says: a variable that the platform keeps."""

from __future__ import annotations

import json
from typing import NamedTuple

from sqlalchemy import Connection, select, update

from .schema import conversations, variables

COMPACTION_VARIABLE = "coreason.window"
"""The name of the variable, in the scope of the conversation."""


class CompactionState(NamedTuple):
    """What a strategy did with the turns that left the window: up to `through` they are in the summary, or in the knowledge."""

    strategy: str = ""
    through: int = 0
    summary: str = ""

    @classmethod
    def from_json(cls, text: str) -> CompactionState:
        """As it is stored."""
        kept = json.loads(text)
        return cls(kept["strategy"], kept["through"], kept.get("summary", ""))

    def to_json(self) -> str:
        """To be stored."""
        return json.dumps(self._asdict(), ensure_ascii=False)


NO_COMPACTION = CompactionState()


def delete_summary(connection: Connection, conversation: int, through: int) -> None:
    """Deletes the summary of a conversation (its row) whose turns up to `through` are deleted, in a transaction of others.

    Those that are left are summarised anew.
    """
    found = connection.execute(
        select(conversations.c.agent, conversations.c.conversation_id).where(conversations.c.id == conversation)
    ).one_or_none()
    if found is None:
        return
    agent, name = found
    its = (
        (variables.c.agent == agent)
        & (variables.c.scope == "conversation")
        & (variables.c.holder == name)
        & (variables.c.name == COMPACTION_VARIABLE)
    )
    text = connection.scalar(select(variables.c.value).where(its))
    if text is not None and (kept := CompactionState.from_json(text)).summary:
        anew = kept._replace(through=through, summary="")
        connection.execute(update(variables).where(its).values(value=anew.to_json()))
