"""Keys in the database: a name is used once, a rotation leaves no gap, and what has ended never lives again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spade_coreason.domain.callers import caller_address, person_below
from spade_coreason.storage import KeyRepository, StoredKey, from_micros, hash_secret, make_secret
from spade_coreason.storage.backends.database import Database
from tests.support.databases import read_rows
from tests.support.records import AGENT, ALICE, BOB, NOW, OTHER_AGENT, open_repository

DAY = timedelta(days=1)


async def create(
    database: Database, name: str, *, account: str = "", agents: tuple[str, ...] = (AGENT,), lifetime: timedelta | None = None
) -> StoredKey:
    keys = KeyRepository(database)
    new = keys.make(name, list(agents), account, hash_secret(name), users="", created_by="user tester", now=NOW)
    if lifetime is not None:
        new = new.until(NOW + lifetime)
    assert await keys.create(new)
    return new


async def load(database: Database, name: str) -> StoredKey:
    found = await KeyRepository(database).find(name)
    assert found is not None
    return found


def test_a_secret_has_256_random_bits_behind_a_prefix() -> None:
    secrets = {make_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert {(secret[:3], len(secret), secret.isascii()) for secret in secrets} == {("sc_", 46, True)}
    assert len(hash_secret("a \ud800 half pair")) == 32


async def test_a_name_is_used_once_also_after_a_revocation(database: Database) -> None:
    keys, first = KeyRepository(database), await create(database, "website")
    again = keys.make("website", [OTHER_AGENT], "", hash_secret("other"), users="", created_by="user tester", now=NOW)
    assert not await keys.create(again)
    revoked = await keys.revoke("website", NOW + DAY)
    assert revoked == first._replace(revoked_at=revoked.revoked_at if revoked else None)
    assert not await keys.create(again)
    assert await keys.load() == [revoked]
    assert await keys.revoke("website", NOW + 2 * DAY) == revoked  # the first time counts
    assert await keys.revoke("nothing", NOW) is None


async def test_a_notification_is_stored_with_its_key_or_not_at_all(database: Database, database_url: str) -> None:
    repository, keys = await open_repository(database), KeyRepository(database)
    for expected in (True, False):
        secret_hash = hash_secret(str(expected))
        new = keys.make("editor", [AGENT], ALICE, secret_hash, users="", created_by="user tester", now=NOW)
        notice = repository.notifications.make_notification(f"notice {expected}", ALICE, None, "", '["told"]', NOW)
        assert await keys.create(new, notice) is expected
    assert [row["key"] for row in read_rows(database_url, "tasks")] == ["notice True"]
    notice = repository.notifications.make_notification("rotated", ALICE, None, "", '["told"]', NOW)
    assert await keys.rotate("editor", hash_secret("b"), keep=DAY, now=NOW, notice=notice)
    assert await keys.rotate("other", hash_secret("c"), keep=DAY, now=NOW, notice=notice) is None
    assert len(read_rows(database_url, "tasks")) == 2


async def test_a_rotation_keeps_the_secret_of_before_and_begins_the_lifetime_again(database: Database) -> None:
    await create(database, "website", lifetime=30 * DAY)
    now = NOW + 10 * DAY
    rotated = await KeyRepository(database).rotate("website", hash_secret("second"), keep=DAY, now=now)
    assert rotated is not None
    assert (rotated.secret_hash, rotated.previous_hash) == (hash_secret("second"), hash_secret("website"))
    assert from_micros(rotated.previous_until or 0) == now + DAY
    assert from_micros(rotated.expires_at or 0) == now + 30 * DAY
    assert rotated == await load(database, "website")
    third = await KeyRepository(database).rotate("website", hash_secret("third"), keep=timedelta(0), now=now)
    assert third is not None
    assert (third.previous_hash, third.previous_until) == (None, None)


@pytest.mark.parametrize(("age", "end"), [(29.5, 30), (31, None)])
async def test_the_secret_of_before_does_not_outlive_the_end_that_it_had(
    age: float, end: int | None, database: Database
) -> None:
    await create(database, "website", lifetime=30 * DAY)
    rotated = await KeyRepository(database).rotate("website", hash_secret("second"), keep=DAY, now=NOW + age * DAY)
    assert rotated is not None
    until = None if rotated.previous_until is None else from_micros(rotated.previous_until)
    assert until == (None if end is None else NOW + end * DAY)
    assert (rotated.previous_hash is None) == (end is None)


async def test_a_key_without_an_end_has_none_after_a_rotation(database: Database) -> None:
    await create(database, "website")
    rotated = await KeyRepository(database).rotate("website", hash_secret("second"), keep=DAY, now=NOW + 1000 * DAY)
    assert rotated is not None
    assert rotated.expires_at is None
    assert rotated.is_live(NOW + 9000 * DAY)


async def test_a_revoked_key_is_not_rotated(database: Database) -> None:
    await create(database, "website")
    await KeyRepository(database).rotate("website", hash_secret("second"), keep=DAY, now=NOW)
    revoked = await KeyRepository(database).revoke("website", NOW)
    assert revoked is not None
    assert (revoked.previous_hash, revoked.previous_until, revoked.is_live(NOW)) == (None, None, False)
    assert await KeyRepository(database).rotate("website", hash_secret("third"), keep=DAY, now=NOW) is None
    assert await load(database, "website") == revoked


async def test_a_rejection_withdraws_all_keys_that_stand_for_the_person_at_that_agent(database: Database) -> None:
    await create(database, "one", account=ALICE, agents=(AGENT, OTHER_AGENT))
    await create(database, "two", account=ALICE)
    await create(database, "elsewhere", account=ALICE, agents=(OTHER_AGENT,))
    others = [await create(database, "bobs", account=BOB), await create(database, "website")]
    repository = await open_repository(database)
    assert sorted(await repository.find_keys(ALICE)) == ["one", "two"]
    await repository.save_admission(ALICE, False)
    one, two, elsewhere = [await load(database, name) for name in ("one", "two", "elsewhere")]
    assert (one.agent_jids, one.withdrawn_jids, one.revoked_at) == ([OTHER_AGENT], [AGENT], None)
    assert (two.agent_jids, two.withdrawn_jids, two.revoked_at is None) == ([], [AGENT], False)
    assert elsewhere.agent_jids == [OTHER_AGENT]
    assert [await load(database, key.name) for key in others] == others
    for is_admitted in (True, False):
        await repository.save_admission(ALICE, is_admitted)
        assert [await load(database, name) for name in ("one", "two")] == [one, two]
        assert (await repository.load_agent()).admissions == {ALICE: is_admitted}


async def test_the_rejection_of_an_address_of_callers_withdraws_that_key(database: Database) -> None:
    await create(database, "website", agents=(AGENT, OTHER_AGENT))
    await create(database, "web", agents=(AGENT,))
    repository = await open_repository(database)
    for address in (caller_address("website"), person_below("website", "a user")):
        assert await repository.find_keys(address) == ["website"]
    await repository.save_admission(caller_address("website"), False)
    assert (await load(database, "website")).agent_jids == [OTHER_AGENT]
    assert (await load(database, "web")).agent_jids == [AGENT]


async def test_the_last_use_is_stored(database: Database) -> None:
    key = await create(database, "website")
    await KeyRepository(database).save_use(key.id, NOW + DAY)
    assert from_micros((await load(database, "website")).last_used_at or 0) == NOW + DAY


async def test_the_keys_of_a_person_are_found_by_name(database: Database) -> None:
    for name, account in (("b", ALICE), ("a", ALICE), ("c", BOB), ("d", "")):
        await create(database, name, account=account)
    assert [key.name for key in await KeyRepository(database).load_of(ALICE)] == ["a", "b"]
