"""The data that doors store of callers: the conversations that a client can name, and the files that it sent."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Select, delete, func, insert, select, update

from ..backends.database import Database
from ..backends.group_commit import Commit
from ..records import to_micros
from ..schema import FILE_DAYS, door_files, door_threads

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
    """The time at which it was sent, in microseconds."""


_FILE_COLUMNS = [door_files.c[name] for name in StoredFile._fields]


class TooManyFilesError(Exception):
    """A caller has stored as many bytes as it may."""


class CallerRepository:
    """The data that doors store for one agent (a bare JID). Methods raise StoreError if the database fails.

    `owner` is the address (a bare JID) of a caller. It sees only what is its own.
    """

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    # Conversations

    async def find_threads(self, owner: str, digests: Sequence[bytes]) -> dict[bytes, DoorThread]:
        """Return the rows of digests."""
        query = self._select_threads(owner, door_threads.c.digest, *_THREAD_COLUMNS).where(door_threads.c.digest.in_(digests))
        return {digest: DoorThread(*rest) for digest, *rest in await self._database.fetch(query)}

    async def find_requests(self, owner: str, thread: str) -> list[UUID]:
        """Return the ids of the requests in a conversation."""
        query = self._select_threads(owner, door_threads.c.request).filter_by(thread=thread)
        return list(map(UUID, await self._database.fetch_scalars(query.where(door_threads.c.request.is_not(None)))))

    def save_thread(
        self, owner: str, digest: bytes, new: DoorThread, now: datetime, *, is_latest: bool = False
    ) -> Commit[DoorThread]:
        """Store the row of a digest, if there is none. The commit has the row that is stored then.

        A digest of another conversation of the caller stands for none of the two from then on. With `is_latest`, the request
        and the question of the new row take the place of earlier ones.
        """
        key = {"agent": self._agent, "owner": owner, "digest": digest}

        def work(connection: Connection) -> DoorThread:
            row = connection.execute(select(*_THREAD_COLUMNS).filter_by(**key)).one_or_none()
            if row is None:
                connection.execute(insert(door_threads).values(**key, **new._asdict(), used_at=to_micros(now)))
                return new
            found = DoorThread._make(row)
            if found.thread != new.thread:
                found = found._replace(thread=None)
            if is_latest:
                found = found._replace(request=new.request, question=new.question)
            connection.execute(update(door_threads).filter_by(**key).values(**found._asdict(), used_at=to_micros(now)))
            return found

        return self._database.run(work)

    async def delete_threads(self, owner: str, digests: Sequence[bytes]) -> None:
        """Delete the rows of digests."""
        own = delete(door_threads).filter_by(agent=self._agent, owner=owner)
        await self._database.execute(own.where(door_threads.c.digest.in_(digests)))

    # Files

    async def add_files(self, owner: str, request: UUID, files: Iterable[NewFile], now: datetime) -> list[StoredFile]:
        """Store the files of a request. One that it has already keeps its token. Raise TooManyFilesError."""
        new = list(files)
        own = {"agent": self._agent, "owner": owner}

        def work(connection: Connection) -> list[StoredFile] | None:
            query = select(door_files.c.digest, *_FILE_COLUMNS).filter_by(**own, request=str(request))
            known = {digest: StoredFile(*rest) for digest, *rest in connection.execute(query)}
            used = connection.scalar(select(func.sum(door_files.c.size)).select_from(door_files).filter_by(**own)) or 0
            missing = {file.digest: file for file in new if file.digest not in known}
            if used + sum(len(file.data) for file in missing.values()) > _MAX_OWN_BYTES:
                return None
            for digest, file in missing.items():
                token, micros = secrets.token_urlsafe(_TOKEN_BYTES), to_micros(now)
                known[digest] = StoredFile(token, file.name, file.type, len(file.data), micros)
                row = {"id": self._database.row_ids.next(), "request": str(request), "digest": digest, "data": file.data}
                connection.execute(insert(door_files).values(**row, **own, **known[digest]._asdict()))
            return [known[file.digest] for file in new]

        stored = await self._database.write(work)
        if stored is None:
            raise TooManyFilesError
        return stored

    async def delete_files(self, owner: str, request: UUID) -> None:
        """Delete the files of a request, such as one that was refused."""
        deleted = delete(door_files).filter_by(agent=self._agent, owner=owner, request=str(request))
        await self._database.erase(lambda connection: connection.execute(deleted))

    async def load_files_of(self, owner: str) -> list[StoredFile]:
        """Return the files of a caller, without their data, oldest first."""
        query = select(*_FILE_COLUMNS).filter_by(agent=self._agent, owner=owner).order_by(door_files.c.id)
        return list(map(StoredFile._make, await self._database.fetch(query)))

    async def load_threads_of(self, owner: str) -> list[str]:
        """Return the threads of the conversations that clients of a caller can name."""
        thread = door_threads.c.thread
        query = self._select_threads(owner, thread).where(thread.is_not(None)).distinct().order_by(thread)
        return await self._database.fetch_scalars(query)

    def _select_threads(self, owner: str, *columns: Any) -> Select[Any]:
        return select(*columns).filter_by(agent=self._agent, owner=owner)


async def find_file(database: Database, token: str, now: datetime) -> NewFile | None:
    """Return the file with a token; None without one, and seven days after it was sent."""
    is_it = door_files.c.token == token, door_files.c.created_at >= to_micros(now - timedelta(days=FILE_DAYS))
    query = select(door_files.c.name, door_files.c.type, door_files.c.data).where(*is_it)
    return next(map(NewFile._make, await database.fetch(query)), None)


def delete_door_threads(connection: Connection, agent: str, owner: str, thread: str | None) -> None:
    """Delete what names a conversation that is deleted, and the files of its requests, in a transaction."""
    own, is_there = {"agent": agent, "owner": owner}, {"agent": agent, "owner": owner, "thread": thread}
    requests = select(door_threads.c.request).filter_by(**is_there)
    connection.execute(delete(door_files).filter_by(**own).where(door_files.c.request.in_(requests)))
    connection.execute(delete(door_threads).filter_by(**is_there))
