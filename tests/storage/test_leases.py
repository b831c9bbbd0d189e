"""Leases: a worker that was replaced stores nothing more, and each agent has one worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Connection, text

from spade_coreason.exceptions import LeaseLostError, StoreError
from spade_coreason.storage import (
    Database,
    LeaseHandlers,
    LeaseRenewal,
    NewQuestion,
    StoredStep,
    StoreTimings,
    WorkerTerms,
    open_database,
)
from spade_coreason.storage.workers import leases
from tests.support.databases import execute
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, ALICE, BOB, OTHER_AGENT, open_repository, receive_request
from tests.support.servers.postgres import Postgres
from tests.support.stored_questions import make_question, receive_parked, take_answer
from tests.support.wait import TIMEOUT_S, eventually

LEASE_S = 0.4


@asynccontextmanager
async def open_worker(url: str, lease_s: float = LEASE_S, name: str = "one") -> AsyncIterator[Database]:
    database = await open_database(url, "off", terms=WorkerTerms(name, lease_s))
    try:
        yield database
    finally:
        await database.close()


def worker_of(database: Database) -> int:
    assert database.worker_id is not None
    return database.worker_id


async def reap(database: Database) -> list[leases.Reaped]:
    """Wait until a worker can be reaped."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (reaped := await database.write(leases.reap)):  # noqa: ASYNC110 - PostgreSQL sends no event
            await asyncio.sleep(0.05)
    return reaped


async def claim(database: Database, *agents: str) -> list[str]:
    def work(connection: Connection) -> list[str]:
        leases.add_agents(connection, agents)
        return leases.claim(connection, worker_of(database), agents, "")

    return await database.write(work)


