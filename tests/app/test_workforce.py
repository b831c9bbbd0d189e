"""The part of one worker among several: when it replaces others, and what happens if an agent cannot be given back cleanly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from spade_coreason.app.workers.workforce import Workforce, replace_predecessor
from spade_coreason.exceptions import StoreError
from spade_coreason.storage import (
    Database,
    LeaseHandlers,
    LeaseRenewal,
    Leases,
    LeaseState,
    RunningRequests,
    StoreTimings,
    WorkerTerms,
    load_crashed,
    open_database,
)
from tests.support.databases import execute
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, OTHER_AGENT, open_repository, receive_request
from tests.support.servers.postgres import Postgres
from tests.support.wait import TIMEOUT_S, eventually

EXPIRE_TWO = "UPDATE workers SET expires_at = 0 WHERE name = 'two'"


class ServedAgents:
    """The agents that a worker serves: their names alone (`Serving`). Those of `busy` answer until `turns_end` is set.

    New ones begin while `may_begin` is set.
    """

    def __init__(self, fault: Exception | None = None, cut_off: Sequence[int] = (), busy: Sequence[str] = ()) -> None:
        self._agents: list[str] = []
        self._busy = busy
        self.unable: list[str] = []
        self.turns_end = asyncio.Event()
        self.may_begin = asyncio.Event()
        self.may_begin.set()
        self._cut_off = cut_off
        self._fault = fault

    def list_agents(self) -> Sequence[str]:
        return list(self._agents)

    def list_unable(self) -> Sequence[str]:
        return self.unable

    def is_busy(self, agent: str) -> bool:
        return agent in self._busy

    async def note(self, state: LeaseState) -> None:
        pass

    async def take(self, agents: Sequence[str]) -> None:
        await self.may_begin.wait()
        self._agents += agents

    async def give_back(self, agent: str, *, reaches_server: bool = True) -> Sequence[int]:
        self._agents.remove(agent)
        if agent in self._busy:
            await self.turns_end.wait()
        if self._fault is not None:
            raise self._fault
        return self._cut_off


@asynccontextmanager
async def open_worker(url: str, name: str, lease_s: float) -> AsyncIterator[tuple[Database, WorkerTerms]]:
    terms = WorkerTerms(name, lease_s)
    database = await open_database(url, "off", timings=StoreTimings(retry_s=0.1), terms=terms)
    try:
        yield database, terms
    finally:
        await database.close()


def renew(
    database: Database,
    terms: WorkerTerms,
    on_renewed: Callable[[], object] = lambda: None,
    on_lost: Callable[[str], object] = lambda reason: None,
) -> LeaseRenewal:
    """Begin to renew the lease of a worker."""
    worker = Leases(database).worker
    handlers = LeaseHandlers(on_renewed, lambda: None, lambda: None, on_lost)
    renewal = LeaseRenewal(database, worker, terms, handlers, 60)
    renewal.start()
    return renewal


def list_workers(url: str) -> list[str]:
    return [row["name"] for row in execute(url, "SELECT name FROM workers ORDER BY name")]


async def test_after_an_outage_of_the_database_a_worker_gives_others_the_time_to_renew_their_leases(
    own_postgres: Postgres,
) -> None:
    url, lease_s, renewed = own_postgres.url(), 8, asyncio.Event()
    async with open_worker(url, "one", lease_s) as (database, terms), open_worker(url, "two", lease_s) as (other, other_terms):
        renewal = renew(database, terms, renewed.set)
        workforce = Workforce(Leases(database), renewal, [], ServedAgents())
        await asyncio.wait_for(renewed.wait(), TIMEOUT_S)
        execute(url, EXPIRE_TWO)
        await asyncio.to_thread(own_postgres.kill)
        renewed.clear()
        await eventually(lambda: renewal.seconds_left < lease_s / 2 - 0.1)
        await asyncio.to_thread(own_postgres.start)
        await asyncio.wait_for(renewed.wait(), TIMEOUT_S)
        await workforce.look()
        assert list_workers(url) == ["one", "two"]

        second = renew(other, other_terms)
        await eventually(lambda: execute(url, "SELECT id FROM workers WHERE expires_at = 0") == [])
        await eventually(lambda: renewal.has_settled)
        await workforce.look()
        assert list_workers(url) == ["one", "two"]

        await second.stop()
        execute(url, EXPIRE_TWO)
        await workforce.look()
        assert list_workers(url) == ["one"]
        await renewal.stop()


async def test_a_worker_is_replaced_when_its_lease_ends_and_not_only_at_the_next_renewal(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, "one", 3600) as (database, terms), open_worker(url, "two", 3600):
        renewal = renew(database, terms)
        await eventually(lambda: renewal.has_settled)
        workforce = Workforce(Leases(database), renewal, [(AGENT,)], ServedAgents())
        await workforce.join()
        execute(url, "UPDATE workers SET expires_at = expires_at - 3599000000 WHERE name = 'two'")
        workforce.wake()
        await eventually(lambda: list_workers(url) == ["one"])
        await workforce.leave()
        await workforce.end()


async def test_a_worker_that_leaves_serves_an_agent_until_another_worker_has_time_for_it(postgres: Postgres) -> None:
    url, serving, agents = postgres.url(), ServedAgents(), [f"agent{number}@localhost" for number in range(10)]
    async with open_worker(url, "one", 60) as (database, terms):
        workforce = Workforce(Leases(database), renew(database, terms), [(agent,) for agent in agents], serving)
        await workforce.join()
        async with open_worker(url, "two", 60) as (other, _):
            leaving = asyncio.create_task(workforce.leave())
            free = "SELECT agent FROM leases WHERE worker IS NULL"
            await eventually(lambda: len(execute(url, free)) == 8)
            for _ in range(20):
                await Leases(other).read()
            assert len(serving.list_agents()) == 2
            claimed, _ = await Leases(other).change(lambda state: agents[:], replaces=False)
            assert len(claimed) == 8
            await leaving
        assert serving.list_agents() == []
        await workforce.end()


async def test_a_worker_ends_if_its_agent_is_that_of_another_worker_after_a_failover_of_the_database(
    postgres: Postgres,
) -> None:
    url, lost = postgres.url(), list[str]()
    async with open_worker(url, "one", 3600) as (database, terms), open_worker(url, "two", 3600) as (other, _):
        workforce = Workforce(
            Leases(database), renew(database, terms, on_lost=lost.append), [(AGENT,), (OTHER_AGENT,)], ServedAgents()
        )
        await workforce.join()
        [agent] = [row["agent"] for row in execute(url, "SELECT agent FROM leases WHERE worker IS NOT NULL")]
        await workforce.look()
        assert lost == []
        execute(url, f"UPDATE leases SET worker = {other.worker_id}")  # a replica without the last transactions
        await workforce.look()
        assert [reason.partition(";")[0] for reason in lost] == [f"another worker serves {agent}"]
        await workforce.end()


async def test_a_command_that_is_killed_has_run_no_requests(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, "one", 3600) as (database, _), open_worker(url, "two", 3600) as (command, _):
        await receive_request(await open_repository(database))
        await Leases(command).claim_for_change(AGENT, replaces=False)
        execute(url, EXPIRE_TWO)
        taken, reaped = await Leases(database).change(lambda state: [AGENT])
        assert (taken, [worker.agents for worker in reaped]) == ([AGENT], [(AGENT,)])
        assert await load_crashed(database, [AGENT]) == []


async def test_the_lease_of_an_agent_that_cannot_be_given_back_cleanly_is_free(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    url, serving = postgres.url(), ServedAgents(StoreError("its memory cannot be stored"))
    async with open_worker(url, "one", 60) as (database, terms):
        workforce = Workforce(Leases(database), renew(database, terms), [(AGENT,)], serving)
        await workforce.join()
        assert serving.list_agents() == [AGENT]
        await workforce.leave()
        assert [row["worker"] for row in execute(url, "SELECT worker FROM leases")] == [None]
        await workforce.end()
    expected_errors("could not be given back cleanly")


async def test_what_a_stop_cuts_off_is_counted_when_the_lease_of_its_agent_ends(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, "one", 60) as (database, terms):
        row = await receive_request(await open_repository(database))
        serving = ServedAgents(cut_off=[row])
        workforce = Workforce(Leases(database), renew(database, terms), [(AGENT,)], serving)
        await workforce.join()
        await workforce.leave()
        assert [(each["id"], each["stops"]) for each in execute(url, "SELECT id, stops FROM crashed_requests")] == [(row, 1)]
        await workforce.end()


async def test_a_directory_replaces_its_own_worker_and_none_of_a_restored_database(postgres: Postgres, tmp_path: Path) -> None:
    lost, restored = postgres.url(), postgres.url()

    async def replace(database: Database) -> None:
        await replace_predecessor(Leases(database), tmp_path, RunningRequests(), 0, is_stop=False)

    async with open_worker(lost, "one", 3600) as (one, _):
        await replace(one)
        async with open_worker(lost, "again", 3600) as (again, _):
            await replace(again)
            assert list_workers(lost) == ["again"]
        # Row ids go on where the backup ended, so that another worker has the same one in the restored database.
        async with open_worker(restored, "other", 3600) as (other, _), open_worker(restored, "two", 3600) as (two, _):
            (tmp_path / "worker").write_text(
                (tmp_path / "worker").read_text().replace(str(again.worker_id), str(other.worker_id))
            )
            await replace(two)
            assert list_workers(restored) == ["other", "two"]


async def test_idle_agents_are_given_back_while_any_number_of_others_is_busy(postgres: Postgres) -> None:
    url, busy, idle = postgres.url(), [f"busy{number}@localhost" for number in range(20)], ["idle@localhost"]
    serving = ServedAgents(busy=busy)
    async with open_worker(url, "one", 60) as (database, terms):
        groups = [(agent,) for agent in (*busy, *idle)]
        workforce = Workforce(Leases(database), renew(database, terms), groups, serving)
        await workforce.join()
        leaving = asyncio.create_task(workforce.leave())
        free = "SELECT agent FROM leases WHERE worker IS NULL"
        await eventually(lambda: [row["agent"] for row in execute(url, free)] == idle)
        serving.turns_end.set()
        await leaving
        assert len(execute(url, free)) == len(groups)
        await workforce.end()


async def test_an_agent_that_is_being_given_back_keeps_its_lease_if_a_drain_gives_it_back_too(postgres: Postgres) -> None:
    url, agents = postgres.url(), [AGENT, OTHER_AGENT]
    serving = ServedAgents(busy=agents)
    async with open_worker(url, "one", 60) as (database, terms), open_worker(url, "two", 60) as (other, _):
        workforce = Workforce(Leases(database), renew(database, terms), [(agent,) for agent in agents], serving)
        await Leases(other).set(is_leaving=True)
        await workforce.join()
        assert sorted(serving.list_agents()) == sorted(agents)
        await Leases(other).set(is_leaving=False)
        await workforce.look()
        await eventually(lambda: len(serving.list_agents()) == 1)  # the other worker has room
        assert await workforce.hand_over(agents)
        await eventually(lambda: serving.list_agents() == [])
        for _ in range(20):
            await Leases(other).read()
        assert [row["worker"] for row in execute(url, "SELECT worker FROM leases")] == [database.worker_id] * 2
        serving.turns_end.set()
        await workforce.leave()
        await workforce.end()


async def test_a_worker_that_joins_after_an_outage_gives_the_others_time_to_renew_their_leases(postgres: Postgres) -> None:
    url, serving = postgres.url(), ServedAgents()
    async with open_worker(url, "one", 2) as (database, terms), open_worker(url, "two", 2) as (other, _):
        await Leases(other).add_agents([AGENT])
        await Leases(other).change(lambda state: [AGENT])
        execute(url, EXPIRE_TWO)
        workforce = Workforce(Leases(database), renew(database, terms), [(AGENT,)], serving)
        await workforce.join()
        assert (list_workers(url), serving.list_agents()) == (["one", "two"], [])
        await eventually(lambda: serving.list_agents() == [AGENT])
        assert list_workers(url) == ["one"]
        await workforce.leave()
        await workforce.end()


async def test_an_agent_that_a_stopping_worker_has_not_begun_to_serve_does_not_wait_for_the_others(postgres: Postgres) -> None:
    url, serving = postgres.url(), ServedAgents(busy=[AGENT])
    async with open_worker(url, "one", 60) as (database, terms), open_worker(url, "two", 60) as (other, _):
        workforce = Workforce(Leases(database), renew(database, terms), [(AGENT,), (OTHER_AGENT,)], serving)
        await Leases(other).add_agents([AGENT, OTHER_AGENT])
        await Leases(other).set(is_leaving=True)
        await Leases(other).change(lambda state: [OTHER_AGENT])
        await workforce.join()
        serving.may_begin.clear()
        await Leases(other).release(OTHER_AGENT, "a test")
        owners = "SELECT worker FROM leases ORDER BY worker"
        workforce.wake()
        await eventually(lambda: [row["worker"] for row in execute(url, owners)] == [database.worker_id] * 2)
        leaving = asyncio.create_task(workforce.leave())
        await eventually(lambda: [row["worker"] for row in execute(url, owners)] == [database.worker_id, None])
        serving.turns_end.set()
        await leaving
        await workforce.end()


async def test_a_worker_replaces_none_before_it_has_renewed_its_own_lease_after_an_outage(postgres: Postgres) -> None:
    import asyncpg

    url = postgres.url()
    async with open_worker(url, "one", 2) as (database, terms), open_worker(url, "two", 3600):
        renewal = renew(database, terms)
        workforce = Workforce(Leases(database), renewal, [], ServedAgents())
        await workforce.look()
        session = await asyncpg.connect(url.replace("+asyncpg", ""))
        execute(url, EXPIRE_TWO)
        await session.execute("UPDATE workers SET expires_at = 9e18 WHERE name = 'one'")
        await session.execute("BEGIN; SELECT 1 FROM workers WHERE name = 'one' FOR NO KEY UPDATE")  # no renewal is possible
        await eventually(lambda: renewal.seconds_left < 0)
        await workforce.look()
        assert list_workers(url) == ["one", "two"]
        session.terminate()
        await renewal.stop()


async def test_a_worker_gives_another_one_the_agents_that_it_can_serve_and_tells_which_it_cannot(postgres: Postgres) -> None:
    url, serving = postgres.url(), ServedAgents()
    async with open_worker(url, "one", 60) as (database, terms), open_worker(url, "two", 60) as (other, _):
        renewal = renew(database, terms)
        workforce = Workforce(Leases(database), renewal, [(AGENT,), (OTHER_AGENT,)], serving)
        await Leases(other).add_agents(["not.configured@here"])
        await Leases(other).set(is_leaving=True)
        await workforce.join()
        execute(url, f"""UPDATE workers SET is_leaving = false, snapshot = '{{"unable": ["{AGENT}"]}}' WHERE name = 'two'""")
        await workforce.look()
        await eventually(lambda: serving.list_agents() == [AGENT])
        serving.unable = [AGENT]
        await workforce.look()
        workforce.tell({})
        assert json.loads(renewal.snapshot) == {"unable": sorted([AGENT, "not.configured@here"]), "lease_s": 60}
        assert serving.list_agents() == [AGENT]
        execute(url, "UPDATE workers SET snapshot = NULL WHERE name = 'two'")
        await eventually(lambda: not workforce._leaving_agents)
        await workforce.look()
        await eventually(lambda: serving.list_agents() == [OTHER_AGENT])
        await workforce.leave()
        reasons = {row["agent"]: row["reason"] for row in execute(url, "SELECT agent, reason FROM leases")}
        assert reasons[AGENT] == "its worker cannot serve it"
        await workforce.end()


async def test_a_worker_warns_once_of_another_one_whose_lease_is_shorter(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.url()
    async with open_worker(url, "one", 60) as (database, terms), open_worker(url, "two", 50):
        renewal = renew(database, terms)
        workforce = Workforce(Leases(database), renewal, [], ServedAgents())
        await workforce.look()
        assert caplog.messages == []
        execute(url, """UPDATE workers SET snapshot = '{"lease_s": 50.0}' WHERE name = 'two'""")
        for _ in range(2):
            await workforce.look()
        [warning] = caplog.messages
        assert warning == "workers.lease_s is 60 here and 50 in worker two; write the same value for all workers"
        await renewal.stop()
