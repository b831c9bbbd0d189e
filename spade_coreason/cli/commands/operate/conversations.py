"""The command `spade-coreason conversations`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ....exceptions import ConfigError
from ....operations.conversations import end_conversation, reset_conversation
from ....operations.sessions import list_sessions
from ....operations.view import TableView, View, moment
from ...completion import complete_field
from ...context import define_command as define
from ...operations import refuse_options
from ...views import make_parameters, run_operation

_CHANGES = {"end": end_conversation, "reset": reset_conversation}
_VIEW = View(
    table=TableView(
        "conversations",
        cursor="last_interaction",
        columns=[
            ("agent", "agent_id"),
            ("conversation", "conversation_id"),
            "state",
            ("interactions", "interaction_count"),
            ("of", lambda one: one.max_interactions or "-"),
            ("begun", moment("created_at")),
            ("last", moment("last_interaction")),
        ],
    ),
    dump=lambda found: list(map(_dump, found)),
)
_KEYS = ("conversation_id", "state", "interaction_count", "max_interactions", "created_at", "last_interaction")


def _dump(one: Any) -> dict[str, Any]:
    """Return the conversation as the record of the seed (`ConversationRecord`)."""
    return {key: value for key in _KEYS if (value := getattr(one, key)) is not None}


@define("conversations")
@click.argument("action", metavar="[ACTION]", default="list", type=click.Choice(["list", *_CHANGES]))
@click.argument("conversation", metavar="[ID]", required=False, shell_complete=complete_field("conversations", "conversation"))
def command(action: str, conversation: str | None, file: Path | None, data: Path | None, as_json: bool, **given: Any) -> int:
    """List conversations and their states, end one or let it begin anew.

    Works with and without a running platform. The column "interactions" counts the turns of the current episode; `sessions
    list` counts all turns. The JSON records have the keys conversation_id, state, interaction_count, max_interactions,
    created_at and last_interaction.

    ACTION is list, end or reset. `end ID` ends a conversation: a running answer is still sent, and the next message begins a
    new episode. `reset ID` sets its counters to zero, in any state. Both keep its history and what is remembered of it.

    \b
      spade-coreason conversations --state active
      spade-coreason conversations --agent notes --json
      spade-coreason conversations end alice@example.org_notes@example.org
    """
    if (change := _CHANGES.get(action)) is not None:
        if conversation is None:
            raise ConfigError("ID", "is missing; `conversations` lists them")
        refuse_options(given.keys() - {"agent"}, "is for the list of conversations")
        return run_operation(change, file, data, agent=given["agent"], conversation=conversation)
    if conversation is not None:
        raise ConfigError("ID", "is for `end` and `reset`; `sessions show ID` shows a conversation")
    return run_operation(list_sessions, file, data, as_json=as_json, view=_VIEW, **given)


command.params += make_parameters(list_sessions)
