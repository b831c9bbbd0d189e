"""The keys of a running platform: what is accepted, for whom, until when."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.callers import caller_address, person_below
from spade_coreason.doors.keys import KeyRing
from spade_coreason.storage import USERS_BY_HEADER, KeyRepository, StoredKey, from_micros, hash_secret, open_database
from spade_coreason.storage.backends.database import Database
from tests.support.clock import Clock
from tests.support.databases import SQLITE
from tests.support.records import AGENT, ALICE, BOB, OTHER_AGENT

SECRET = "sc_first"
DAY = timedelta(days=1)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = await open_database(f"{SQLITE}{tmp_path / 'platform.db'}", "off")
    yield database
    await database.close()


class Ring:
    """The ring of a platform, and its keys in the database."""

    def __init__(self, database: Database) -> None:
        self.clock = Clock()
        self.keys = KeyRepository(database)
        self.ring = KeyRing(database, self.clock)
        self.lost: list[str] = []
        for agent in (AGENT, OTHER_AGENT):
            self.ring.on_lost[agent] = lambda agent=agent: self.lost.append(agent)  # type: ignore[misc]  # a lambda has no types

    async def create(
        self,
        name: str = "website",
        account: str = "",
        agents: tuple[str, ...] = (AGENT,),
        users: str = "",
        secret: str = SECRET,
    ) -> StoredKey:
        """Create a key for 30 days, as the operation does."""
        now = self.clock()
        new = self.keys.make(name, list(agents), account, hash_secret(secret), users=users, created_by="user tester", now=now)
        new = new.until(now + 30 * DAY)
        assert await self.keys.create(new)
        self.ring.take(new)
        return new

    async def rotate(self, secret: str, keep: timedelta = DAY) -> StoredKey:
        """Give the key a new secret, as the operation does."""
        rotated = await self.keys.rotate("website", hash_secret(secret), keep=keep, now=self.clock())
        assert rotated is not None
        self.ring.take(rotated)
        return rotated

    def accepts(self, secret: str) -> bool:
        return self.ring.find(secret) is not None


@pytest.fixture
def r(database: Database) -> Ring:
    return Ring(database)


async def test_a_caller_is_found_by_the_whole_secret_only(r: Ring) -> None:
    await r.create(agents=(AGENT, OTHER_AGENT), account=ALICE)
    caller = r.ring.find(SECRET)
    assert caller is not None
    assert (caller.name, caller.address, caller.account) == ("website", "website@callers.invalid", ALICE)
    assert (caller.agents, caller.names_users) == (frozenset({AGENT, OTHER_AGENT}), False)
    stored_hash = hashlib.sha256(SECRET.encode()).hexdigest()
    for wrong in ("", SECRET[:-1], f"{SECRET} ", SECRET.upper(), stored_hash, "sc_", "\ud800", "ä" * 100_000):
        assert r.ring.find(wrong) is None


async def test_a_forwarded_user_is_a_person_below_the_key_and_never_the_one_whom_the_text_names(r: Ring) -> None:
    await r.create(users=USERS_BY_HEADER)
    caller = r.ring.find(SECRET)
    assert caller is not None
    assert caller.names_users
    users = [caller.for_user(user) for user in (ALICE, f"{ALICE} ", "1", "website")]
    assert len({user.address for user in users}) == 4
    assert all(user.address.endswith(".website@callers.invalid") and ALICE not in user.address for user in users)
    policy = AccessPolicy(AGENT)
    policy.callers = r.ring.callers_of(AGENT)
    assert all(policy.is_allowed(user.address) for user in users)


async def test_a_key_is_for_its_agents_only(r: Ring) -> None:
    await r.create(account=ALICE)
    assert dict(r.ring.callers_of(AGENT)) == {caller_address("website"): ALICE}
    assert dict(r.ring.callers_of(OTHER_AGENT)) == {}
    assert r.ring.callers_of(AGENT).get("website") is None


async def test_a_key_ends_at_its_time_for_all_who_ask(r: Ring) -> None:
    await r.create()
    policy = AccessPolicy(AGENT)
    policy.callers = r.ring.callers_of(AGENT)
    r.clock.advance(days=29, hours=23)
    assert r.accepts(SECRET)
    assert policy.is_allowed(caller_address("website"))
    assert len(policy.callers) == 1
    r.clock.advance(hours=1)
    assert not r.accepts(SECRET)
    assert not policy.is_allowed(caller_address("website"))
    assert (len(policy.callers), dict(policy.callers)) == (0, {})
    await r.rotate("sc_second")
    assert r.accepts("sc_second")
    assert not r.accepts(SECRET)
    assert policy.is_allowed(caller_address("website"))


async def test_both_secrets_of_a_rotated_key_are_accepted_until_the_time_of_the_first_is_over(r: Ring) -> None:
    await r.create()
    await r.rotate("sc_second")
    assert r.ring.find(SECRET) == r.ring.find("sc_second") is not None
    r.clock.advance(hours=24)
    assert (r.accepts(SECRET), r.accepts("sc_second")) == (False, True)
    await r.rotate("sc_third", keep=timedelta(0))
    assert [r.accepts(secret) for secret in (SECRET, "sc_second", "sc_third")] == [False, False, True]


async def test_the_secret_before_the_last_two_is_accepted_no_more(r: Ring) -> None:
    await r.create()
    await r.rotate("sc_second")
    await r.rotate("sc_third")
    assert [r.accepts(secret) for secret in (SECRET, "sc_second", "sc_third")] == [False, True, True]
    assert r.lost == []


async def test_a_revoked_key_ends_at_once_and_its_agents_are_told(r: Ring) -> None:
    stored = await r.create(agents=(AGENT, OTHER_AGENT))
    await r.rotate("sc_second")
    revoked = await r.keys.revoke("website", r.clock())
    assert revoked is not None
    r.ring.take(revoked)
    assert not r.accepts(SECRET)
    assert not r.accepts("sc_second")
    assert dict(r.ring.callers_of(AGENT)) == {}
    assert sorted(r.lost) == sorted([AGENT, OTHER_AGENT])
    r.ring.take(stored)  # a row that was read before the revocation
    assert not r.accepts(SECRET)


@pytest.mark.parametrize("person", [ALICE, caller_address("website"), person_below("website", "user")])
async def test_a_rejection_withdraws_a_key_at_one_agent_for_good(person: str, r: Ring) -> None:
    stored = await r.create(account=ALICE, agents=(AGENT, OTHER_AGENT))
    await r.create("other", account=BOB, secret="sc_other")
    r.ring.withdraw(AGENT, person)
    assert r.lost == [AGENT]
    caller = r.ring.find(SECRET)
    assert caller is not None
    assert caller.agents == {OTHER_AGENT}
    assert dict(r.ring.callers_of(AGENT)) == {caller_address("other"): BOB}
    r.ring.take(stored)  # a row that was read before the rejection
    assert dict(r.ring.callers_of(AGENT)) == {caller_address("other"): BOB}
    r.ring.withdraw(OTHER_AGENT, person)
    assert not r.accepts(SECRET)
    r.ring.take(stored)
    assert not r.accepts(SECRET)
    assert r.accepts("sc_other")
    assert r.lost == [AGENT, OTHER_AGENT]


async def test_a_rejection_of_another_ends_no_key(r: Ring) -> None:
    await r.create(account=ALICE)
    await r.create("itself", secret="sc_itself")
    for person in (BOB, "", caller_address("web"), f"x{ALICE}"):
        r.ring.withdraw(AGENT, person)
    r.ring.withdraw(OTHER_AGENT, ALICE)
    assert (r.accepts(SECRET), r.accepts("sc_itself"), r.lost) == (True, True, [])


async def test_a_platform_that_starts_takes_the_stored_keys(r: Ring, database: Database) -> None:
    await r.create()
    await r.create("second", secret="sc_second")
    await r.create("third", secret="sc_third")
    await r.rotate("sc_new")
    await r.keys.revoke("second", r.clock())
    again = KeyRing(database, r.clock)
    await again.load()
    accepted = [again.find(secret) is not None for secret in (SECRET, "sc_new", "sc_second", "sc_third")]
    assert accepted == [True, True, False, True]
    assert set(again.callers_of(AGENT)) == {caller_address("website"), caller_address("third")}


async def test_the_last_use_is_stored_at_most_once_a_minute(r: Ring, database: Database) -> None:
    await r.create()

    async def read_last_use() -> timedelta | None:
        await database.write(lambda connection: None)  # what was handed over before is stored then
        stored = await r.keys.find("website")
        assert stored is not None
        return None if stored.last_used_at is None else from_micros(stored.last_used_at) - start

    start = r.clock()
    r.ring.find("sc_wrong")
    assert await read_last_use() is None
    for seconds, expected in ((0, 0), (59, 0), (1, 60), (30, 60)):
        r.clock.advance(seconds=seconds)
        assert r.accepts(SECRET)
        assert await read_last_use() == timedelta(seconds=expected)


async def test_a_database_that_is_closed_refuses_no_key(r: Ring, database: Database) -> None:
    await r.create()
    await database.close()
    assert r.accepts(SECRET)
