"""Webhooks: addresses of a platform at which a signed POST starts a turn, and the bodies that they have accepted."""

from __future__ import annotations

import base64
import binascii
import secrets
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, TypeAlias

from sqlalchemy import Connection, delete, func, insert, select

from ..backends.database import Database
from ..backends.group_commit import Commit
from ..records import to_micros
from ..row_repository import RowRepository
from ..schema import DUPLICATE_DAYS, StoredWebhook, WebhookBody, WebhookKind, webhook_bodies, webhooks

_SECRET_PREFIX = "whsec_"
"""The beginning of the secrets of Standard Webhooks."""
_MIN_KEY_BYTES, _MAX_KEY_BYTES = 24, 64
"""The size of a key of Standard Webhooks, as its specification has it."""
_MIN_SECRET_CHARACTERS, _MAX_SECRET_CHARACTERS = 16, 256
"""The size of a secret of GitHub's form."""
_NEW_KEY_BYTES = 32

_ANSWER_KEY_BYTES = 32
_MAX_BODIES = 50_000
_KNOWN_TO_INBOX = timedelta(days=DUPLICATE_DAYS, hours=-1)
"""The time for which the inbox surely knows a request, from before it was stored."""

Accepted: TypeAlias = Literal["new", "repeated", "old", "full"]
"""The knowledge about a body.

It is new, or was accepted within the time in which the inbox knows its request, or before that. If it is "full", no more bodies
can be remembered.
"""


def make_webhook_secret(kind: WebhookKind) -> str:
    """Return a new secret, of 256 random bits: `whsec_` and base64, or for GitHub 64 hexadecimal digits."""
    if kind == "github":
        return secrets.token_hex(_NEW_KEY_BYTES)
    return _SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_NEW_KEY_BYTES)).decode()


def decode_webhook_secret(kind: WebhookKind, secret: str) -> bytes:
    """Return the key of the HMAC. Raise ValueError for a secret that is malformed, too short or too long."""
    if kind == "github":
        if (
            not _MIN_SECRET_CHARACTERS <= len(secret) <= _MAX_SECRET_CHARACTERS
            or not secret.isprintable()
            or secret != secret.strip()
        ):
            raise ValueError(
                f"it needs {_MIN_SECRET_CHARACTERS} to {_MAX_SECRET_CHARACTERS} printable characters, and no spaces around it"
            )
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX).encode(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"it must be {_SECRET_PREFIX} and base64") from error
    if not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:
        raise ValueError(f"it must be {_SECRET_PREFIX} and the base64 of {_MIN_KEY_BYTES} to {_MAX_KEY_BYTES} bytes")
    return key


class WebhookRepository(RowRepository[StoredWebhook]):
    """The webhooks of a platform, by name. Those that are revoked are among them.

    `max_bodies` is the number of bodies that are remembered for one secret.
    """

    table, row, ident, order = webhooks, StoredWebhook, "name", "name"

    def __init__(self, database: Database, max_bodies: int = _MAX_BODIES) -> None:
        super().__init__(database)
        self.max_bodies = max_bodies

    def make(
        self, name: str, agent: str, kind: WebhookKind, thread: str | None, secret: str, *, created_by: str, now: datetime
    ) -> StoredWebhook:
        """Return a new webhook, not stored yet."""
        micros, answer_key = to_micros(now), secrets.token_bytes(_ANSWER_KEY_BYTES)
        return StoredWebhook(
            self.row_ids.next(),
            name,
            agent,
            kind,
            thread,
            secret,
            1,
            None,
            None,
            answer_key,
            micros,
            created_by,
            micros,
            None,
        )

    def rotate(self, name: str, secret: str, *, keep: timedelta, now: datetime) -> Commit[StoredWebhook | None]:
        """Give a webhook a new secret. The one of before is accepted for `keep`, and one before that not any more.

        The bodies that were accepted are forgotten with their secret. The commit has None if there is no such webhook, or if it
        is revoked.
        """

        def decide(before: StoredWebhook) -> StoredWebhook | None:
            if before.revoked_at is not None:
                return None
            return before._replace(
                secret=secret,
                secret_number=before.secret_number + 1,
                previous_secret=before.secret if keep else None,
                previous_until=to_micros(now + keep) if keep else None,
                issued_at=to_micros(now),
            )

        return self.update(name, decide, partial(_delete_bodies, now=now))

    def revoke(self, name: str, now: datetime) -> Commit[StoredWebhook | None]:
        """Revoke a webhook for good, and delete its secrets. The commit has it, or None if there is none."""
        return self.update(name, lambda webhook: webhook.revoked(now), partial(_delete_bodies, now=now))

    def remember(self, webhook: StoredWebhook, secret_number: int, body: bytes, now: datetime) -> Commit[Accepted]:
        """Remember a body, by its hash, for as long as the secret with which it was signed is accepted.

        The commit says what was known of it before. If that is "full", it is not remembered.
        """
        of_webhook = webhook_bodies.c.webhook == webhook.id
        is_present = of_webhook, webhook_bodies.c.secret_number == secret_number

        def work(connection: Connection) -> Accepted:
            _delete_bodies(connection, webhook, now)
            earlier = connection.execute(
                select(webhook_bodies.c.secret_number, webhook_bodies.c.accepted_at).where(
                    of_webhook, webhook_bodies.c.body == body
                )
            ).all()
            if secret_number not in [row.secret_number for row in earlier]:
                count = connection.scalar(select(func.count()).select_from(webhook_bodies).where(*is_present)) or 0
                if count >= self.max_bodies:
                    return "full"
                accepted_at = min([to_micros(now), *(row.accepted_at for row in earlier)])
                connection.execute(insert(webhook_bodies).values(WebhookBody(webhook.id, secret_number, body, accepted_at)))
            if not earlier:
                return "new"
            is_old = min(row.accepted_at for row in earlier) <= to_micros(now - _KNOWN_TO_INBOX)
            return "old" if is_old else "repeated"

        return self._database.run(work)

    def forget(self, webhook: StoredWebhook, secret_number: int, body: bytes) -> Commit[int]:
        """Forget a body that was remembered, because its request was refused."""
        key = {"webhook": webhook.id, "secret_number": secret_number, "body": body}
        return self._database.execute(delete(webhook_bodies).filter_by(**key))

    async def count_bodies(self) -> dict[int, int]:
        """Return the numbers of bodies that are remembered for the present secrets of webhooks, by their rows."""
        query = (
            select(webhooks.c.id, func.count().label("bodies"))
            .join(webhook_bodies, webhook_bodies.c.webhook == webhooks.c.id)
            .where(webhook_bodies.c.secret_number == webhooks.c.secret_number)
            .group_by(webhooks.c.id)
        )
        rows = await self._database.fetch(query)
        return {row.id: row.bodies for row in rows}


def _delete_bodies(connection: Connection, webhook: StoredWebhook, now: datetime) -> None:
    """Delete the bodies of secrets that are not accepted any more."""
    of_webhook = delete(webhook_bodies).where(webhook_bodies.c.webhook == webhook.id)
    is_over = webhook_bodies.c.secret_number < webhook.secret_number - (1 if webhook.accepts_previous(now) else 0)
    connection.execute(of_webhook if webhook.revoked_at is not None else of_webhook.where(is_over))
