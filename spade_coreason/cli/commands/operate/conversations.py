"""The command `spade-coreason conversations`."""

from __future__ import annotations

from pathlib import Path

import click

from ....contracts import ConversationState
from ....exceptions import ConfigError
from ...completion import complete_conversations
from ...context import define_command as define, json_option
from ...operations import describe_none, open_platform, storage_options
from ...terminal.console import format_time, print_json, print_line, print_table


@define("conversations")
@click.argument("action", metavar="[ACTION]", default="list", type=click.Choice(["list", "end", "reset"]))
@click.argument("conversation", metavar="[ID]", required=False, shell_complete=complete_conversations)
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
@json_option("Print a JSON list of records.")
def command(
    action: str,
    conversation: str | None,
    file: Path | None,
    data: Path | None,
    agent: str | None,
    state: str | None,
    limit: int,
    as_json: bool,
) -> None:
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
    from ....operations.conversations import ListConversations, list_conversations

    if action != "list":
        _change(file, data, agent, action, conversation)
        return
    if conversation is not None:
        raise ConfigError("ID", "is for `end` and `reset`; `sessions show ID` shows a conversation")
    with open_platform(file, data) as platform:
        wanted = ListConversations(agent=agent, state=ConversationState(state) if state else None, limit=limit)
        found = platform.perform(list_conversations, wanted)
    if as_json:
        print_json([listed.record.dump() for listed in found])
    elif not found:
        print_line(describe_none(platform, "conversations"))
    else:
        columns = ("agent", "conversation", "state", "interactions", "of", "begun", "last")
        rows = []
        for listed in found:
            record = listed.record
            counts = record.interaction_count, record.max_interactions or "-"
            times = format_time(record.created_at), format_time(record.last_interaction)
            rows.append((listed.agent, record.conversation_id, record.state, *counts, *times))
        print_table(columns, rows)


def _change(file: Path | None, data: Path | None, agent: str | None, action: str, conversation: str | None) -> None:
    from ....operations.conversations import end_conversation, reset_conversation
    from ....operations.memory import OfConversation

    if conversation is None:
        raise ConfigError("ID", "is missing; `conversations` lists them")
    wanted = OfConversation(agent=agent, conversation=conversation)
    with open_platform(file, data, changes=True) as platform:
        if action == "end":
            ended = platform.perform(end_conversation, wanted)
            print_line(f"The conversation {ended.conversation_id} is {'ended' if ended.is_changed else 'not active'}.")
        else:
            print_line(f"The conversation {platform.perform(reset_conversation, wanted).conversation_id} begins anew.")
