"""The index of the inbox in memory: keys, open rows and rows with steps. So its table needs no index of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, select

from .. import schema
from ..dedup import KeyIndex

INBOX_PAGE_ROWS = 1000
"""The number of rows of the inbox that are read at once. Each page holds the event loop for some milliseconds."""


def select_inbox_rows(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Return the query of the rows that an `InboxIndex` has."""
    inbox = schema.inbox.c
    query = select(inbox.id, inbox.key, inbox.agent, inbox.state, inbox.message_key).where(*conditions).order_by(inbox.id)
    return query.execution_options(yield_per=INBOX_PAGE_ROWS)


def _select_rows_with_steps(rows: Sequence[int]) -> Select[Any]:
    """Return the query of those of the rows that may have steps. Those of parked requests wait with them."""
    parked = schema.parked_requests.c.id
    is_parked = select(parked).where(parked == schema.steps.c.request).exists()
    return select(schema.steps.c.request).where(schema.steps.c.request.in_(rows), ~is_parked).distinct()


class InboxIndex:
    """The rows of the inbox by their keys, and those that are not closed. It has the rows of the agents that are open.

    On SQLite all agents are open: it is read with the file.
    """

    def __init__(self) -> None:
        self.keys = KeyIndex()
        """The index of the inbox keys of all agents that are open."""
        self.open_rows: dict[str, set[int]] = {}
        """The row ids of requests that may not be closed, by open agent."""
        self.rows_with_steps: set[int] = set()
        """The row ids of requests that may have durable steps. All others cost no statement about steps."""

    def is_open(self, agent: str) -> bool:
        """Return True if the rows of an agent are here."""
        return agent in self.open_rows or isinstance(self.open_rows, defaultdict)

    def load(self, connection: Connection, *conditions: ColumnElement[bool]) -> None:
        """Add the stored rows that meet some conditions, a page at a time. On PostgreSQL other tasks run in between."""
        open_ids: list[int] = []
        for rows in connection.execute(select_inbox_rows(*conditions)).partitions():
            for row in rows:
                if row.message_key is not None:
                    self.keys.add_further(row.message_key, row.id)
                else:
                    self.keys.add(row.key, row.id)
                if row.state < schema.CLOSED:
                    self.open_rows[row.agent].add(row.id)
                    open_ids.append(row.id)  # only these may have steps that run again
        while open_ids:
            page, open_ids = open_ids[:INBOX_PAGE_ROWS], open_ids[INBOX_PAGE_ROWS:]
            with_steps = connection.scalars(_select_rows_with_steps(page)).all()
            self.rows_with_steps.difference_update(page)  # another worker may have parked them since
            self.rows_with_steps.update(with_steps)

    def add_open(self, agent: str, key: bytes, row: int) -> None:
        """Note that a request was put into the inbox again. If its agent is not open, it is found when that opens."""
        if self.is_open(agent) and row not in self.open_rows[agent]:
            self.keys.add(key, row)
            self.open_rows[agent].add(row)

    def close_agent(self, agent: str) -> None:
        """Forget an agent that another worker is to serve. Its keys stay in the index, which costs a query at worst."""
        self.open_rows.pop(agent, None)
