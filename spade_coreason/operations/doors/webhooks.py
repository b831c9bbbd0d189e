"""Create, list, rotate or revoke the webhooks, at which a signed POST starts a turn.

A webhook is for one agent, which knows its sender as hook-NAME@callers.invalid. Events are sent to /webhooks/NAME below the
address of the HTTP server. The agent has to list `webhook` among its `doors` in the configuration.

`create` and `rotate` print the secret, once. It is stored as it is: a signature cannot be checked with a hash of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias

from ... import storage
from ...contracts.times import utc_now
from ...domain.callers import webhook_address
from ...exceptions import ConfigError
from ..definition import About, Arguments, Call, NoArguments, operation
from ..view import TableView, View
from .named_secrets import (
    KEEP_S,
    OverlapSeconds,
    check_name,
    find_agent,
    find_named,
    name_revoked,
    name_taken,
    store_change,
    store_new,
)

_MAX_THREAD_CHARACTERS = 200
_OwnSecret: TypeAlias = Annotated[
    str,
    About(
        'Take the secret that the sender has made from the first line of a file, "-" for standard input.', "FILE", "secret-file"
    ),
]

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
    kind: storage.WebhookKind
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
    kind: Annotated[
        storage.WebhookKind,
        About("The form of the signature: Standard Webhooks, or that of GitHub (X-Hub-Signature-256)."),
    ] = "standard"
    thread: Annotated[str | None, About("The conversation of all events.  [default: the common one of the webhook]", "T")] = (
        None
    )
    secret: _OwnSecret = field(default="", repr=False)


class OfWebhook(Arguments):
    """A webhook, by its name."""

    name: str


class RotateWebhook(Arguments):
    """A webhook that gets a new secret, which the sender may have made. The one of before is accepted for `keep_s` seconds."""

    name: str
    keep_s: OverlapSeconds = KEEP_S
    secret: _OwnSecret = field(default="", repr=False)


@operation(
    "webhooks.create",
    is_change=True,
    creates_directory=True,
    view=View(
        examples=["webhooks create ci release-bot", "webhooks create repo release-bot --kind github > secret.txt"],
        given=["name", "agent"],
    ),
)
async def create_webhook(call: Call, arguments: NewWebhook) -> IssuedWebhook:
    """Create a webhook for an agent. Its secret is in the result, and nothing shows it again. It works at once.

    NAME is 1 to 40 of a-z, 0-9 and "-". It is used once: no later webhook can have it. AGENT is a JID or its name alone.

    The secret is printed. If standard output is no terminal, it gets the secret and nothing else.
    """
    name, host, now = arguments.name, call.host, utc_now()
    check_name("webhook", name, "answers")
    thread = arguments.thread
    if thread is not None and not 0 < len(thread) <= _MAX_THREAD_CHARACTERS:
        raise ConfigError("thread", f"it must have 1 to {_MAX_THREAD_CHARACTERS} characters")
    agent = find_agent(await host.list_agents(), arguments.agent, "agent")
    secret = _choose_secret(arguments.kind, arguments.secret)
    webhooks = storage.WebhookRepository(host.repository(agent).database)
    if await webhooks.find(name) is not None:
        raise name_taken("webhook", name)
    new = webhooks.make(name, agent, arguments.kind, thread, secret, created_by=call.actor.name, now=now)
    await call.record(agent, "webhooks.create", f"webhook {name}")
    await store_new(call, "webhook", new, webhooks.add(new))
    return IssuedWebhook(secret, _summary(new, now, 0, webhooks.max_bodies))


@operation(
    "webhooks.list",
    view=View(
        examples=["webhooks list"],
        table=TableView(
            "webhooks",
            columns=[
                "name",
                "agent",
                "kind",
                "thread",
                ("bodies", lambda one: f"{one.bodies:,} of {one.max_bodies:,}" if one.kind == "github" else ""),
                ("secret of", "issued_at"),
                "state",
            ],
        ),
        links=["webhooks.rotate", "webhooks.revoke"],
        beside=["webhooks.create"],
    ),
)
async def list_webhooks(call: Call, arguments: NoArguments) -> list[ListedWebhook]:
    """List all webhooks, with those that are revoked.

    One of GitHub's kind remembers the bodies that it has accepted. Once it is "full", it refuses events until you rotate its
    secret. No secret is shown.
    """
    if call.host.database is None:
        return []
    now, webhooks = utc_now(), storage.WebhookRepository(call.host.database)
    bodies = await webhooks.count_bodies()
    return [_summary(stored, now, bodies.get(stored.id, 0), webhooks.max_bodies) for stored in await webhooks.load()]


@operation(
    "webhooks.rotate",
    is_change=True,
    view=View(examples=["webhooks rotate ci", "webhooks rotate ci --keep 0"], given=["name"]),
)
async def rotate_webhook(call: Call, arguments: RotateWebhook) -> IssuedWebhook:
    """Give a webhook a new secret, which is in the result. The old one works for a time, so that there is no gap.

    NAME is from `webhooks list`. The bodies that a secret has signed are remembered as long as it works, so a full webhook
    accepts events again.
    """
    now = utc_now()
    database, stored = await find_named(call.host, storage.WebhookRepository, "webhook", arguments.name)
    webhooks = storage.WebhookRepository(database)
    if stored.revoked_at is not None:
        raise name_revoked("webhook", stored.name)
    secret = _choose_secret(stored.kind, arguments.secret)
    await call.record(stored.agent, "webhooks.rotate", f"webhook {stored.name}")
    commit = webhooks.rotate(stored.name, secret, keep=timedelta(seconds=arguments.keep_s), now=now)
    rotated = await store_change(call, "webhook", stored.name, commit)
    return IssuedWebhook(secret, _summary(rotated, now, 0, webhooks.max_bodies))


@operation(
    "webhooks.revoke",
    is_change=True,
    view=View(examples=["webhooks revoke ci"], given=["name"], done="The webhook {name} is revoked."),
)
async def revoke_webhook(call: Call, arguments: OfWebhook) -> ListedWebhook:
    """Revoke a webhook for good, at once, and delete its secret.

    NAME is from `webhooks list`. What its events ask at this moment is cancelled, and the addresses of its answers end. Its
    conversation stays stored.
    """
    now = utc_now()
    database, stored = await find_named(call.host, storage.WebhookRepository, "webhook", arguments.name)
    webhooks = storage.WebhookRepository(database)
    if stored.revoked_at is None:
        await call.record(stored.agent, "webhooks.revoke", f"webhook {stored.name}")
    revoked = await store_change(call, "webhook", stored.name, webhooks.revoke(stored.name, now))
    return _summary(revoked, now, 0, webhooks.max_bodies)


def _choose_secret(kind: storage.WebhookKind, given: str) -> str:
    """Return the secret of the sender, or a new one. Raise ConfigError for one that is malformed."""
    secret = given or storage.make_webhook_secret(kind)
    try:
        storage.decode_webhook_secret(kind, secret)
    except ValueError as error:
        raise ConfigError("secret", str(error)) from None
    return secret


def _summary(stored: storage.StoredWebhook, now: datetime, bodies: int, max_bodies: int) -> ListedWebhook:
    state: WebhookState = "revoked" if stored.revoked_at is not None else "full" if bodies >= max_bodies else "live"
    return ListedWebhook(
        stored.name,
        f"/webhooks/{stored.name}",
        webhook_address(stored.name),
        stored.agent,
        stored.kind,
        stored.thread,
        state,
        storage.from_micros(stored.created_at),
        stored.created_by,
        storage.from_micros(stored.issued_at),
        storage.from_micros_or_none(stored.previous_until) if stored.accepts_previous(now) else None,
        storage.from_micros_or_none(stored.revoked_at),
        bodies,
        max_bodies,
    )
