"""The operations on the platform as a whole: its status, the level of its log, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ..contracts.times import utc_now
from ..domain.cards import AgentCard, dump_card
from ..domain.texts.durations import format_duration
from ..exceptions import StoreError
from .definition import OPERATORS, PLATFORM_TRAIL, Arguments, Call, NoArguments, OfAgents, operation
from .host import RunningAgent, select_agents
from .status import PlatformStatus, RunningTurn
from .view import TableView, View

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
_WAIT_S = 0.5


@operation("status", needs_platform=True, timeout_s=5.0)
async def show_status(call: Call, arguments: NoArguments) -> PlatformStatus:
    """Show the state of the platform and its agents."""
    return await call.host.status()


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """An agent of the running platform, with the card by which others find it."""

    jid: str
    state: str
    """The state of its connection, or "paused"."""
    card: AgentCard | None


@operation(
    "agents.list",
    needs_platform=True,
    timeout_s=5.0,
    view=View(
        command="agents",
        examples=["agents", "agents --data /var/lib/agents --json"],
        table=TableView(
            columns=[
                ("agent", "jid"),
                "state",
                ("capabilities", lambda one: ", ".join(each.name for each in one.card.capabilities) if one.card else ""),
                ("description", lambda one: one.card.description if one.card else ""),
            ],
            texts=["description"],
        ),
        dump=lambda found: [{"jid": one.jid, "state": one.state, **(dump_card(one.card) if one.card else {})} for one in found],
        links=["turns.list", "sessions.list", "agents.pause", "agents.resume"],
    ),
)
async def list_agents(call: Call, arguments: NoArguments) -> list[ListedAgent]:
    """List the agents of the running platform with their capabilities.

    The list has all agents, with the cards by which other agents find them. A directory agent shows each sender only the agents
    that the sender may talk to. --json shows the schemas of the capabilities, too.

    Exit code: 0 success, 2 a mistake in the configuration, 4 no platform is running, or it does not answer.
    """
    found = (await call.host.status()).agents
    return [ListedAgent(one.jid, "paused" if one.is_paused and one.state == "online" else one.state, one.card) for one in found]


def _format_age(turn: RunningTurn) -> str:
    return format_duration((utc_now() - turn.since).total_seconds())


@operation(
    "turns.list",
    OPERATORS,
    needs_platform=True,
    timeout_s=5.0,
    view=View(
        table=TableView(
            "running answers",
            columns=[
                "agent",
                "person",
                ("conversation", "conversation_id"),
                ("runs", _format_age),
                ("last step", "last_step"),
                ("waits in", "waits_in"),
            ],
        ),
        links=["sessions.show"],
        refresh_s=2.0,
    ),
)
async def list_turns(call: Call, arguments: OfAgents) -> list[RunningTurn]:
    """List the turns that run, of all agents or one, with what each waits for."""

    async def list_of(agent: str) -> list[RunningTurn]:
        return await (await call.host.open_agent(agent)).list_turns()

    # All at once: other workers are asked for theirs.
    found = await asyncio.gather(*map(list_of, await select_agents(call.host, arguments.agent)))
    return [turn for turns in found for turn in turns]


class SetLogLevel(Arguments):
    """The new level; without it the present one stays."""

    level: LogLevel | None = None


@operation(
    "log.set",
    OPERATORS,
    is_change=True,
    needs_platform=True,
    view=View(
        command="log", examples=["log", "log debug"], given=["level"], done=lambda level: f"The level of the log is {level}."
    ),
)
async def set_log_level(call: Call, arguments: SetLogLevel) -> str:
    """Show or set the level of the running platform's log.

    LEVEL is debug, info, warning or error. It lasts until the next start. An operator does the same in a chat with /log. If
    several workers share the agents, it is the log of all that run; one that starts later has the level of its own start. All
    levels are shown if theirs differ.
    """
    host, level = call.host.whole, arguments.level
    found = await host.find_log_levels()
    if level is None or found == {level}:
        return ", ".join(sorted(found))
    await call.record(PLATFORM_TRAIL, "log.set", level)
    await host.set_log_level(level)
    return level


@dataclass(frozen=True, slots=True)
class DrainedTurns:
    """The number of turns that were finished before the stop. With `is_complete` False the platform runs on."""

    turns: int
    is_complete: bool


@operation("platform.drain", is_change=True, needs_platform=True)
async def drain_platform(call: Call, arguments: NoArguments) -> DrainedTurns:
    """Let the running turns finish, start no others, and stop the platform: the worker that is asked, if there are several."""
    await call.record(PLATFORM_TRAIL, "platform.drain", "the platform")
    found = {jid: await call.host.running_agent(jid) for jid in call.host.list_served()}
    agents = {jid: agent for jid, agent in found.items() if agent is not None}
    for agent in agents.values():
        await agent.hold_turns()
    busy = await _count_busy(agents)
    total = left = sum(busy.values())
    try:
        while left and not call.is_stopped:
            call.on_progress(max(0, total - left), total)
            idle = [jid for jid, turns in busy.items() if not turns]
            if idle and await call.host.hand_over(idle):
                agents = {jid: agent for jid, agent in agents.items() if busy[jid]}
            await asyncio.gather(*(agent.wait_for_turns(_WAIT_S) for agent in agents.values()))
            busy = await _count_busy(agents)
            left = sum(busy.values())
        if not left:
            call.host.stop()
    finally:
        if left:
            for agent in agents.values():
                with suppress(StoreError):  # its worker has ended
                    await agent.release_turns()
            call.host.take_share()
    return DrainedTurns(max(0, total - left), is_complete=not left)


async def _count_busy(agents: Mapping[str, RunningAgent]) -> dict[str, int]:
    return {jid: await agent.count_busy() for jid, agent in agents.items()}
