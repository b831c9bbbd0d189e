"""The command `spade-coreason status`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...account import data_option
from ...completion import complete_agents
from ...context import define_command as define, json_option
from ...operations import require_running
from ...settings import config_option
from ...terminal.console import format_milliseconds, format_timedelta, paint, print_json, print_line, print_table
from ...views import run_operation

if TYPE_CHECKING:
    from ....operations.status import AgentStatus, PlatformStatus, WorkerStatus

_MAX_SHOWN = 3
_UNDELIVERED = ("bounced", "failed")
_SHOWN_STATES = ("waiting", *_UNDELIVERED)
"""The states of notifications that are counted. The others need nothing from an operator."""


@define("status")
@click.argument("name", metavar="[AGENT]", required=False, shell_complete=complete_agents)
@config_option()
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
    from ....operations.platform import list_turns, show_status

    if name is not None:
        return run_operation(list_turns, file, data, as_json=as_json, agent=name)
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
    for line, colour in (each for agent in found.agents for each in _list_notes(agent)):
        print_line(paint(line, colour) if colour else line)
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


def _list_notes(agent: AgentStatus) -> Iterator[tuple[str, str | None]]:
    """Yield the lines below the table about an agent, each with its colour, or None."""
    for room, state in agent.rooms.items():
        yield f"{agent.jid} in the room {room}: {state}", None
    if counts := ", ".join(f"{agent.notifications[each]:,} {each}" for each in _SHOWN_STATES if each in agent.notifications):
        line = f"Notifications of {agent.jid}: {counts}; `spade-coreason notifications list` shows them"
        yield line, "yellow" if agent.notifications.keys() & _UNDELIVERED else None
    if agent.refused_by_rooms:
        yield f"Refused by chat rooms: messages of {agent.jid} ({_format_counts(agent.refused_by_rooms)})", "yellow"
    if agent.rejected:
        yield f"{agent.jid} rejected stanzas ({_format_counts(agent.rejected)})", None
    if agent.dropped:
        yield f"Not taken since the start: messages to {agent.jid} ({_format_counts(agent.dropped)})", None
    for channel, count in agent.without_channel.items():
        stored = f"{count:,} stored {'requests or replies' if count != 1 else 'request or reply'}"
        yield f"{stored} of {agent.jid}: the channel {channel} is not installed; install it and start again", "yellow"
    if any(usage.messages or usage.refused for usage in agent.quotas):
        yield _describe_usage(agent), None


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in counts.items())


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


def _describe_usage(agent: AgentStatus) -> str:
    """Describe the use of today: of all, and of the people who sent most, or whose messages were refused."""
    total, *others = agent.quotas
    people = [usage for usage in others if usage.scope in ("person", "room")]
    shown = [usage for number, usage in enumerate(people) if number < _MAX_SHOWN or usage.refused]
    most = ", ".join(f"{usage.holder} {usage}" for usage in shown)
    return f"Today: {agent.jid} {total}{f'; from {most}' if most else ''}"


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
