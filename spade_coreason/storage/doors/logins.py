"""The logins of people to the page in the browser: links, which are used once, and the sessions that they begin."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, insert, select, true

from ..backends.database import Database
from ..records import from_micros, to_micros
from ..schema import LoginRow, logins
from .api_keys import hash_secret

LINK_LIFETIME = timedelta(minutes=2)
SESSION_LIFETIME = timedelta(hours=12)
_LINK_BYTES, _SESSION_BYTES = 32, 64
_MAX_OF_PERSON = 50
"""The number of links of a person, and of sessions. The oldest one gives way."""


class PageSession(NamedTuple):
    """A session of a person who is logged in."""

    person: str
    """The bare JID of the person."""
    created_at: datetime


class LoginRepository:
    """The logins of a platform. Only hashes of their secrets are stored. Methods raise StoreError if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_link(self, person: str, now: datetime) -> str:
        """Store a link for a person (a bare JID), which begins one session within two minutes. Return its secret."""
        return await self._database.write(lambda connection: self._add(connection, person, now, is_link=True))

    async def find_person(self, link: str, now: datetime) -> str | None:
        """Return the person for whom a link is, without using it; None for one that was used or is too old."""
        query = select(logins.c.person).where(*_is_live(link, now, is_link=True))
        return await self._database.read(lambda connection: connection.scalar(query))

    async def redeem(self, link: str, now: datetime) -> str | None:
        """Use a link, and return the secret of its session. One of several calls at once gets it; the others get None."""
        used = delete(logins).where(*_is_live(link, now, is_link=True)).returning(logins.c.person)

        def work(connection: Connection) -> str | None:
            person = connection.scalar(used)
            return None if person is None else self._add(connection, person, now, is_link=False)

        return await self._database.write(work)

    async def find(self, secret: str, now: datetime) -> PageSession | None:
        """Return the person who has the secret of a session; None for one that has ended."""
        return await self._database.read(lambda connection: find_login(connection, secret, now))

    async def end(self, secret: str) -> None:
        """End the session that has a secret."""
        ended = delete(logins).where(logins.c.secret_hash == hash_secret(secret))
        await self._database.execute(ended)

    async def has_any(self, person: str | None) -> bool:
        """Return True if a person (a bare JID), or anyone, has a session or a link."""
        query = select(logins.c.id).where(true() if person is None else logins.c.person == person).limit(1)
        return bool(await self._database.fetch(query))

    async def end_all(self, person: str | None) -> int:
        """End all sessions and links of a person (a bare JID), or of all people. Return how many there were."""
        ended = delete(logins) if person is None else delete(logins).where(logins.c.person == person)
        return await self._database.execute(ended)

    def _add(self, connection: Connection, person: str, now: datetime, *, is_link: bool) -> str:
        secret, micros = secrets.token_urlsafe(_LINK_BYTES if is_link else _SESSION_BYTES), to_micros(now)
        connection.execute(delete(logins).where(logins.c.expires_at <= micros))
        of_kind = logins.c.person == person, logins.c.is_link == is_link
        newest = select(logins.c.id).where(*of_kind).order_by(logins.c.id.desc()).limit(_MAX_OF_PERSON - 1)
        connection.execute(delete(logins).where(*of_kind, logins.c.id.not_in(newest)))
        end = to_micros(now + (LINK_LIFETIME if is_link else SESSION_LIFETIME))
        row = LoginRow(self._database.row_ids.next(), hash_secret(secret), person, is_link, micros, end)
        connection.execute(insert(logins).values(row))
        return secret


def find_login(connection: Connection, secret: str, now: datetime) -> PageSession | None:
    """Return the person who has the secret of a session, in a transaction; None for one that has ended."""
    query = select(logins.c.person, logins.c.created_at).where(*_is_live(secret, now, is_link=False))
    row = connection.execute(query).one_or_none()
    return None if row is None else PageSession(row.person, from_micros(row.created_at))


def find_live(connection: Connection, sessions: Iterable[str], now: datetime) -> list[str]:
    """Return those of the secrets whose sessions have not ended."""
    by_hash = {hash_secret(secret): secret for secret in sessions}
    live = logins.c.secret_hash.in_(list(by_hash)), ~logins.c.is_link, logins.c.expires_at > to_micros(now)
    return [by_hash[found] for found in connection.scalars(select(logins.c.secret_hash).where(*live))]


def _is_live(secret: str, now: datetime, *, is_link: bool) -> tuple[ColumnElement[bool], ...]:
    return logins.c.secret_hash == hash_secret(secret), logins.c.is_link == is_link, logins.c.expires_at > to_micros(now)
