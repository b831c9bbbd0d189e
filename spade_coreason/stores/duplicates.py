"""What comes twice: a request whose key is perhaps in the inbox already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from .rows import CLOSED
from .schema import inbox

DUPLICATE_DAYS = 7
_DUPLICATE_MICROS = DUPLICATE_DAYS * 24 * 3600 * 1_000_000


def receive_once(connection: Connection, values: tuple[Any, ...], rows: Sequence[int]) -> bool:
    """Whether a request is new, and is stored: False where one of these `rows` has its key; after seven days it is new."""
    _, agent, key, _, received_at, *_ = values
    same = select(inbox.c.id, inbox.c.state, inbox.c.received_at).where(
        inbox.c.id.in_(rows), inbox.c.agent == agent, inbox.c.key == key
    )
    for known in connection.execute(same).all():
        if known.state != CLOSED or known.received_at >= received_at - _DUPLICATE_MICROS:
            return False
        connection.execute(delete(inbox).where(inbox.c.id == known.id))
    connection.execute(insert(inbox).values(values))
    return True