async def test_a_worker_that_was_reaped_stores_nothing_more_and_another_one_goes_on(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    url = postgres.url()
    async with open_worker(url) as lost, open_worker(url, 3600, "two") as other:
        repository = await open_repository(lost, AGENT)
        assert await claim(lost, AGENT) == [AGENT]
        await receive_request(repository)
        assert await claim(other, OTHER_AGENT) == [OTHER_AGENT]
        others = await open_repository(other, OTHER_AGENT)
        assert [(each.name, each.agents) for each in await reap(other)] == [("one", (AGENT,))]
        assert await claim(other, AGENT) == [AGENT]
        for _ in range(2):
            with pytest.raises(LeaseLostError, match="another worker"):
                await receive_request(repository)
            await receive_request(others)
        rows = execute(url, "SELECT agent FROM inbox ORDER BY id")
        assert [row["agent"] for row in rows] == [AGENT, OTHER_AGENT, OTHER_AGENT]
    expected_errors("another worker serves the agents of this one now")


async def test_an_agent_has_one_worker(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url) as one, open_worker(url) as two:
        found = await asyncio.gather(claim(one, AGENT, OTHER_AGENT), claim(two, AGENT, OTHER_AGENT))
        assert sorted(map(len, found)) == [0, 2]
        owner, other = (one, two) if found[0] else (two, one)
        await owner.write(lambda connection: leases.release(connection, worker_of(owner), AGENT, "room"))
        assert await claim(other, AGENT, OTHER_AGENT) == [AGENT]
        await owner.write(lambda connection: leases.release(connection, worker_of(owner), AGENT, "not its own"))
        state = await other.read(leases.read_leases)
        assert {agent: lease.worker for agent, lease in state.leases.items()} == {
            AGENT: worker_of(other),
            OTHER_AGENT: worker_of(owner),
        }


async def test_a_worker_joins_while_another_one_takes_row_ids(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, 3600):
        async with _session(url, "BEGIN; UPDATE sequences SET next_id = next_id + 1") as session:
            joining = asyncio.create_task(open_database(url, "off", terms=WorkerTerms("two", 3600)))
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE sequences%'"
            await eventually(lambda: execute(url, waiting) != [])
            await session.execute("COMMIT")
        await (await joining).close()


async def test_a_worker_stores_again_after_its_row_was_locked_for_too_long(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    url, timings = postgres.url(), StoreTimings(lock_timeout_s=0.3, retry_s=0.2)
    database = await open_database(url, "off", terms=WorkerTerms("one", 3600), timings=timings)
    async with _session(url, "BEGIN; SELECT 1 FROM workers FOR UPDATE") as session:
        with pytest.raises(StoreError, match="lock timeout"):
            await database.write(lambda connection: None)
        await session.execute("ROLLBACK")
    await database.write(lambda connection: None)
    await database.close()
    expected_errors("lock timeout")


async def test_a_worker_that_hangs_in_a_transaction_is_reaped_because_its_session_is_ended(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, 3600, "two") as other:
        worker = await other.write(lambda connection: leases.add_worker(connection, WorkerTerms("expired", -1)))
        name = f"SELECT set_config('application_name', {leases.name_session(worker)}, false); "
        async with _session(url, name + leases.make_fence(worker)) as session:
            hanging = asyncio.create_task(session.execute("SELECT pg_sleep(3600)"))
            active = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(3600)%' AND state = 'active'"
            await eventually(lambda: execute(url, active) != [])
            assert await other.write(leases.reap) == []
            assert [each.name for each in await reap(other)] == ["expired"]
            with pytest.raises(Exception, match="terminating connection"):
                await hanging


async def test_a_worker_that_hangs_while_it_changes_the_leases_does_not_keep_the_others_from_that(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, 3600, "two") as other:
        worker = await other.write(lambda connection: leases.add_worker(connection, WorkerTerms("expired", -1)))
        name = f"SELECT set_config('application_name', {leases.name_session(worker)}, false); "
        async with _session(url, f"{name}{leases.make_fence(worker)}; {leases._CHANGE_LOCK}") as session:
            hanging = asyncio.create_task(session.execute("SELECT pg_sleep(3600)"))
            active = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(3600)%' AND state = 'active'"
            await eventually(lambda: execute(url, active) != [])
            async with asyncio.timeout(TIMEOUT_S):
                while not (reaped := await other.write(leases.replace_lost_workers)):  # noqa: ASYNC110 - PostgreSQL sends no event
                    await asyncio.sleep(0.05)
            assert [each.name for each in reaped] == ["expired"]
            with pytest.raises(Exception, match="terminating connection"):
                await hanging


async def test_a_worker_of_another_platform_keeps_its_session_although_it_has_the_same_id(postgres: Postgres) -> None:
    url = postgres.url()
    elsewhere = postgres.second_url(url)
    async with open_worker(url, 3600) as other, open_worker(elsewhere, 3600), open_worker(elsewhere, 3600) as healthy:
        pid = await _read_pid(healthy)
        execute(url, f"INSERT INTO workers (id, name, started_at, expires_at) VALUES ({worker_of(healthy)}, 'expired', 0, 0)")
        async with _session(url, leases.make_fence(worker_of(healthy))):
            assert await other.write(leases.reap) == []
            assert await _read_pid(healthy) == pid


async def _read_pid(database: Database) -> int:
    return await database.write(lambda connection: int(connection.scalar(text("SELECT pg_backend_pid()"))))


async def test_the_session_of_a_worker_has_its_name_also_when_it_is_made_again(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, 3600) as database:
        named = f"FROM pg_stat_activity WHERE application_name = {leases.name_session(worker_of(database))}"
        [first] = execute(url, f"SELECT pid {named}")
        execute(url, f"SELECT pg_terminate_backend(pid) {named}")
        await eventually(lambda: execute(url, f"SELECT pid {named}") == [])
        with suppress(StoreError):
            await database.write(lambda connection: None)
        await database.write(lambda connection: None)
        [second] = execute(url, f"SELECT pid {named}")
        assert second != first


@asynccontextmanager
async def _session(url: str, sql: str) -> AsyncIterator[Any]:
    """Hold a session with the server that has run these statements."""
    import asyncpg

    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        await connection.execute(sql)
        yield connection
    finally:
        connection.terminate()


async def test_row_ids_of_a_new_owner_follow_those_of_the_last(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, 3600) as one, open_worker(url, 3600) as two:
        rows = [await receive_request(await open_repository(database, AGENT)) for database in (one, two)]
        one.inbox_index.close_agent(AGENT)
        rows.append(await receive_request(await open_repository(one, AGENT)))
        assert rows == sorted(rows)


async def test_the_steps_of_a_request_that_another_worker_has_parked_meanwhile_wait_for_its_answer(postgres: Postgres) -> None:
    """The first owner knew that the request has steps, and deleted them once its reply had been sent."""
    url = postgres.url()
    async with open_worker(url, 3600) as one, open_worker(url, 3600) as two:
        repository = await open_repository(one, AGENT)
        parked = await receive_parked(repository, ALICE)
        assert await repository.inbox.save_step(parked.id, StoredStep("look", 1, "hash", "1"))
        one.inbox_index.close_agent(AGENT)
        other = await open_repository(two, AGENT)
        question = make_question(other, parked.id, ALICE)
        asked = StoredStep("ask", 1, "hash", None)
        assert await other.questions.parked.add(parked, [NewQuestion(question, (BOB,))], [], [asked], '["I have asked"]')
        two.inbox_index.close_agent(AGENT)
        repository = await open_repository(one, AGENT)
        repository.inbox.close(parked.id)
        await repository.inbox.flush()
        assert await take_answer(repository, question, BOB) == {"look": "1", "ask": '{"approved": true}'}


async def test_a_command_that_needs_the_whole_database_waits_for_no_worker(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url):
        with pytest.raises(StoreError, match=r"another platform uses this database .*; stop all its workers"):
            await open_database(url, "off")


class Renewed:
    """A lease that is renewed, and what the renewal calls."""

    def __init__(self, database: Database, terms: WorkerTerms, blocked_s: float = 60) -> None:
        self.calls: list[str] = []
        self.lost = asyncio.Event()
        loop = asyncio.get_running_loop()

        def record(name: str) -> Callable[[], object]:
            return lambda: self.calls.append(name)

        def on_lost(reason: str) -> None:
            self.calls.append(reason)
            loop.call_soon_threadsafe(self.lost.set)

        handlers = LeaseHandlers(record("renewed"), record("lapsed"), record("restored"), on_lost)
        self.renewal = LeaseRenewal(database, worker_of(database), terms, handlers, blocked_s)


async def test_a_lease_is_renewed_while_a_transaction_is_open_and_lost_when_the_row_is_gone(postgres: Postgres) -> None:
    url, terms = postgres.url(), WorkerTerms("one", LEASE_S)
    async with open_worker(url) as database, open_worker(url, 3600, "two") as other:
        renewed = Renewed(database, terms)
        renewed.renewal.start()
        async with _session(url, leases.make_fence(worker_of(database))):
            until = time.monotonic() + 3 * LEASE_S
            while time.monotonic() < until:
                assert await other.write(leases.reap) == []
                await asyncio.sleep(LEASE_S / 5)
        assert set(renewed.calls) == {"renewed"}
        assert renewed.renewal.seconds_left > 0
        await other.write(lambda connection: connection.execute(text("DELETE FROM workers WHERE name = 'one'")) and None)
        await asyncio.wait_for(renewed.lost.wait(), TIMEOUT_S)
        assert "another worker has taken over" in renewed.calls[-1]
        await renewed.renewal.stop()


async def test_what_is_due_is_stored_at_once_and_told_to_the_other_workers(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, 3600) as database, open_worker(url, 3600, "two") as other:
        here, there = (Renewed(each, WorkerTerms(name, 3600)) for each, name in ((database, "one"), (other, "two")))
        for each in (here, there):
            each.renewal.start()
        await eventually(lambda: here.calls == there.calls == ["renewed"])
        now = time.monotonic()
        here.renewal.note_reach(leases.Reach(True, now, now), False)
        here.renewal.note_reach(leases.Reach(False, now, now), True)
        await eventually(lambda: there.calls == ["renewed", "renewed"])
        reach = (await other.write(leases.read_leases)).get_reach(worker_of(database))
        assert reach is not None
        assert not reach.is_reached
        for each in (here, there):
            await each.renewal.stop()


async def test_what_is_due_is_told_to_the_other_workers_although_the_connection_was_lost(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, 3600) as database, open_worker(url, 3600, "two") as other:
        here, there = Renewed(database, WorkerTerms("one", 4)), Renewed(other, WorkerTerms("two", 3600))
        there.renewal.start()
        await eventually(lambda: there.calls == ["renewed"])
        here.renewal.start()
        await eventually(lambda: here.calls == ["renewed"])
        async with _session(url, "BEGIN; SELECT 1 FROM workers WHERE name = 'one' FOR UPDATE"):  # the renewal has to wait
            now = time.monotonic()
            here.renewal.note_reach(leases.Reach(False, now, now), True)
            renewing = "FROM pg_stat_activity WHERE application_name = 'spade-coreason lease' AND wait_event_type = 'Lock'"
            await eventually(lambda: execute(url, f"SELECT 1 {renewing}") != [])
            execute(url, f"SELECT pg_terminate_backend(pid) {renewing}")
        await eventually(lambda: there.calls == ["renewed", "renewed"])
        for each in (here, there):
            await each.renewal.stop()


async def test_a_blocked_event_loop_loses_the_lease(postgres: Postgres) -> None:
    async with open_worker(postgres.url(), 60) as database:
        renewed = Renewed(database, WorkerTerms("one", 1), blocked_s=0.5)
        renewed.renewal.start()
        deadline = time.monotonic() + TIMEOUT_S
        while not any("blocked" in call for call in renewed.calls):
            assert time.monotonic() < deadline
            time.sleep(0.1)  # noqa: ASYNC251 - it blocks the event loop
        await renewed.renewal.stop()
