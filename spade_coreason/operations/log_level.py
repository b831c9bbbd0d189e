"""The operations on the level of the log of the running platform."""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias, get_args

from .definition import OPERATORS, PLATFORM_TRAIL, Arguments, Call, operation

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
_PLATFORM_LOG = logging.getLogger("spade_coreason")


class Nothing(Arguments):
    """Nothing."""


@operation("log.show", OPERATORS, needs_platform=True)
async def show_log_level(call: Call, arguments: Nothing) -> str:
    """Show the level of the log."""
    return logging.getLevelName(_PLATFORM_LOG.getEffectiveLevel()).lower()


class SetLogLevel(Arguments):
    """The new level."""

    level: LogLevel


@operation("log.set", OPERATORS, is_change=True, needs_platform=True)
async def set_log_level(call: Call, arguments: SetLogLevel) -> str:
    """Set the level of the log of the whole platform, until its next start."""
    await call.record(PLATFORM_TRAIL, "log.set", arguments.level)
    _PLATFORM_LOG.setLevel(arguments.level.upper())
    return arguments.level
