"""The command `spade-coreason conversations`."""

from __future__ import annotations

from pathlib import Path

import click

from ...contracts import ConversationState
from ..context import define_command as define
from ..operations import describe_none, open_platform, storage_options
from ..terminal.console import format_time, print_json, print_line, print_table


@define("conversations")
@click.argument("action", metavar="[list]", required=False, type=click.Choice(["list"]))
@storage_options
@click.option(
    "--state", type=click.Choice([state.value for state in ConversationState]), help="Show only conversations in this state."
)
@click.option(
    "--limit",
    default=100,
    show_default=True,
    type=click.IntRange(1),
    help="Show at most this many conversations of each agent, the newest.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of records.")
def command(
    action: str | None,  # "list", the only one: the other commands for stored data have it too
    file: Path | None,
    data: Path | None,
    agent: str | None,
    state: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List conversations and their states.

    Works while the platform runs. The column "interactions" counts the turns of the current episode; `sessions list` counts
    all turns. The JSON records have the keys conversation_id, state, interaction_count, max_interactions, created_at and
    last_interaction.

    \b
      spade-coreason conversations --state active
      spade-coreason conversations --agent notes --json
    """
    from ...operations.conversations import ListConversations, list_conversations

    with open_platform(file, data) as platform:
        wanted = ListConversations(agent=agent, state=ConversationState(state) if state else None, limit=limit)
        found = platform.perform(list_conversations, wanted)
    if as_json:
        print_json([conversation.record.dump() for conversation in found])
    elif not found:
        print_line(describe_none(platform, "conversations"))
    else:
        columns = ("agent", "conversation", "state", "interactions", "of", "begun", "last")
        rows = []
        for conversation in found:
            record = conversation.record
            counts = record.interaction_count, record.max_interactions or "-"
            times = format_time(record.created_at), format_time(record.last_interaction)
            rows.append((conversation.agent, record.conversation_id, record.state, *counts, *times))
        print_table(columns, rows)
