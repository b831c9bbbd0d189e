"""What comes twice: a request whose key is perhaps in the inbox already."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, insert, select

from .known import KnownKeys
from .schema import CLOSED, inbox

DUPLICATE_DAYS = 7
_DUPLICATE_MICROS = DUPLICATE_DAYS * 24 * 3600 * 1_000_000


def receive_once(connection: Connection, values: tuple[Any, ...], key: bytes, known: KnownKeys) -> bool:
    """Whether a request is new, and is stored: False where one of the rows that may have its `key` has it.

    After seven days it is new. In the writer's transaction, where all that came before it is stored.
    """
    row, agent, _, _, received_at, *_ = values
    same = select(inbox.c.id, inbox.c.state, inbox.c.received_at).where(
        inbox.c.id.in_(known.rows(key)), inbox.c.agent == agent, inbox.c.key == key
    )
    for earlier in connection.execute(same).all():
        if earlier.state != CLOSED or earlier.received_at >= received_at - _DUPLICATE_MICROS:
            return False
        connection.execute(delete(inbox).where(inbox.c.id == earlier.id))
    connection.execute(insert(inbox).values(values))
    known.renew(key, row)
    return True
