"""Webhooks in the database: names that are used once, rotations, and the bodies that are remembered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from spade_coreason.storage import DUPLICATE_DAYS, StoredWebhook, WebhookRepository
from spade_coreason.storage.backends.database import Database
from tests.support.records import AGENT

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECRETS = [f"secret {number} of a webhook" for number in range(4)]


async def create(webhooks: WebhookRepository, name: str = "repo") -> StoredWebhook:
    new = webhooks.make(name, AGENT, "github", "builds", SECRETS[0], created_by="user tester", now=NOW)
    assert await webhooks.add(new)
    return new


async def rotate(webhooks: WebhookRepository, number: int, keep: timedelta, now: datetime = NOW) -> StoredWebhook:
    rotated = await webhooks.rotate("repo", SECRETS[number], keep=keep, now=now)
    assert rotated is not None
    return rotated


async def test_a_name_is_used_once_also_after_a_revocation(database: Database) -> None:
    webhooks = WebhookRepository(database)
    new = await create(webhooks)
    assert await webhooks.find("repo") == new
    assert "secret" not in repr(new)
    assert await webhooks.remember(new, 1, b"a", NOW) == "new"
    revoked = await webhooks.revoke("repo", NOW + DAY)
    assert revoked is not None
    assert (revoked.secret, revoked.previous_secret, await webhooks.count_bodies()) == ("", None, {})
    assert await webhooks.revoke("repo", NOW + 2 * DAY) == revoked
    assert await webhooks.revoke("nothing", NOW) is None
    assert await webhooks.rotate("repo", SECRETS[1], keep=DAY, now=NOW) is None
    again = webhooks.make("repo", AGENT, "standard", None, SECRETS[1], created_by="user tester", now=NOW)
    assert not await webhooks.add(again)
    assert [webhook.name for webhook in await webhooks.load()] == ["repo"]


async def test_a_rotation_keeps_the_secret_of_before_for_its_time_and_none_before_that(database: Database) -> None:
    webhooks = WebhookRepository(database)
    await create(webhooks)
    second = await rotate(webhooks, 1, DAY)
    assert (second.secret, second.previous_secret, second.secret_number) == (SECRETS[1], SECRETS[0], 2)
    assert [second.accepts_previous(NOW + time) for time in (timedelta(), DAY - timedelta(seconds=1), DAY)] == [
        True,
        True,
        False,
    ]
    third = await rotate(webhooks, 2, DAY)
    assert third.previous_secret == SECRETS[1]
    last = await rotate(webhooks, 3, timedelta())
    assert (last.previous_secret, last.accepts_previous(NOW)) == (None, False)


async def test_a_body_is_known_from_its_first_time_on_and_forgotten_with_its_secret(database: Database) -> None:
    webhooks = WebhookRepository(database)
    first = await create(webhooks)
    week = timedelta(days=DUPLICATE_DAYS)
    assert [await webhooks.remember(first, 1, b"a", NOW + time) for time in (timedelta(), DAY, week)] == [
        "new",
        "repeated",
        "old",
    ]
    # The time of the first secret counts, also for the body with a signature of the next one.
    second = await rotate(webhooks, 1, 30 * DAY, NOW + week)
    assert await webhooks.remember(second, 2, b"a", NOW + week) == "old"
    assert await webhooks.remember(second, 1, b"b", NOW + week) == "new"
    assert await webhooks.remember(second, 2, b"b", NOW + week) == "repeated"
    # After the end of the first secret, what only that has signed is forgotten.
    assert await webhooks.remember(second, 1, b"c", NOW + week) == "new"
    after = NOW + week + 31 * DAY
    assert [await webhooks.remember(second, 2, body, after) for body in (b"a", b"b", b"c")] == ["old", "old", "new"]
    assert await webhooks.count_bodies() == {second.id: 3}


async def test_a_body_that_two_secrets_have_signed_has_the_time_of_the_first(database: Database) -> None:
    webhooks = WebhookRepository(database)
    first = await create(webhooks)
    assert await webhooks.remember(first, 1, b"a", NOW) == "new"
    second = await rotate(webhooks, 1, DAY, NOW + 5 * DAY)
    assert await webhooks.remember(second, 2, b"a", NOW + 5 * DAY) == "repeated"
    # The inbox may have forgotten the request, so it is not asked again.
    assert await webhooks.remember(second, 2, b"a", NOW + 8 * DAY) == "old"


async def test_the_number_of_bodies_is_limited_for_each_secret_and_webhook(database: Database) -> None:
    webhooks = WebhookRepository(database, max_bodies=2)
    first, other = await create(webhooks), await create(webhooks, "other")
    found = [await webhooks.remember(first, 1, body, NOW) for body in (b"a", b"b", b"c", b"a")]
    assert found == ["new", "new", "full", "repeated"]
    assert await webhooks.remember(other, 1, b"c", NOW) == "new"
    await webhooks.forget(first, 1, b"a")
    assert [await webhooks.remember(first, 1, body, NOW) for body in (b"c", b"a")] == ["new", "full"]
    second = await rotate(webhooks, 1, timedelta())
    assert await webhooks.remember(second, 2, b"a", NOW) == "new"
    assert await webhooks.count_bodies() == {first.id: 1, other.id: 1}
