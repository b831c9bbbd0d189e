"""The operations on the platform as a whole: its status, the level of its log, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ..exceptions import StoreError
from .definition import OPERATORS, PLATFORM_TRAIL, Arguments, Call, NoArguments, operation
from .host import RunningAgent
from .status import PlatformStatus

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
_WAIT_S = 0.5


@operation("status", needs_platform=True, timeout_s=5.0)
async def show_status(call: Call, arguments: NoArguments) -> PlatformStatus:
    """Show the state of the platform and its agents."""
    return await call.host.status()


@operation("log.show", OPERATORS, needs_platform=True)
async def show_log_level(call: Call, arguments: NoArguments) -> str:
    """Show the level of the log: all levels, if those of several workers differ."""
    return ", ".join(sorted(await call.host.whole.find_log_levels()))


class SetLogLevel(Arguments):
    """The new level."""

    level: LogLevel


@operation("log.set", OPERATORS, is_change=True, needs_platform=True)
async def set_log_level(call: Call, arguments: SetLogLevel) -> str:
    """Set the level of the log of the whole platform, with all its workers, until its next start."""
    host = call.host.whole
    if await host.find_log_levels() != {arguments.level}:
        await call.record(PLATFORM_TRAIL, "log.set", arguments.level)
        await host.set_log_level(arguments.level)
    return arguments.level


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
