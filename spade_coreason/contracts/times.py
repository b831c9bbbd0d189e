"""The current time, and times as JSON has them. It imports little, so that commands of the terminal are quick."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

utc_now = partial(datetime.now, UTC)
"""The function that returns the current time in UTC, the zone of every timestamp here."""


def format_rfc3339(moment: datetime) -> str:
    """Format a time as JSON has it (RFC 3339). A time in UTC ends with Z, as pydantic writes it."""
    return moment.isoformat().replace("+00:00", "Z")
