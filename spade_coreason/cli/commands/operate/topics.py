"""The command `spade-coreason topics`."""

from __future__ import annotations

from pathlib import Path

from ...context import define_command as define, json_option
from ...operations import describe_none, open_platform, print_result, storage_options
from ...terminal.console import format_time, print_line, print_table


@define("topics")
@storage_options
@json_option()
def command(file: Path | None, data: Path | None, agent: str | None, as_json: bool) -> None:
    """List the topics of topic brokers and their subscribers, with what waits for them.

    Works with and without a running platform. An operator of the broker gets the same in a chat with /topics.

    \b
      spade-coreason topics
      spade-coreason topics --agent topics --json
    """
    from ....operations.memory import OfAgents
    from ....operations.topics import list_topics

    with open_platform(file, data) as platform:
        found = platform.perform(list_topics, OfAgents(agent=agent))
    if as_json:
        print_result(list_topics, found)
        return
    if not found:
        print_line(describe_none(platform, "topics"))
        return
    topics = [(each.agent, one.topic, one.items, format_time(one.newest_at)) for each in found for one in each.topics]
    if topics:
        print_table(("agent", "topic", "items", "newest"), topics)
    subscribers = [
        (
            each.agent,
            one.subscriber,
            " ".join(one.patterns),
            one.waiting,
            format_time(one.oldest_at) if one.oldest_at else "",
            one.error,
        )
        for each in found
        for one in each.subscribers
    ]
    if topics and subscribers:
        print_line()
    if subscribers:
        print_table(("agent", "subscriber", "patterns", "waiting", "oldest", "problem"), subscribers, texts=("problem",))
