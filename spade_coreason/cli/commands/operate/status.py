"""The command `spade-coreason status`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...account import data_option
from ...completion import complete_agents
from ...context import define_command as define, json_option
from ...operations import PlatformAccess, print_result, require_running
from ...settings import config_option
from ...terminal.console import format_milliseconds, format_timedelta, paint, print_json, print_line, print_table

if TYPE_CHECKING:
    from ....operations.status import AgentStatus, PlatformStatus, QuotaUsage, WorkerStatus

_MAX_SHOWN = 3
_UNDELIVERED = ("bounced", "failed")
_SHOWN_STATES = ("waiting", *_UNDELIVERED)
"""The states of notifications that are counted. The others need nothing from an operator."""


@define("status")
@click.argument("name", metavar="[AGENT]", required=False, shell_complete=complete_agents)
@config_option("config/platform.yaml, if it exists")
@data_option
@json_option("Print the status as JSON.")
def command(name: str | None, file: Path | None, data: Path | None, as_json: bool) -> int:
    """Show the state of the running platform and its agents, or the running answers of one agent.

    For each agent: the connection, conversations, rooms, notifications that wait or were not delivered within seven days, and
    rejected stanzas by reason. If an agent cannot connect, start or store data, the problem is shown.

    The columns answers/24h, p50, p99 and errors cover the last 24 hours, or the time since the start. p50 and p99 are answer
    times: 50 % and 99 % of the answers took no longer. "Messages today" (UTC) counts towards the quotas, and names the
    heaviest senders.

    If several workers share the agents, it lists these too: the number of their agents, the time since their start, and the
    time until their lease ends unless they renew it. Then it shows the last takeover of agents from a worker, with the reason.
    The column worker names the worker of each agent. Without a worker on this machine the configuration is enough.

    With AGENT it lists the running answers: the person, the conversation, the time since the start, the last durable step, and
    the place in the code where it waits. AGENT is a JID or its name alone; "*" means all agents.

    --json shows more senders, and the number of messages that were dropped because they contained no request.

    Exit code: 0 all agents are online, 1 some are offline or cannot store data, 2 a mistake in the configuration, 4 no
    platform is running, or it does not answer.

    \b
      spade-coreason status
      spade-coreason status --data /var/lib/agents --json
      spade-coreason status notes
    """
    from ....operations.definition import NoArguments
    from ....operations.platform import show_status

    if name is not None:
        return _show_turns(require_running(file, data), name, as_json=as_json)
    found = require_running(file, data).perform(show_status, NoArguments())
    if as_json:
        status = show_status.result.dump_python(found, mode="json")
        for agent in status["agents"]:
            del agent["card"]  # `spade-coreason agents` shows it
        print_json(status)
        return 0 if found.is_healthy else 1
    print_line(paint("XMPP server", "bold"), f"  {found.server}")
    if found.web is not None:
        count = found.web.connections
        print_line(paint("Doors", "bold"), f"        {found.web}, {count:,} connection{'' if count == 1 else 's'}")
        for name in found.web.full_webhooks:
            problem = f"the webhook {name} is full; rotate its secret: `spade-coreason webhooks rotate {name}`"
            print_line(f"             {paint(problem, 'red')}")
    _print_workers(found)
    if found.agents:
        columns = ["agent", "state", "conversations", "in flight", "answers/24h", "p50", "p99", "errors"]
        rows = [_agent_row(agent) for agent in found.agents]
        if len(found.workers) > 1:
            columns.append("worker")
            rows = [(*row, agent.worker or "none") for row, agent in zip(rows, found.agents, strict=True)]
        print_table(columns, rows)
    for agent in found.agents:
        for room, state in agent.rooms.items():
            print_line(f"{agent.jid} in the room {room}: {state}")
    for agent in found.agents:
        if counts := ", ".join(
            f"{agent.notifications[state]:,} {state}" for state in _SHOWN_STATES if state in agent.notifications
        ):
            is_problem = agent.notifications.keys() & _UNDELIVERED
            line = f"Notifications of {agent.jid}: {counts}; `spade-coreason notifications list` shows them"
            print_line(paint(line, "yellow") if is_problem else line)
    for agent in found.agents:
        if agent.refused_by_rooms:
            counts = ", ".join(f"{reason}: {count:,}" for reason, count in agent.refused_by_rooms.items())
            print_line(paint(f"Refused by chat rooms: messages of {agent.jid} ({counts})", "yellow"))
    for agent in found.agents:
        if agent.rejected:
            print_line(f"{agent.jid} rejected {', '.join(_describe_count(*count) for count in agent.rejected.items())}")
    for agent in found.agents:
        if agent.dropped:
            counts = ", ".join(f"{reason}: {count:,}" for reason, count in agent.dropped.items())
            print_line(f"Not taken since the start: messages to {agent.jid} ({counts})")
    for agent in found.agents:
        for channel, count in agent.without_channel.items():
            stored = f"{count:,} stored {'requests or replies' if count != 1 else 'request or reply'}"
            print_line(
                paint(f"{stored} of {agent.jid}: the channel {channel} is not installed; install it and start again", "yellow")
            )
    for agent in found.agents:
        if any(usage.messages or usage.refused for usage in agent.quotas):
            print_line(_describe_usage(agent))
    for problem, jids in _jids_by_problem(found.agents).items():
        print_line(paint(f"{', '.join(jids)}: {problem}", "red"))
    for problem in dict.fromkeys(agent.security_problem for agent in found.agents if agent.security_problem):
        print_line(paint(problem, "yellow"))
    problems = [problem for agent in found.agents for problem in (agent.start_problem, agent.storage_problem) if problem]
    for problem in dict.fromkeys(problems):
        print_line(paint(problem, "red"))
    online = sum(agent.state == "online" for agent in found.agents)
    cannot_store = sum(agent.storage_problem is not None for agent in found.agents)
    failing = (paint(f"{cannot_store} cannot store anything,", "red"),) if cannot_store else ()
    by_whom = f"process {found.pid}" if found.pid else f"{len(found.workers)} worker{'' if len(found.workers) == 1 else 's'}"
    print_line(f"{online} of {len(found.agents)} agents online,", *failing, by_whom)
    return 0 if found.is_healthy else 1


def _print_workers(found: PlatformStatus) -> None:
    """Print the workers that share the agents, and the last takeover among them."""
    now = datetime.now(UTC)
    if found.workers:
        columns = ("worker", "agents", "runs", "lease ends in", "")
        print_table(
            columns,
            [
                (
                    worker.name,
                    worker.agents,
                    format_timedelta(max(timedelta(), now - worker.since)),
                    f"{worker.lease_left_s:.1f} s",
                    _describe_worker(worker),
                )
                for worker in found.workers
            ],
        )
    if (last := found.last_takeover) is not None:
        agents = f"{last.agents:,} agent{'' if last.agents == 1 else 's'}"
        print_line(f"Last takeover: {agents} of {last.worker} at {last.at:%Y-%m-%d %H:%M:%S} UTC, because {last.reason}")


def _describe_worker(worker: WorkerStatus) -> str:
    notes = ["asked here"] if worker.is_this else []
    notes += ["stopping"] if worker.is_leaving else []
    return ", ".join(notes if worker.is_answering else [*notes, "does not answer"])


def _show_turns(platform: PlatformAccess, agent: str, *, as_json: bool) -> int:
    from ....operations.memory import OfAgents
    from ....operations.turns import list_turns

    found = platform.perform(list_turns, OfAgents(agent=agent))
    if as_json:
        print_result(list_turns, found)
    elif not found:
        print_line("No answers are running.")
    else:
        now = datetime.now(UTC)
        columns = ("agent", "person", "conversation", "runs", "last step", "waits in")
        shown = [
            (turn.agent, turn.person, turn.conversation_id, format_timedelta(now - turn.since), turn.last_step, turn.waits_in)
            for turn in found
        ]
        print_table(columns, shown)
    return 0


def _describe_count(reason: str, count: int) -> str:
    return f"{count:,} stanza{'s' if count != 1 else ''} ({reason})"


def _describe_usage(agent: AgentStatus) -> str:
    """Describe the messages of today: of all, and of the people who sent most, or whose messages were refused."""
    total, *others = agent.quotas
    people = [usage for usage in others if usage.scope in ("person", "room")]
    shown = [usage for number, usage in enumerate(people) if number < _MAX_SHOWN or usage.refused]
    most = ", ".join(f"{usage.holder} {_describe_quota(usage)}" for usage in shown)
    return f"Messages today: {agent.jid} {_describe_quota(total)}{f'; from {most}' if most else ''}"


def _describe_quota(usage: QuotaUsage) -> str:
    notes = [f"quota {usage.messages_per_day:,}"] if usage.messages_per_day else []
    notes += [f"{usage.refused:,} refused"] if usage.refused else []
    return f"{usage.messages:,} ({', '.join(notes)})" if notes else f"{usage.messages:,}"


def _jids_by_problem(agents: Sequence[AgentStatus]) -> dict[str, list[str]]:
    """Group the agents that are offline by their problem; a hundred may miss the same server."""
    found: dict[str, list[str]] = {}
    for agent in agents:
        if agent.connection_problem:
            account, _, problem = agent.connection_problem.partition(": ")
            found.setdefault(problem if account.startswith(agent.jid) else agent.connection_problem, []).append(agent.jid)
    return found


def _agent_row(agent: AgentStatus) -> tuple[object, ...]:
    state: str = agent.state
    if agent.since is not None:
        state += f" {format_timedelta(datetime.now(UTC) - agent.since)}"
    if agent.resumed:
        state += f", resumed {'once' if agent.resumed == 1 else f'{agent.resumed} times'}"
    if agent.is_paused:
        state += f", paused ({agent.waiting:,} waiting)" if agent.waiting else ", paused"
    if agent.storage_problem:
        state += ", cannot store anything"
    conversations = "?" if agent.conversations is None else f"{agent.conversations_stored:,} ({agent.conversations:,} active)"
    recent = agent.recent
    errors = f"{recent.errors:,} (last: {recent.last_error})" if recent.last_error is not None else "0"
    durations = format_milliseconds(recent.p50_ms), format_milliseconds(recent.p99_ms)
    return agent.jid, state, conversations, agent.in_flight, f"{recent.answers:,}", *durations, errors
