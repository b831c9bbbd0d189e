"""Keys: with them programs reach agents by a door. They belong to a platform, and only their hashes are stored."""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import datetime, timedelta

from sqlalchemy import Connection, insert, select, update

from ...domain.callers import is_caller, key_of
from ...domain.jid import local_part
from ..backends.group_commit import Commit
from ..records import to_micros
from ..row_repository import RowRepository
from ..schema import StoredKey, Task, api_keys, tasks

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


class KeyRepository(RowRepository[StoredKey]):
    """The keys of a platform, by name. Those that are revoked or expired are among them."""

    table, row, ident, order = api_keys, StoredKey, "name", "name"

    def make(
        self, name: str, agents: list[str], account: str, secret_hash: bytes, *, users: str, created_by: str, now: datetime
    ) -> StoredKey:
        """Return a new key without an end, not stored yet."""
        micros = to_micros(now)
        return StoredKey(
            self.row_ids.next(),
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

    async def load_of(self, account: str) -> list[StoredKey]:
        """Return the keys that stand for a person (a bare JID), by name."""
        return await self.load(account=account)

    def create(self, new: StoredKey, notice: Task | None = None) -> Commit[bool]:
        """Store a new key with a notification about it. The commit has False if there is, or was, a key of its name."""
        return self.add(new, lambda connection: _add_notice(connection, notice))

    def rotate(
        self,
        name: str,
        secret_hash: bytes,
        *,
        keep: timedelta,
        now: datetime,
        notice: Task | None = None,
    ) -> Commit[StoredKey | None]:
        """Give a key a new secret and its whole lifetime again, and store a notification about it.

        The secret of before is accepted for `keep`, but not after the end that it had. One of before that is not any more. The
        commit has None if there is no such key, or if it is revoked.
        """

        def decide(before: StoredKey) -> StoredKey | None:
            if before.revoked_at is not None:
                return None
            until = to_micros(now + keep)
            if before.expires_at is not None:
                until = min(until, before.expires_at)
            is_kept = until > to_micros(now)
            return before._replace(
                secret_hash=secret_hash,
                previous_hash=before.secret_hash if is_kept else None,
                previous_until=until if is_kept else None,
                issued_at=to_micros(now),
                expires_at=None if before.lifetime is None else to_micros(now + before.lifetime),
            )

        return self.update(name, decide, lambda connection, _: _add_notice(connection, notice))

    def revoke(self, name: str, now: datetime) -> Commit[StoredKey | None]:
        """Revoke a key for good. The commit has the key, which may have been revoked before; None if there is none."""
        return self.update(name, lambda key: key.revoked(now))

    def save_use(self, key: int, now: datetime) -> Commit[int]:
        """Store when a key, by its row, was used last."""
        return self._database.execute(update(api_keys).where(api_keys.c.id == key).values(last_used_at=to_micros(now)))


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


def _add_notice(connection: Connection, notice: Task | None) -> None:
    if notice is not None:
        connection.execute(insert(tasks).values(notice))
