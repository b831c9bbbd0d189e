"""Keys: with them programs reach agents by a door. They belong to a platform, and only their hashes are stored."""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, insert, select, update

from ...domain.callers import is_caller, key_of
from ...domain.jid import local_part
from ..backends.database import Commit, Database
from ..notifications import StoredNotification
from ..records import from_micros, to_micros
from ..schema import api_keys, notifications

USERS_BY_HEADER = "header"
"""The value of `users` of a key whose requests name the person for whom a front end asks."""


SECRET_PREFIX = "sc_"
"""The beginning of each secret, by which a scanner for secrets recognises one."""
_SECRET_BYTES = 32


def make_secret() -> str:
    """Return the secret of a new key: `sc_` and 43 characters of base64url, which are 256 random bits."""
    return f"{SECRET_PREFIX}{secrets.token_urlsafe(_SECRET_BYTES)}"


def hash_secret(secret: str) -> bytes:
    """Return the hash under which a secret is stored. It is random, so no salt and no slow hash protects it better."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


class StoredKey(NamedTuple):
    """A row of the keys. Times are in microseconds, `agents` and `withdrawn` are JSON texts, the hashes are SHA-256."""

    id: int
    name: str
    agents: str
    withdrawn: str
    account: str
    users: str
    secret_hash: bytes
    previous_hash: bytes | None
    previous_until: int | None
    created_at: int
    created_by: str
    issued_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None

    @property
    def agent_jids(self) -> list[str]:
        """The agents (bare JIDs) that the key may ask, in the order of its creation."""
        return list(json.loads(self.agents))

    @property
    def withdrawn_jids(self) -> list[str]:
        """The agents (bare JIDs) that have withdrawn the key for good."""
        return list(json.loads(self.withdrawn))

    def is_expired(self, now: datetime) -> bool:
        """Return True if its time is over."""
        return self.expires_at is not None and self.expires_at <= to_micros(now)

    def is_live(self, now: datetime) -> bool:
        """Return True if its secret is accepted."""
        return self.revoked_at is None and not self.is_expired(now)

    def until(self, end: datetime) -> StoredKey:
        """Return it with an end."""
        return self._replace(expires_at=to_micros(end))

    @property
    def lifetime(self) -> timedelta | None:
        """The time from the last secret to the end of the key; None for a key without an end."""
        return None if self.expires_at is None else from_micros(self.expires_at) - from_micros(self.issued_at)


class KeyRepository:
    """The keys of a platform. Methods raise StoreError if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def make(
        self, name: str, agents: list[str], account: str, secret_hash: bytes, *, users: str, created_by: str, now: datetime
    ) -> StoredKey:
        """Return a new key without an end, not stored yet."""
        micros = to_micros(now)
        return StoredKey(
            self._database.next_id(),
            name,
            json.dumps(agents),
            "[]",
            account,
            users,
            secret_hash,
            None,
            None,
            micros,
            created_by,
            micros,
            None,
            None,
            None,
        )

    async def load_all(self) -> list[StoredKey]:
        """Return all keys by name, with those that are revoked or expired."""
        return await self._load()

    async def find(self, name: str) -> StoredKey | None:
        """Return a key, or None."""
        return next(iter(await self._load(api_keys.c.name == name)), None)

    async def load_of(self, account: str) -> list[StoredKey]:
        """Return the keys that stand for a person (a bare JID), by name."""
        return await self._load(api_keys.c.account == account)

    def create(self, new: StoredKey, notice: StoredNotification | None = None) -> Commit[bool]:
        """Store a new key with a notification about it. The commit has False if there is, or was, a key of its name."""

        def work(connection: Connection) -> bool:
            if connection.scalar(select(api_keys.c.id).where(api_keys.c.name == new.name)) is not None:
                return False
            connection.execute(insert(api_keys).values(new._asdict()))
            _add_notice(connection, notice)
            return True

        return self._database.run(work)

    def rotate(
        self,
        name: str,
        secret_hash: bytes,
        *,
        keep: timedelta,
        now: datetime,
        notice: StoredNotification | None = None,
    ) -> Commit[StoredKey | None]:
        """Give a key a new secret and its whole lifetime again, and store a notification about it.

        The secret of before is accepted for `keep`, but not after the end that it had. One of before that is not any more. The
        commit has None if there is no such key, or if it is revoked.
        """

        def work(connection: Connection) -> StoredKey | None:
            is_open = api_keys.c.name == name, api_keys.c.revoked_at.is_(None)
            row = connection.execute(select(api_keys).where(*is_open)).one_or_none()
            if row is None:
                return None
            before = StoredKey._make(row)
            until = to_micros(now + keep)
            if before.expires_at is not None:
                until = min(until, before.expires_at)
            is_kept = until > to_micros(now)
            after = before._replace(
                secret_hash=secret_hash,
                previous_hash=before.secret_hash if is_kept else None,
                previous_until=until if is_kept else None,
                issued_at=to_micros(now),
                expires_at=None if before.lifetime is None else to_micros(now + before.lifetime),
            )
            connection.execute(update(api_keys).where(api_keys.c.id == after.id).values(after._asdict()))
            _add_notice(connection, notice)
            return after

        return self._database.run(work)

    def revoke(self, name: str, now: datetime) -> Commit[StoredKey | None]:
        """Revoke a key for good. The commit has the key, which may have been revoked before; None if there is none."""

        def work(connection: Connection) -> StoredKey | None:
            of_name = api_keys.c.name == name
            values = {"revoked_at": to_micros(now), "previous_hash": None, "previous_until": None}
            connection.execute(update(api_keys).where(of_name, api_keys.c.revoked_at.is_(None)).values(values))
            row = connection.execute(select(api_keys).where(of_name)).one_or_none()
            return None if row is None else StoredKey._make(row)

        return self._database.run(work)

    def save_use(self, key: int, now: datetime) -> Commit[None]:
        """Store when a key, by its row, was used last."""
        statement = update(api_keys).where(api_keys.c.id == key).values(last_used_at=to_micros(now))

        def work(connection: Connection) -> None:
            connection.execute(statement)

        return self._database.run(work)

    async def _load(self, *conditions: ColumnElement[bool]) -> list[StoredKey]:
        query = select(api_keys).where(*conditions).order_by(api_keys.c.name)
        rows = await self._database.fetch(query)
        return [StoredKey._make(row) for row in rows]


