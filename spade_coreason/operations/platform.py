"""The operations on the platform as a whole."""

from __future__ import annotations

from .definition import Arguments, Call, operation
from .status import PlatformStatus


class NoArguments(Arguments):
    """Nothing."""


@operation("status", needs_platform=True, timeout_s=5.0)
async def show_status(call: Call, arguments: NoArguments) -> PlatformStatus:
    """Show the state of the platform and its agents."""
    return await call.host.status()
