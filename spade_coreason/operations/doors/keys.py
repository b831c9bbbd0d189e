"""The operations on keys, with which programs reach agents by a door.

The secret of a key is in the result that makes it, once. It is not stored, and is in no log and no audit trail.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias
from uuid import uuid4

from pydantic import Field

from ...contracts.base import utc_now
from ...domain.callers import WEBHOOK_PREFIX, caller_address, refuse_caller
from ...domain.jid import bare_jid, parse_jid
from ...domain.preferences import PREFERENCES_SCOPE, Preferences
from ...domain.texts.translation import translate, use_language
from ...exceptions import ConfigError
from ...storage import (
    USERS_BY_HEADER,
    KeyRepository,
    StoredKey,
    StoredNotification,
    from_micros,
    hash_secret,
    make_secret,
)
from ..definition import Arguments, Call, NoArguments, operation
from ..host import OperationHost
from .named_secrets import KEEP_S, MAX_KEEP_S, check_name, find_agent, name_revoked, name_taken, name_unknown

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
    agents: Annotated[list[str], Field(min_length=1, max_length=100)]
    account: str = ""
    lifetime_s: Annotated[int, Field(gt=0, le=MAX_LIFETIME_S)] | None = LIFETIME_S
    users_by_header: bool = False


class OfKey(Arguments):
    """A key, by its name."""

    name: str


class RotateKey(Arguments):
    """A key that gets a new secret. The secret of before is accepted for `keep_s` seconds, a day without it."""

    name: str
    keep_s: Annotated[int, Field(ge=0, le=MAX_KEEP_S)] = KEEP_S


@operation("keys.create", is_change=True)
async def create_key(call: Call, arguments: NewKey) -> IssuedKey:
    """Create a key for agents. Its secret is in the result, and nowhere else. A person for whom it stands is told."""
    name, host, now = arguments.name, call.host, utc_now()
    check_name("key", name)
    if name.startswith(WEBHOOK_PREFIX):
        raise ConfigError("name", f"names that begin with {WEBHOOK_PREFIX} are those of webhooks; choose another name")
    known = await host.list_agents()
    agents = list(dict.fromkeys(find_agent(known, agent, "agents") for agent in arguments.agents))
    account = await _check_account(host, arguments.account)
    if account and arguments.users_by_header:
        raise ConfigError("users_by_header", "a key for one person cannot ask for others too; leave out one of the two")
    keys = KeyRepository(host.repository(agents[0]).database)
    if await keys.find(name) is not None:
        raise name_taken("key", name)
    users = USERS_BY_HEADER if arguments.users_by_header else ""
    secret = make_secret()
    new = keys.make(name, agents, account, hash_secret(secret), users=users, created_by=call.actor.name, now=now)
    if arguments.lifetime_s is not None:
        new = new.until(now + timedelta(seconds=arguments.lifetime_s))
    await _record(call, "keys.create", new)
    commit = keys.create(new, await _make_notice(call, new, now, is_new=True))
    commit.on_stored(lambda is_stored: host.take_key(new) if is_stored else None)
    if not await commit:
        raise name_taken("key", name)
    await _wake_notice(host, new)
    return IssuedKey(secret, _summary(new, now))


@operation("keys.list")
async def list_keys(call: Call, arguments: NoArguments) -> list[ListedKey]:
    """List all keys by name, with those that are revoked or expired. No secret is shown."""
    if call.host.database is None:
        return []
    now = utc_now()
    return [_summary(stored, now) for stored in await KeyRepository(call.host.database).load_all()]


@operation("keys.rotate", is_change=True)
async def rotate_key(call: Call, arguments: RotateKey) -> IssuedKey:
    """Give a key a new secret and its whole lifetime again. The secret of before is accepted for a time.

    So a program can be given the new one without a gap. A person for whom the key stands is told.
    """
    host, now = call.host, utc_now()
    keys, stored = await _find(host, arguments.name)
    if stored.revoked_at is not None:
        raise name_revoked("key", stored.name)
    await _record(call, "keys.rotate", stored)
    secret = make_secret()
    commit = keys.rotate(
        stored.name,
        hash_secret(secret),
        keep=timedelta(seconds=arguments.keep_s),
        now=now,
        notice=await _make_notice(call, stored, now, is_new=False),
    )
    commit.on_stored(lambda rotated: None if rotated is None else host.take_key(rotated))
    if (rotated := await commit) is None:
        raise name_revoked("key", stored.name)
    await _wake_notice(host, rotated)
    return IssuedKey(secret, _summary(rotated, now))


@operation("keys.revoke", is_change=True)
async def revoke_key(call: Call, arguments: OfKey) -> ListedKey:
    """Revoke a key for good, at once. What it asks is cancelled or not answered, and no other key can have its name."""
    host, now = call.host, utc_now()
    keys, stored = await _find(host, arguments.name)
    if stored.revoked_at is None:
        await _record(call, "keys.revoke", stored)
    commit = keys.revoke(stored.name, now)
    commit.on_stored(lambda revoked: None if revoked is None else host.take_key(revoked))
    return _summary(await commit or stored, now)


async def _check_account(host: OperationHost, account: str) -> str:
    if not account:
        return ""
    try:
        person = bare_jid(parse_jid(refuse_caller(account)))
    except ValueError as error:
        raise ConfigError("account", str(error)) from error
    if person in await host.list_agents():
        raise ConfigError("account", f"{person} is an agent; give the JID of a person, or none")
    return person


async def _find(host: OperationHost, name: str) -> tuple[KeyRepository, StoredKey]:
    keys = None if host.database is None else KeyRepository(host.database)
    if keys is None or (stored := await keys.find(name)) is None:
        raise name_unknown("key", name)
    return keys, stored


async def _record(call: Call, action: str, stored: StoredKey) -> None:
    """Write an entry to the trail of each agent of a key."""
    for agent in stored.agent_jids:
        await call.record(agent, action, f"key {stored.name}", person=stored.account)


async def _make_notice(call: Call, stored: StoredKey, now: datetime, *, is_new: bool) -> StoredNotification | None:
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
    return repository.notifications.make(str(uuid4()), person, None, "", content, now)


async def _wake_notice(host: OperationHost, stored: StoredKey) -> None:
    if stored.account and (running := await host.running_agent(stored.agent_jids[0])) is not None:
        await running.wake_notifications()


def _summary(stored: StoredKey, now: datetime) -> ListedKey:
    state: KeyState = "live" if stored.is_live(now) else "expired" if stored.revoked_at is None else "revoked"
    previous_until = _moment(stored.previous_until)
    return ListedKey(
        stored.name,
        caller_address(stored.name),
        stored.agent_jids,
        stored.withdrawn_jids,
        stored.account,
        stored.users == USERS_BY_HEADER,
        state,
        from_micros(stored.created_at),
        stored.created_by,
        from_micros(stored.issued_at),
        _moment(stored.expires_at),
        previous_until if state == "live" and previous_until is not None and previous_until > now else None,
        _moment(stored.revoked_at),
        _moment(stored.last_used_at),
    )


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