def find_keys(connection: Connection, agent: str, person: str) -> list[str]:
    """Return the names of the keys for an agent that stand for a person (a bare JID), or whose address that is."""
    return [key.name for key in _load_keys_of(connection, agent, person)]


def withdraw_keys(connection: Connection, agent: str, person: str, now: datetime) -> None:
    """Withdraw the keys of `find_keys` from the agent for good, in a transaction of the writer.

    A key without an agent is revoked.
    """
    for key in _load_keys_of(connection, agent, person):
        agents = [one for one in key.agent_jids if one != agent]
        values = {"agents": json.dumps(agents), "withdrawn": json.dumps([*key.withdrawn_jids, agent])}
        revoked = {} if agents else {"revoked_at": to_micros(now), "previous_hash": None, "previous_until": None}
        connection.execute(update(api_keys).where(api_keys.c.id == key.id).values({**values, **revoked}))


def _load_keys_of(connection: Connection, agent: str, person: str) -> list[StoredKey]:
    if not person:
        return []
    is_theirs = api_keys.c.name == local_part(key_of(person)) if is_caller(person) else api_keys.c.account == person
    rows = connection.execute(select(api_keys).where(is_theirs, api_keys.c.revoked_at.is_(None))).all()
    return [key for key in map(StoredKey._make, rows) if agent in key.agent_jids]


def _add_notice(connection: Connection, notice: StoredNotification | None) -> None:
    if notice is not None:
        connection.execute(insert(notifications).values(notice._asdict()))
