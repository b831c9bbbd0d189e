"""Create, list, rotate or revoke the keys with which programs ask agents over HTTP.

A key is for one or several agents, and ends by itself after 90 days. It stands for itself: agents know its caller as
NAME@callers.invalid, with memories and quotas of its own. With --jid it stands for a person. It asks under their quotas then,
and sees nothing of theirs.

The platform stores a hash of the secret only. `create` and `rotate` print the secret, once. An agent is behind a door if its
`doors` in the configuration name it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias
from uuid import uuid4

from annotated_types import Gt, Le, MaxLen, MinLen

from ... import storage
from ...contracts.times import utc_now
from ...domain.callers import WEBHOOK_PREFIX, caller_address, refuse_caller
from ...domain.jid import bare_jid, parse_jid
from ...domain.preferences import PREFERENCES_SCOPE, Preferences
from ...domain.texts.translation import translate, use_language
from ...exceptions import ConfigError
from ..definition import About, Arguments, Call, NoArguments, operation
from ..host import OperationHost
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

LIFETIME_S, MAX_LIFETIME_S = 90 * 86_400, 3_660 * 86_400
"""The default lifetime of a key, and the longest."""

KeyState: TypeAlias = Literal["live", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key without its secret."""

    name: str
    address: str
    """The bare JID under which agents know the caller. Its domain, `callers.invalid`, cannot exist."""
    agents: list[str]
    """The agents (bare JIDs) that the key may ask."""
    withdrawn: list[str]
    """The agents (bare JIDs) whose operators have rejected the key, or the person for whom it stands: for good."""
    account: str
    """The bare JID of the person for whom the key stands; "" if it stands for itself."""
    users_by_header: bool
    """True if each request names the person for whom a front end asks, by a header."""
    state: KeyState
    created_at: datetime
    created_by: str
    issued_at: datetime
    """The time of the present secret."""
    expires_at: datetime | None
    """The end of the key; None if it never ends."""
    previous_until: datetime | None
    """The time until which the secret before the last rotation is accepted; None if it is not."""
    revoked_at: datetime | None
    last_used_at: datetime | None
    """The last use, up to a minute old; None if it was not used."""


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key with its new secret, which nothing shows again."""

    secret: str = field(repr=False)
    key: ListedKey


class NewKey(Arguments):
    """A new key: for agents (JIDs, or the parts before the @), for itself or for a person (a JID), and for how long.

    Without `lifetime_s` it lives for 90 days; null is for ever. With `users_by_header` it is a front end's: each request names
    the person for whom it asks.
    """

    name: str
    agents: Annotated[
        list[str],
        MinLen(1),
        MaxLen(100),
        About("An agent that the key may ask: its JID, or its name alone. Repeat it for several.", "AGENT", "agent"),
    ]
    account: Annotated[str, About("The person for whom the key asks. They are told by chat.", "JID", "jid")] = ""
    lifetime_s: Annotated[
        int | None,
        Gt(0),
        Le(MAX_LIFETIME_S),
        About('The time until the key ends: "12h", "90d" or "never".', "DURATION", "expires"),
    ] = LIFETIME_S
    users_by_header: Annotated[bool, About("For a front end: a header of each request names the person for whom it asks.")] = (
        False
    )


class OfKey(Arguments):
    """A key, by its name."""

    name: str


class RotateKey(Arguments):
    """A key that gets a new secret. The secret of before is accepted for `keep_s` seconds, a day without it."""

    name: str
    keep_s: OverlapSeconds = KEEP_S


@operation(
    "keys.create",
    is_change=True,
    creates_directory=True,
    view=View(
        examples=[
            "keys create website --agent notes",
            "keys create editor --agent coder --jid carol@example.com --expires 30d",
            "keys create ci --agent release --expires never > secret.txt",
        ],
        given=["name"],
    ),
)
async def create_key(call: Call, arguments: NewKey) -> IssuedKey:
    """Create a key. Its secret is in the result, and nothing shows it again. It works at once.

    NAME is 1 to 40 of a-z, 0-9 and "-". It is used once: no later key can have it.

    The secret is printed. If standard output is no terminal, it gets the secret and nothing else.

    With --users-by-header, each person has conversations and memories of their own. Use it for a front end that many people
    share, such as Open WebUI.
    """
    name, host, now = arguments.name, call.host, utc_now()
    check_name("key", name)
    if name.startswith(WEBHOOK_PREFIX):
        raise ConfigError("name", f"names that begin with {WEBHOOK_PREFIX} are those of webhooks; choose another name")
    known = await host.list_agents()
    agents = list(dict.fromkeys(find_agent(known, agent, "agents") for agent in arguments.agents))
    account = await check_account(host, arguments.account)
    if account and arguments.users_by_header:
        raise ConfigError("users_by_header", "a key for one person cannot ask for others too; leave out one of the two")
    keys = storage.KeyRepository(host.repository(agents[0]).database)
    if await keys.find(name) is not None:
        raise name_taken("key", name)
    users = storage.USERS_BY_HEADER if arguments.users_by_header else ""
    secret = storage.make_secret()
    new = keys.make(name, agents, account, storage.hash_secret(secret), users=users, created_by=call.actor.name, now=now)
    if arguments.lifetime_s is not None:
        new = new.until(now + timedelta(seconds=arguments.lifetime_s))
    await _record(call, "keys.create", new)
    await store_new(call, "key", new, keys.create(new, await _make_notice(call, new, now, is_new=True)))
    await _wake_notice(host, new)
    return IssuedKey(secret, _summary(new, now))


def _describe_agents(key: ListedKey) -> str:
    return ", ".join([*key.agents, *(f"{agent} (rejected)" for agent in key.withdrawn)])


@operation(
    "keys.list",
    view=View(
        examples=["keys list"],
        table=TableView(
            "keys",
            columns=[
                "name",
                ("agents", _describe_agents),
                ("for", lambda key: key.account or ("people of a front end" if key.users_by_header else "itself")),
                ("created", "created_at"),
                ("expires", lambda key: key.expires_at or "never"),
                ("last used", lambda key: key.last_used_at or "never"),
                "state",
            ],
        ),
        links=["keys.rotate", "keys.revoke"],
        beside=["keys.create", "webhooks.list"],
    ),
)
async def list_keys(call: Call, arguments: NoArguments) -> list[ListedKey]:
    """List all keys without their secrets, with those that are expired or revoked.

    The last use is up to a minute old.
    """
    if call.host.database is None:
        return []
    now = utc_now()
    return [_summary(stored, now) for stored in await storage.KeyRepository(call.host.database).load()]


@operation(
    "keys.rotate",
    is_change=True,
    view=View(examples=["keys rotate website", "keys rotate website --keep 0"], given=["name"]),
)
async def rotate_key(call: Call, arguments: RotateKey) -> IssuedKey:
    """Give a key a new secret, which is in the result. Its time begins again, with the length that it had.

    NAME is from `keys list`. The old secret works for --keep, so that the program can get the new one without a gap. A person
    for whom the key stands is told.
    """
    host, now = call.host, utc_now()
    database, stored = await find_named(host, storage.KeyRepository, "key", arguments.name)
    keys = storage.KeyRepository(database)
    if stored.revoked_at is not None:
        raise name_revoked("key", stored.name)
    await _record(call, "keys.rotate", stored)
    secret = storage.make_secret()
    notice, keep = await _make_notice(call, stored, now, is_new=False), timedelta(seconds=arguments.keep_s)
    commit = keys.rotate(stored.name, storage.hash_secret(secret), keep=keep, now=now, notice=notice)
    rotated = await store_change(call, "key", stored.name, commit)
    await _wake_notice(host, rotated)
    return IssuedKey(secret, _summary(rotated, now))


@operation(
    "keys.revoke",
    is_change=True,
    view=View(examples=["keys revoke website"], given=["name"], done="The key {name} is revoked."),
)
async def revoke_key(call: Call, arguments: OfKey) -> ListedKey:
    """Revoke a key for good, at once.

    NAME is from `keys list`. What its callers ask at this moment is cancelled. Their conversations stay stored.
    """
    now = utc_now()
    database, stored = await find_named(call.host, storage.KeyRepository, "key", arguments.name)
    if stored.revoked_at is None:
        await _record(call, "keys.revoke", stored)
    return _summary(await store_change(call, "key", stored.name, storage.KeyRepository(database).revoke(stored.name, now)), now)


async def check_account(host: OperationHost, account: str, place: str = "account") -> str:
    """Return the bare JID of a person; "" without one. Raise ConfigError at a place if it is none."""
    if not account:
        return ""
    try:
        person = bare_jid(parse_jid(refuse_caller(account)))
    except ValueError as error:
        raise ConfigError(place, str(error)) from error
    if person in await host.list_agents():
        raise ConfigError(place, f"{person} is an agent; give the JID of a person, or none")
    return person


async def _record(call: Call, action: str, stored: storage.StoredKey) -> None:
    """Write an entry to the trail of each agent of a key."""
    for agent in stored.agent_jids:
        await call.record(agent, action, f"key {stored.name}", person=stored.account)


async def _make_notice(call: Call, stored: storage.StoredKey, now: datetime, *, is_new: bool) -> storage.Task | None:
    """Make the notification by which the first agent of a key tells the person for whom it stands; None without one."""
    if not (person := stored.account):
        return None
    agents = stored.agent_jids
    repository = call.host.repository(agents[0])
    preferences = Preferences.from_stored(await repository.load_variables(PREFERENCES_SCOPE, person))
    with use_language(preferences.language):
        values = {"name": stored.name, "actor": call.actor.name, "agents": ", ".join(agents)}
        if is_new:
            text = translate("{actor} made the key {name}, which asks {agents} in your name.", **values)
        else:
            text = translate("{actor} gave the key {name}, which asks {agents} in your name, a new secret.", **values)
        text += "\n" + translate(
            "A program that has it can ask, and read the conversations that it has itself. It sees and changes nothing else of"
            " yours, and what it asks counts for your quotas."
        )
        text += "\n" + translate(
            "If you do not want it, ask an operator to end it by `spade-coreason keys revoke {name}`.", name=stored.name
        )
    # In the form of a question: those also come to people who want no notifications.
    content = json.dumps({"question": text, "choices": []}, ensure_ascii=False)
    return repository.notifications.make_notification(str(uuid4()), person, None, "", content, now)


async def _wake_notice(host: OperationHost, stored: storage.StoredKey) -> None:
    if stored.account:
        await (await host.open_agent(stored.agent_jids[0])).wake_notifications()


def _summary(stored: storage.StoredKey, now: datetime) -> ListedKey:
    state: KeyState = "live" if stored.is_live(now) else "expired" if stored.revoked_at is None else "revoked"
    previous_until = storage.from_micros_or_none(stored.previous_until)
    return ListedKey(
        stored.name,
        caller_address(stored.name),
        stored.agent_jids,
        stored.withdrawn_jids,
        stored.account,
        stored.users == storage.USERS_BY_HEADER,
        state,
        storage.from_micros(stored.created_at),
        stored.created_by,
        storage.from_micros(stored.issued_at),
        storage.from_micros_or_none(stored.expires_at),
        previous_until if state == "live" and previous_until is not None and previous_until > now else None,
        storage.from_micros_or_none(stored.revoked_at),
        storage.from_micros_or_none(stored.last_used_at),
    )
