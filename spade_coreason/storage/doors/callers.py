"""The data that doors store of callers: the conversations that a client can name, and the files that it sent."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, delete, func, insert, select, update

from ..backends.database import Commit, Database
from ..records import to_micros
from ..schema import door_files, door_threads

FILE_DAYS = 7
"""The days for which a file is kept."""
_UNUSED_DAYS = 90
"""The days after its last use after which what names a conversation is deleted."""
_MAX_OWN_BYTES = 256 * 2**20
_TOKEN_BYTES = 32


class DoorThread(NamedTuple):
    """The row of a digest."""

    thread: str | None
    """The thread of the conversation. None if it may be one of several."""
    request: str | None
    """The id of a request in it."""
    body: bytes | None
    """The digest of what was asked."""
    question: str | None = None
    """The id of the question that was shown there, or that is answered there."""


_THREAD_COLUMNS = [door_threads.c[name] for name in DoorThread._fields]


class NewFile(NamedTuple):
    """A file to be stored."""

    name: str
    type: str
    data: bytes

    @property
    def digest(self) -> bytes:
        """The SHA-256 of all of it."""
        head = f"{self.name}\0{self.type}\0".encode()
        return hashlib.sha256(head + self.data).digest()


class StoredFile(NamedTuple):
    """A file of a caller, and the token by which it is fetched."""

    token: str
    name: str
    type: str
    size: int
    created_at: int
    """When it was sent, in microseconds."""


class TooManyFilesError(Exception):
    """A caller has stored as many bytes as it may."""


class DoorRepository:
    """The data that doors store for one agent (a bare JID). Methods raise StoreError if the database fails.

    `owner` is the address (a bare JID) of a caller. It sees only what is its own.
    """

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    # Conversations

    async def find_threads(self, owner: str, digests: Sequence[bytes]) -> dict[bytes, DoorThread]:
        """Return the rows of digests."""
        table = door_threads.c
        query = select(table.digest, *_THREAD_COLUMNS).where(
            table.agent == self._agent, table.owner == owner, table.digest.in_(digests)
        )
        rows = await self._database.fetch(query)
        return {digest: DoorThread(*rest) for digest, *rest in rows}

    async def find_requests(self, owner: str, thread: str) -> list[UUID]:
        """Return the ids of the requests in a conversation."""
        table = door_threads.c
        is_there = table.agent == self._agent, table.owner == owner, table.thread == thread, table.request.isnot(None)
        rows = await self._database.read(
            lambda connection: connection.execute(select(table.request).where(*is_there)).scalars().all()
        )
        return [UUID(text) for text in rows]

    def save_thread(
        self, owner: str, digest: bytes, new: DoorThread, now: datetime, *, is_latest: bool = False
    ) -> Commit[DoorThread]:
        """Store the row of a digest, if there is none. The commit has the row that is stored then.

        A digest of another conversation of the caller stands for none of the two from then on. With `is_latest`, the request
        and the question of the new row take the place of earlier ones.
        """
        is_it = door_threads.c.agent == self._agent, door_threads.c.owner == owner, door_threads.c.digest == digest

        def work(connection: Connection) -> DoorThread:
            row = connection.execute(select(*_THREAD_COLUMNS).where(*is_it)).one_or_none()
            if row is None:
                values = {"agent": self._agent, "owner": owner, "digest": digest, "used_at": to_micros(now)}
                connection.execute(insert(door_threads).values(**values, **new._asdict()))
                return new
            found = DoorThread._make(row)
            if found.thread != new.thread:
                found = found._replace(thread=None)
            if is_latest:
                found = found._replace(request=new.request, question=new.question)
            connection.execute(update(door_threads).where(*is_it).values(**found._asdict(), used_at=to_micros(now)))
            return found

        return self._database.run(work)

    async def delete_threads(self, owner: str, digests: Sequence[bytes]) -> None:
        """Delete the rows of digests."""
        is_it = door_threads.c.agent == self._agent, door_threads.c.owner == owner, door_threads.c.digest.in_(digests)
        await self._database.write(lambda connection: connection.execute(delete(door_threads).where(*is_it)))

    # Files

    async def add_files(self, owner: str, request: UUID, files: Iterable[NewFile], now: datetime) -> list[StoredFile]:
        """Store the files of a request. One that it has already keeps its token. Raise TooManyFilesError."""
        new = list(files)
        of_owner = door_files.c.agent == self._agent, door_files.c.owner == owner
        columns = door_files.c.token, door_files.c.name, door_files.c.type, door_files.c.size, door_files.c.created_at

        def work(connection: Connection) -> list[StoredFile] | None:
            query = select(door_files.c.digest, *columns).where(*of_owner, door_files.c.request == str(request))
            known = {digest: StoredFile(*rest) for digest, *rest in connection.execute(query)}
            used = connection.scalar(select(func.sum(door_files.c.size)).where(*of_owner)) or 0
            missing = {file.digest: file for file in new if file.digest not in known}
            if used + sum(len(file.data) for file in missing.values()) > _MAX_OWN_BYTES:
                return None
            for digest, file in missing.items():
                token, micros = secrets.token_urlsafe(_TOKEN_BYTES), to_micros(now)
                known[digest] = StoredFile(token, file.name, file.type, len(file.data), micros)
                values = {"agent": self._agent, "owner": owner, "request": str(request), "digest": digest, "data": file.data}
                row = {"id": self._database.next_id(), **values, **known[digest]._asdict()}
                connection.execute(insert(door_files).values(row))
            return [known[file.digest] for file in new]

        stored = await self._database.write(work)
        if stored is None:
            raise TooManyFilesError
        return stored

    async def delete_files(self, owner: str, request: UUID) -> None:
        """Delete the files of a request, such as one that was refused."""
        is_it = door_files.c.agent == self._agent, door_files.c.owner == owner, door_files.c.request == str(request)
        await self._database.erase(lambda connection: connection.execute(delete(door_files).where(*is_it)))

    async def load_files_of(self, owner: str) -> list[StoredFile]:
        """Return the files of a caller, without their data, oldest first."""
        columns = door_files.c.token, door_files.c.name, door_files.c.type, door_files.c.size, door_files.c.created_at
        query = select(*columns).where(door_files.c.agent == self._agent, door_files.c.owner == owner).order_by(door_files.c.id)
        rows = await self._database.fetch(query)
        return [StoredFile._make(row) for row in rows]

    async def load_threads_of(self, owner: str) -> list[str]:
        """Return the threads of the conversations that clients of a caller can name."""
        table = door_threads.c
        query = (
            select(table.thread).where(table.agent == self._agent, table.owner == owner, table.thread.isnot(None)).distinct()
        )
        return await self._database.read(lambda connection: list(connection.execute(query.order_by(table.thread)).scalars()))


async def find_file(database: Database, token: str, now: datetime) -> NewFile | None:
    """Return the file with a token; None without one, and seven days after it was sent."""
    is_it = door_files.c.token == token, door_files.c.created_at >= _file_limit(now)
    query = select(door_files.c.name, door_files.c.type, door_files.c.data).where(*is_it)
    row = await database.read(lambda connection: connection.execute(query).one_or_none())
    return None if row is None else NewFile._make(row)


def delete_old_door_data(connection: Connection, agent: str, now: datetime) -> None:
    """Delete the files of an agent after seven days, and what names conversations and is not used, in a transaction."""
    connection.execute(delete(door_files).where(door_files.c.agent == agent, door_files.c.created_at < _file_limit(now)))
    unused = door_threads.c.used_at < to_micros(now - timedelta(days=_UNUSED_DAYS))
    connection.execute(delete(door_threads).where(door_threads.c.agent == agent, unused))


def delete_door_data_of(connection: Connection, agent: str, owner: str) -> None:
    """Delete all that doors store of a caller, in a transaction."""
    for table in (door_files, door_threads):
        connection.execute(delete(table).where(table.c.agent == agent, table.c.owner == owner))


def delete_door_threads(connection: Connection, agent: str, owner: str, thread: str | None) -> None:
    """Delete what names a conversation that is deleted, and the files of its requests, in a transaction."""
    is_there = door_threads.c.agent == agent, door_threads.c.owner == owner, door_threads.c.thread == thread
    requests = list(
        connection.execute(select(door_threads.c.request).where(*is_there, door_threads.c.request.isnot(None))).scalars()
    )
    of_owner = door_files.c.agent == agent, door_files.c.owner == owner
    connection.execute(delete(door_files).where(*of_owner, door_files.c.request.in_(requests)))
    connection.execute(delete(door_threads).where(*is_there))


def _file_limit(now: datetime) -> int:
    return to_micros(now - timedelta(days=FILE_DAYS))
