"""The operations on webhooks, at which a signed POST starts a turn.

The secret of a webhook is in the result that makes it, once. It is in no log and no audit trail. Unlike that of a key it is
stored as it is, since a signature is checked with the secret itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from ...contracts.base import utc_now
from ...domain.callers import webhook_address
from ...exceptions import ConfigError
from ...storage import (
    StoredWebhook,
    WebhookKind,
    WebhookRepository,
    decode_webhook_secret,
    from_micros,
    make_webhook_secret,
)
from ..definition import Arguments, Call, NoArguments, operation
from ..host import OperationHost
from .named_secrets import KEEP_S, MAX_KEEP_S, check_name, find_agent, name_revoked, name_taken, name_unknown

_MAX_THREAD_CHARACTERS = 200

WebhookState: TypeAlias = Literal["live", "full", "revoked"]
"""A webhook that is "full" has accepted so many bodies that it refuses events until its secret is rotated."""


@dataclass(frozen=True, slots=True)
class ListedWebhook:
    """A webhook without its secret."""

    name: str
    path: str
    """The path below the address of the HTTP server to which events are sent."""
    address: str
    """The bare JID under which the agent knows the sender. Its domain, `callers.invalid`, cannot exist."""
    agent: str
    """The bare JID of the agent that gets the events."""
    kind: WebhookKind
    thread: str | None
    """The conversation of all events; None for the common one of the sender."""
    state: WebhookState
    created_at: datetime
    created_by: str
    issued_at: datetime
    """The time of the present secret."""
    previous_until: datetime | None
    """The time until which the secret before the last rotation is accepted; None if it is not."""
    revoked_at: datetime | None
    bodies: int
    """The number of bodies that are remembered for the present secret, of GitHub's kind."""
    max_bodies: int


@dataclass(frozen=True, slots=True)
class IssuedWebhook:
    """A webhook with its new secret, which nothing shows again."""

    secret: str = field(repr=False)
    webhook: ListedWebhook


class NewWebhook(Arguments):
    """A new webhook: the agent (a JID, or the part before the @) that gets its events, and the form of the signature.

    `thread` names the conversation of all events. `secret` is one that the sender has made; without it the platform makes one.
    """

    name: str
    agent: str
    kind: WebhookKind = "standard"
    thread: str | None = None
    secret: str = Field("", repr=False)


class OfWebhook(Arguments):
    """A webhook, by its name."""

    name: str


class RotateWebhook(Arguments):
    """A webhook that gets a new secret, which the sender may have made. The one of before is accepted for `keep_s` seconds."""

    name: str
    keep_s: Annotated[int, Field(ge=0, le=MAX_KEEP_S)] = KEEP_S
    secret: str = Field("", repr=False)


@operation("webhooks.create", is_change=True)
async def create_webhook(call: Call, arguments: NewWebhook) -> IssuedWebhook:
    """Create a webhook for an agent. Its secret is in the result, and nowhere else that is shown."""
    name, host, now = arguments.name, call.host, utc_now()
    check_name("webhook", name, "answers")
    thread = arguments.thread
    if thread is not None and not 0 < len(thread) <= _MAX_THREAD_CHARACTERS:
        raise ConfigError("thread", f"it must have 1 to {_MAX_THREAD_CHARACTERS} characters")
    agent = find_agent(await host.list_agents(), arguments.agent, "agent")
    secret = _choose_secret(arguments.kind, arguments.secret)
    webhooks = WebhookRepository(host.repository(agent).database)
    if await webhooks.find(name) is not None:
        raise name_taken("webhook", name)
    new = webhooks.make(name, agent, arguments.kind, thread, secret, created_by=call.actor.name, now=now)
    await call.record(agent, "webhooks.create", f"webhook {name}")
    commit = webhooks.create(new)
    commit.on_stored(lambda is_stored: host.take_webhook(new) if is_stored else None)
    if not await commit:
        raise name_taken("webhook", name)
    return IssuedWebhook(secret, _summary(new, now, 0, webhooks.max_bodies))


@operation("webhooks.list")
async def list_webhooks(call: Call, arguments: NoArguments) -> list[ListedWebhook]:
    """List all webhooks by name, with those that are revoked. No secret is shown."""
    if call.host.database is None:
        return []
    now, webhooks = utc_now(), WebhookRepository(call.host.database)
    bodies = await webhooks.count_bodies()
    return [_summary(stored, now, bodies.get(stored.id, 0), webhooks.max_bodies) for stored in await webhooks.load_all()]


@operation("webhooks.rotate", is_change=True)
async def rotate_webhook(call: Call, arguments: RotateWebhook) -> IssuedWebhook:
    """Give a webhook a new secret. The one of before is accepted for a time, so that there is no gap.

    The bodies that a secret has signed are remembered as long as it is accepted, so a full webhook accepts events again.
    """
    host, now = call.host, utc_now()
    webhooks, stored = await _find(host, arguments.name)
    if stored.revoked_at is not None:
        raise name_revoked("webhook", stored.name)
    secret = _choose_secret(stored.kind, arguments.secret)
    await call.record(stored.agent, "webhooks.rotate", f"webhook {stored.name}")
    commit = webhooks.rotate(stored.name, secret, keep=timedelta(seconds=arguments.keep_s), now=now)
    commit.on_stored(lambda rotated: None if rotated is None else host.take_webhook(rotated))
    if (rotated := await commit) is None:
        raise name_revoked("webhook", stored.name)
    return IssuedWebhook(secret, _summary(rotated, now, 0, webhooks.max_bodies))


@operation("webhooks.revoke", is_change=True)
async def revoke_webhook(call: Call, arguments: OfWebhook) -> ListedWebhook:
    """Revoke a webhook for good, at once, and delete its secret. What it asks is cancelled, and its answers are not shown."""
    host, now = call.host, utc_now()
    webhooks, stored = await _find(host, arguments.name)
    if stored.revoked_at is None:
        await call.record(stored.agent, "webhooks.revoke", f"webhook {stored.name}")
    commit = webhooks.revoke(stored.name, now)
    commit.on_stored(lambda revoked: None if revoked is None else host.take_webhook(revoked))
    return _summary(await commit or stored, now, 0, webhooks.max_bodies)


def _choose_secret(kind: WebhookKind, given: str) -> str:
    """Return the secret of the sender, or a new one. Raise ConfigError for one that is malformed."""
    secret = given or make_webhook_secret(kind)
    try:
        decode_webhook_secret(kind, secret)
    except ValueError as error:
        raise ConfigError("secret", str(error)) from None
    return secret


async def _find(host: OperationHost, name: str) -> tuple[WebhookRepository, StoredWebhook]:
    webhooks = None if host.database is None else WebhookRepository(host.database)
    if webhooks is None or (stored := await webhooks.find(name)) is None:
        raise name_unknown("webhook", name)
    return webhooks, stored


def _summary(stored: StoredWebhook, now: datetime, bodies: int, max_bodies: int) -> ListedWebhook:
    state: WebhookState = "revoked" if stored.revoked_at is not None else "full" if bodies >= max_bodies else "live"
    return ListedWebhook(
        stored.name,
        f"/webhooks/{stored.name}",
        webhook_address(stored.name),
        stored.agent,
        stored.kind,
        stored.thread,
        state,
        from_micros(stored.created_at),
        stored.created_by,
        from_micros(stored.issued_at),
        None if stored.previous_until is None or not stored.accepts_previous(now) else from_micros(stored.previous_until),
        None if stored.revoked_at is None else from_micros(stored.revoked_at),
        bodies,
        max_bodies,
    )
