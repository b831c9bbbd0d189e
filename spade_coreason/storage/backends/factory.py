"""The factory of databases: SQLite or PostgreSQL, by URL."""

from __future__ import annotations

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ...exceptions import StoreError
from ..workers.leases import WorkerTerms
from .backend import Backend, display_name
from .database import Database
from .group_commit import Durability, StoreTimings, WriterHook


async def open_database(
    url: str,
    durability: Durability = "full",
    *,
    is_read_only: bool = False,
    timings: StoreTimings = StoreTimings(),  # noqa: B008 - it is frozen
    writer_hook: WriterHook | None = None,
    terms: WorkerTerms | None = None,
) -> Database:
    """Open the database at `url`; create or migrate it if necessary.

    `url` is `sqlite+aiosqlite:///path` or `postgresql+asyncpg://user@host/name`. With `is_read_only`, opening waits for
    no writer, and the database is neither created nor migrated. `durability`: "full" survives a power cut, "normal" survives
    the end of the process, "off" is for tests. `writer_hook` receives each batch of writes before the writer does. With
    `terms` this process is one of several workers; PostgreSQL only. Raise StoreError, which names the database and the problem.
    """
    backend = _create_backend(url, durability, timings, writer_hook, terms)
    try:
        schema = await (backend.open_to_read() if is_read_only else backend.open())
    except BaseException as error:
        await backend.close()
        if isinstance(error, backend.driver_errors):
            raise backend.problem(error) from error
        raise
    return Database(backend, schema)


def _create_backend(
    url: str, durability: Durability, timings: StoreTimings, writer_hook: WriterHook | None, terms: WorkerTerms | None
) -> Backend:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(
            "storage.url is not a database address; write sqlite+aiosqlite:///data/platform.db"
            " or postgresql+asyncpg://user:password@host/database"
        ) from error
    if parsed.get_backend_name() == "sqlite":
        from .sqlite import SqliteBackend

        return SqliteBackend(parsed, durability, timings, writer_hook)
    if parsed.drivername == "postgresql+asyncpg":
        from .postgres import PostgresBackend

        return PostgresBackend(parsed, durability, timings, writer_hook, terms)
    raise StoreError(f"{display_name(parsed)}: only sqlite+aiosqlite:/// and postgresql+asyncpg:// are supported")


async def review_server(url: str) -> str | None:
    """Return what to change for safety at the server of `url`; None if nothing. StoreError if a platform cannot use it."""
    backend = _create_backend(url, "off", StoreTimings(), None, None)
    try:
        return await backend.review()
    finally:
        await backend.close()
