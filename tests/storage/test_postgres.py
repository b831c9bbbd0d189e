"""PostgreSQL only: ownership of a database, writes while the server is away, and durability after its crash."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from spade_coreason import StoreError
from spade_coreason.contracts import ConversationState
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.domain.environment.installation import install_hint
from spade_coreason.exceptions import ContentRefusedError, DatabaseEmptyError, DatabaseUnreachableError
from spade_coreason.storage import WorkerTerms, open_database, review_server
from spade_coreason.storage.records import StoredConversation, TurnRecord
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.storage.schema import inbox
from tests.support.databases import SAME_STANZA, execute, read_rows
from tests.support.errors import ExpectedErrors
from tests.support.records import open_repository
from tests.support.servers.postgres import Postgres
from tests.support.wait import eventually

AGENT, ALICE = "echo@localhost", "alice@localhost"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def receive(repository: AgentRepository, number: int) -> bool:
    return await repository.inbox.receive(bytes([number]) * 16, ALICE, "{}", NOW, evidence=SAME_STANZA)[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_server_that_is_down_is_one_clear_line(host: str) -> None:
    with pytest.raises(StoreError) as caught:
        await open_database(f"postgresql+asyncpg://agents@{host}:1/agents")
    assert str(caught.value) == f"postgresql://{host}:1/agents: cannot connect: Connection refused"


async def test_a_second_platform_on_a_database_is_one_clear_line(postgres: Postgres) -> None:
    url = postgres.url()
    database = await open_database(url)
    with pytest.raises(StoreError, match="another platform uses this database; stop it, or name another database") as refused:
        await open_database(url)
    assert str(refused.value).endswith("in storage.url; workers share one: all need server.mode: external")
    reader = await open_database(url, is_read_only=True)
    assert await AgentRepository(reader, AGENT).list_conversations() == []
    await reader.close()
    elsewhere = await open_database(postgres.url())
    await elsewhere.close()
    await database.close()
    await (await open_database(url)).close()


async def test_tables_are_made_all_or_none(postgres: Postgres) -> None:
    url = postgres.url()
    execute(url, "CREATE TYPE alembic_version AS (taken integer)")  # the last that is made
    with pytest.raises(StoreError, match="alembic_version"):
        await open_database(url)
    assert execute(url, "SELECT 1 FROM pg_tables WHERE schemaname = current_schema()") == []
    execute(url, "DROP TYPE alembic_version")
    await (await open_database(url)).close()


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
async def test_a_write_that_is_refused_for_its_content_fails_alone_and_is_no_outage(postgres: Postgres, text: str) -> None:
    database = await open_database(postgres.url(), "off")
    repository = await open_repository(database, AGENT)
    refused = database.run(lambda connection: connection.execute(update(inbox).values(sender=text)))
    prepared = repository.inbox.receive(bytes([2]) * 16, ALICE, text, NOW)[1]
    assert await receive(repository, 1)
    for write in (refused, prepared):
        with pytest.raises(ContentRefusedError, match=r"postgresql://.*: "):
            await write
    with pytest.raises(ContentRefusedError):
        await repository.load([text], ALICE, 5)
    assert not database.writes.is_failing
    await database.close()


async def test_a_database_that_is_not_in_utf_8_is_refused_with_the_remedy(postgres: Postgres) -> None:
    """One emoji took the agent from everybody: the error was that of a write that can be repeated."""
    url = postgres.second_url(postgres.url(), "LATIN1")
    for start in (open_database, review_server):
        with pytest.raises(StoreError, match=r"has the encoding LATIN1, .*; make one with createdb --encoding UTF8"):
            await start(url)
    with pytest.raises(DatabaseEmptyError):  # what is stored can be read, so that it can be moved
        await open_database(url, is_read_only=True)


async def test_workers_that_start_at_once_create_the_tables_once(postgres: Postgres) -> None:
    url = postgres.url()
    workers = await asyncio.gather(*(open_database(url, "off", terms=WorkerTerms(str(name), 3600)) for name in range(4)))
    assert len({worker.worker_id for worker in workers}) == 4
    await asyncio.gather(*(worker.close() for worker in workers))


async def test_a_connection_that_the_server_is_just_ending_is_a_failure_of_the_database(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    import asyncpg

    expected_errors("cannot switch to state 12")

    def fail(connection: object) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")

    database = await open_database(postgres.url())
    with pytest.raises(StoreError, match="cannot switch to state 12"):
        await database.read(fail)
    with pytest.raises(StoreError, match="cannot switch to state 12"):
        await database.write(fail)
    await database.close()


async def test_while_the_server_is_away_everything_fails_and_afterwards_it_works_again(
    own_postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    expected_errors("retrying every 5 s")
    database = await open_database(own_postgres.url())
    repository = await open_repository(database, AGENT)
    assert await receive(repository, 1)
    assert await repository.load(["t"], ALICE, 5)
    await asyncio.to_thread(own_postgres.stop)
    outcomes = await asyncio.gather(
        receive(repository, 2),
        receive(repository, 3),
        repository.inbox.load_pending(),
        repository.load(["t"], ALICE, 5),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [StoreError] * 4
    assert all(str(outcome).startswith(f"{database.name}: ") for outcome in outcomes)
    assert database.writes.is_failing
    await asyncio.to_thread(own_postgres.start)
    assert await receive(repository, 2)
    assert not database.writes.is_failing
    assert not await receive(repository, 1)
    assert [pending.key[0] for pending in await repository.inbox.load_pending()] == [1, 2]
    assert await repository.load(["t"], ALICE, 5)
    await database.close()


async def test_a_database_that_lost_its_tables_is_a_failure_with_its_remedy(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    """It was an error of each single write, for ever, and `status` did not show it."""
    expected_errors("the database has lost its tables")
    url = postgres.url()
    database = await open_database(url)
    repository = await open_repository(database, AGENT)
    assert await receive(repository, 1)
    tables = [row["tablename"] for row in execute(url, "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")]
    execute(url, f"DROP TABLE {', '.join(tables)} CASCADE")
    outcomes = await asyncio.gather(receive(repository, 2), repository.list_conversations(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreError] * 2
    for outcome in (outcomes[0], database.writes.failure):
        assert str(outcome).endswith("the database has lost its tables; stop the platform and restore a backup")
    await database.close()


async def test_confirmed_writes_survive_a_crash_of_the_server(own_postgres: Postgres, expected_errors: ExpectedErrors) -> None:
    expected_errors("retrying every 5 s")
    database = await open_database(own_postgres.url())
    repository = await open_repository(database, AGENT)
    confirmed: set[int] = set()
    is_up = True

    async def write_until_down(number: int) -> None:
        with suppress(StoreError):
            while is_up:
                if await repository.inbox.receive(number.to_bytes(16, "big"), ALICE, "{}", NOW)[1]:
                    confirmed.add(number)
                number += 1

    chains = [asyncio.create_task(write_until_down(chain * 1_000_000)) for chain in range(8)]
    await eventually(lambda: len(confirmed) > 500)
    await asyncio.to_thread(own_postgres.kill)
    await eventually(lambda: bool(expected_errors.logged))
    is_up = False
    await asyncio.to_thread(own_postgres.start)
    await asyncio.gather(*chains)
    stored = {int.from_bytes(pending.key, "big") for pending in await repository.inbox.load_pending()}
    assert confirmed <= stored
    await database.close()


@asynccontextmanager
async def run_commit_cutting_proxy(server: Postgres) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Run a proxy of the server that, once armed, drops a connection between a commit and its confirmation."""
    armed: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter, back: asyncio.StreamWriter, up: bool) -> None:
        is_committed = False
        while data := await source.read(65536):
            if up and armed and b"COMMIT" in data:
                committing.add(back)
                armed.clear()
            elif not up and to in committing:
                is_committed = True
            if is_committed:
                break
            to.write(data)
        to.close()
        back.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server.port)
        for task in (pump(reader, to_server, writer, True), pump(from_server, writer, to_server, False)):
            tasks.add(asyncio.create_task(task))

    committing: set[asyncio.StreamWriter] = set()
    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield listener.sockets[0].getsockname()[1], armed
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_commit_whose_confirmation_is_lost_is_looked_up(postgres: Postgres) -> None:
    direct = postgres.url()
    async with run_commit_cutting_proxy(postgres) as (port, armed):
        database = await open_database(direct.replace(f":{postgres.port}/", f":{port}/"))
        repository = await open_repository(database, AGENT)
        assert await receive(repository, 1)
        row, is_new, _ = repository.inbox.receive(b"2" * 16, ALICE, "{}", NOW)
        assert await is_new
        status = ConversationStatus(ConversationState.ACTIVE, 1, NOW, NOW)
        conversation = StoredConversation(repository.database.row_ids.next(), "t", ALICE, "s", status, 100, turns=1)
        armed.append(b"now")
        await repository.inbox.finish(row, conversation, TurnRecord("i", NOW, "{}"), None)
        assert not armed
        assert len(read_rows(direct, "interactions")) == 1
        armed.append(b"now")
        assert await receive(repository, 3)
        assert not armed
        repository.inbox.close(row)
        _, is_new, _ = repository.inbox.receive(
            b"2" * 16, ALICE, "{}", NOW + timedelta(days=8)
        )  # it is looked whether it is new
        armed.append(b"now")
        assert await is_new
        assert not armed
        assert len(await repository.inbox.load_pending()) == 3
        await database.close()


async def test_a_server_that_is_not_there_is_one_line_without_the_password(tmp_path: Path) -> None:
    for url in (
        f"postgresql+asyncpg://me:s3cret@/name?host={tmp_path}",
        "postgresql+asyncpg://me:s3cret@127.0.0.1:1/name",
    ):
        with pytest.raises(DatabaseUnreachableError) as caught:
            await open_database(url)
        text = str(caught.value)
        assert text.startswith("postgresql://")
        assert "/name: " in text
        assert "\n" not in text
        assert "s3cret" not in text


async def test_a_wrong_password_is_one_line_without_it(postgres: Postgres) -> None:
    login, address = postgres.url().rsplit("@", 1)
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        await open_database(f"{login}wrong@{address}")
    assert "wrong" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_driver_one_line_says_how_to_get_it() -> None:
    program = (
        "import asyncio, sys; sys.modules['asyncpg'] = None\n"
        "from spade_coreason.storage import open_database\n"
        "try: asyncio.run(open_database('postgresql+asyncpg://h/d'))\n"
        "except Exception as error: print(f'{type(error).__name__}: {error}')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    remedy = install_hint("postgres")
    assert done.stdout.strip() == f"StoreError: PostgreSQL needs asyncpg, which is not installed: {remedy}"
