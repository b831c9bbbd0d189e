"""The operations on the logins of people to the page in the browser."""

from __future__ import annotations

from ... import storage
from ...contracts.times import utc_now
from ...domain.channel_kinds import PAGE_CHANNEL
from ...exceptions import ConfigError
from ..definition import PERSON, PLATFORM_TRAIL, Arguments, Call, operation
from .keys import check_account


class OfAccount(Arguments):
    """A person (a JID). Logins end for all people without one."""

    person: str = ""


@operation("logins.create", PERSON, is_change=True, needs_platform=True)
async def create_login(call: Call, arguments: OfAccount) -> str:
    """Create a link by which a person logs in to the page, once and within two minutes. The link is the result."""
    host = call.host.whole
    person, web = await check_account(host, arguments.person, "person"), (await host.status()).web
    if web is None or PAGE_CHANNEL not in web.doors or host.database is None:
        raise ConfigError("web", "the page in the browser is not on; add `web: {port: 8080}` to the configuration, and restart")
    if not person:
        raise ConfigError("person", "name the JID of the person")
    await call.record(PLATFORM_TRAIL, "logins.create", "a login", person=person)
    return f"{web.url}/login#{await storage.LoginRepository(host.database).create_link(person, utc_now())}"


@operation("logins.revoke", is_change=True)
async def revoke_logins(call: Call, arguments: OfAccount) -> int:
    """End the sessions and links of a person, or of all people. Return how many there were."""
    person, host = await check_account(call.host, arguments.person, "person"), call.host
    if host.database is None or not await (logins := storage.LoginRepository(host.database)).has_any(person or None):
        return 0
    await call.record(PLATFORM_TRAIL, "logins.revoke", "the logins", person=person)
    return await logins.end_all(person or None)
