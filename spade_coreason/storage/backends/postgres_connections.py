"""The connections to one PostgreSQL server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import URL, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from ...domain.environment.installation import install_hint
from ...exceptions import StoreError
from .group_commit import Durability, StoreTimings

try:
    import asyncpg
except ImportError as error:
    raise StoreError(f"PostgreSQL needs asyncpg, which is not installed: {install_hint('postgres')}") from error

CONNECT_TIMEOUT_S = 5.0
_SERVER = "SELECT pg_postmaster_start_time(), pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"
"""Identify the server, and find out if it takes no writes."""
_ENDED_REMEDY = "the connection was ended, probably because the platform hung; the log of the server says why"
_REMEDIES = {
    "25006": "the address leads to a standby, or to a server that is read-only; the connections are made anew",
    "55P03": "another program has locked a table for too long; pg_locks names it",
    "25P03": "the platform hung during a transaction, which was undone; its log names what blocked it",
}
"""The remedy of an error, by its SQLSTATE."""


class PostgresConnections:
    """The connections to one PostgreSQL database, all to the same server.

    Once one of them leads to another server, or the writer finds its server read-only, all others are ended. `on_new_server` is
    called then.
    """

    errors = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, SQLAlchemyError, OSError)
    """The errors of a connection. `InternalClientError` comes from one that the server is just ending."""

    def __init__(self, url: URL, durability: Durability, timings: StoreTimings, on_new_server: Callable[[], object]) -> None:
        self.server: datetime | None = None
        """The server of the newest connection, as the time of its start."""
        self.must_write = False
        """True if a connection to a server that takes no writes is an error."""
        self._url = url
        self._durability = durability
        self._timings = timings
        self._on_new_server = on_new_server
        self._loop = asyncio.get_running_loop()
        self._drivers: WeakKeyDictionary[Any, tuple[asyncio.AbstractEventLoop, datetime]] = WeakKeyDictionary()
        """The drivers of all connections, with their event loops and servers."""

    def make_engine(
        self,
        name: str = "spade-coreason",
        timeout_s: float = CONNECT_TIMEOUT_S,
        command_timeout_s: float | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> AsyncEngine:
        """Make an engine whose connections are like those of turns, of sessions with a name."""
        timings = self._timings
        settings = {
            "application_name": name,
            "synchronous_commit": "on" if self._durability == "full" else "off",
            "jit": "off",  # the queries are too short to profit
            "lock_timeout": f"{timings.lock_timeout_s:g}s",
            "idle_in_transaction_session_timeout": f"{timings.idle_transaction_timeout_s:g}s",
            # With the connections of a lost platform, its lock on the database ends.
            "tcp_user_timeout": f"{timings.lost_client_timeout_s:g}s",
            "tcp_keepalives_idle": f"{max(1.0, timings.lost_client_timeout_s / 2):.0f}s",
            "tcp_keepalives_interval": f"{max(1.0, timings.lost_client_timeout_s / 6):.0f}s",
            **settings,
        }
        # Not as parameters of the start, most of which a pooler refuses or ignores.
        statements = "; ".join(f"SET {key} = '{value}'" for key, value in settings.items())

        async def prepare(driver: Any) -> None:
            try:
                await driver.execute(statements)
                server, is_read_only = await driver.fetchrow(_SERVER)
                if self.must_write and is_read_only:
                    raise asyncpg.ReadOnlySQLTransactionError("no writes are possible")
            except BaseException:
                driver.terminate()
                raise
            note = partial(self._note_server, driver, asyncio.get_running_loop(), server)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(note)

        arguments = {"timeout": timeout_s, "command_timeout": command_timeout_s}
        options = options or {"poolclass": NullPool, "isolation_level": "AUTOCOMMIT"}
        engine = create_async_engine(self._url, connect_args=arguments, **options)
        event.listen(engine.sync_engine, "connect", lambda connection, _: connection.run_async(prepare))
        return engine

    def _note_server(self, driver: Any, loop: asyncio.AbstractEventLoop, server: datetime) -> None:
        self._drivers[driver] = loop, server
        if server != self.server:
            self.server = server
            self.end_others(server)
            self._on_new_server()

    def end_others(self, server: datetime | None = None) -> None:
        """End the connections to all servers but one. They are made anew when they are needed."""
        for driver, (loop, other) in list(self._drivers.items()):
            if other != server:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(driver.terminate)


def find_remedy(error: BaseException) -> str | None:
    """Return what to do about an error or one that caused it; None if nothing is known."""
    cause: BaseException | None = error
    while cause is not None:
        if remedy := _REMEDIES.get(getattr(cause, "sqlstate", None) or ""):
            return remedy
        if isinstance(cause, asyncpg.InternalClientError):  # asyncpg does not pass on why the server ends an idle connection
            return _ENDED_REMEDY
        cause = cause.__cause__ or cause.__context__
    return None


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error, if it has one."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None)
