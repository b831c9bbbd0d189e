"""The database: durability, writes that fail alone, and duplicates after a restart."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import pytest
from sqlalchemy import Connection, text

from spade_coreason import StoreError
from spade_coreason.contracts import ConversationState
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.exceptions import DataDirectoryInUseError
from spade_coreason.storage import open_database, schema
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.lock import lock_directory
from spade_coreason.storage.dedup import MAX_FURTHER_ROWS, KeyIndex
from spade_coreason.storage.records import StoredConversation, TurnRecord, Variable
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import SAME_STANZA, SQLITE, execute
from tests.support.errors import ExpectedErrors
from tests.support.records import open_repository
from tests.support.warm import WarmProcess

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def sqlite_url(directory: Path) -> str:
    return f"sqlite+aiosqlite:///{directory}/platform.db"


@pytest.fixture
async def repository(database: Database) -> AgentRepository:
    return await open_repository(database, "echo@localhost")


def make_conversation(
    repository: AgentRepository, name: str = "t", owner: str = "alice@localhost", turns: int = 0
) -> StoredConversation:
    status = ConversationStatus(ConversationState.ACTIVE, turns, NOW, NOW)
    return StoredConversation(repository.database.row_ids.next(), name, owner, f"session-{name}", status, 100, turns=turns)


async def store_one_turn(
    repository: AgentRepository, row: StoredConversation, number: int, *variables: Variable
) -> StoredConversation:
    request, is_new, _ = repository.inbox.receive(os.urandom(16), row.owner, "{}", NOW)
    assert await is_new
    row = StoredConversation(row.id, row.conversation_id, row.owner, row.session_id, row.status, 100, 1, number)
    await repository.inbox.finish(
        request, row, TurnRecord(f"i{number}", NOW, f'{{"n": {number}}}'), '["<message/>"]', variables
    )
    repository.inbox.close(request)
    return row


async def test_a_request_is_stored_once(repository: AgentRepository) -> None:
    first = repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)[1]
    within_the_batch = repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)[1]
    other = repository.inbox.receive(b"o" * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)[1]
    assert [await first, await within_the_batch, await other] == [True, False, True]
    assert not await repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)[1]


async def test_the_json_of_a_request_is_made_only_if_it_is_written(repository: AgentRepository) -> None:
    made_json: list[str] = []

    def json_of(name: str) -> Callable[[], str]:
        def make() -> str:
            made_json.append(name)
            return f'"{name}"'

        return make

    row, is_new, _ = repository.inbox.receive(b"a" * 16, "alice@localhost", json_of("answered"), NOW, evidence=SAME_STANZA)
    answered = repository.inbox.finish(row, make_conversation(repository), None, '["<message/>"]')
    waits = repository.inbox.receive(b"w" * 16, "alice@localhost", json_of("waits"), NOW, evidence=SAME_STANZA)[1]
    again = repository.inbox.receive(b"w" * 16, "alice@localhost", json_of("again"), NOW, evidence=SAME_STANZA)[1]
    assert [await is_new, await answered, await waits, await again] == [True, True, True, False]
    assert sorted(made_json) == ["again", "waits"]
    assert [(one.request, one.reply) for one in await repository.inbox.load_pending()] == [
        (None, '["<message/>"]'),
        ('"waits"', None),
    ]


async def test_a_request_without_json_fails_alone(repository: AgentRepository) -> None:
    def fail_to_encode() -> str:
        raise ValueError("no JSON")

    names = [b"a" * 16, b"b" * 16, b"c" * 16]
    outcomes = [
        repository.inbox.receive(name, "alice@localhost", fail_to_encode if name[0] == ord("b") else "{}", NOW)[1]
        for name in names
    ]
    assert await outcomes[0]
    assert await outcomes[2]
    with pytest.raises(ValueError, match="no JSON"):
        await outcomes[1]
    assert await repository.inbox.receive(b"d" * 16, "alice@localhost", "{}", NOW)[1]
    assert [one.key[:1] for one in await repository.inbox.load_pending()] == [b"a", b"c", b"d"]


async def test_the_same_key_of_another_agent_is_another_request(repository: AgentRepository, database: Database) -> None:
    assert await repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW)[1]
    assert await (await open_repository(database, "notes@localhost")).inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW)[1]


async def test_a_duplicate_after_seven_days_is_a_new_message(repository: AgentRepository) -> None:
    row, is_new, _ = repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)
    assert await is_new
    await repository.inbox.finish(row, make_conversation(repository), None, None)
    assert not await repository.inbox.receive(
        b"k" * 16, "alice@localhost", "{}", NOW + timedelta(days=6), evidence=SAME_STANZA
    )[1]
    assert await repository.inbox.receive(
        b"k" * 16, "alice@localhost", "{}", NOW + timedelta(days=7, seconds=1), evidence=SAME_STANZA
    )[1]


async def test_of_simultaneous_duplicates_after_seven_days_one_is_new(repository: AgentRepository) -> None:
    conversation = make_conversation(repository)
    for weeks in range(3):
        now = NOW + timedelta(days=8 * weeks)
        copies = [repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", now, evidence=SAME_STANZA) for _ in range(3)]
        assert [await is_new for _, is_new, _ in copies] == [True, False, False]
        await repository.inbox.finish(copies[0][0], conversation, None, None)
        assert not await repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", now, evidence=SAME_STANZA)[1]
    assert len(await repository.inbox.load_received_from("alice@localhost")) == 3


async def test_a_request_closed_while_it_is_stored_is_not_pending(
    repository: AgentRepository,
) -> None:
    for key, now in ((b"n" * 16, NOW), (b"n" * 16, NOW + timedelta(days=8))):
        row, is_new, _ = repository.inbox.receive(key, "alice@localhost", "{}", now)
        repository.inbox.close(row)
        assert await is_new
        assert not await repository.inbox.load_pending()


async def test_repeated_duplicates_take_no_memory(repository: AgentRepository, database: Database) -> None:
    for _ in range(5):
        copies = [
            repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)[1] for _ in range(100)
        ]
        assert sum([await is_new for is_new in copies]) <= 1
    assert len(database.inbox_index.keys.find_rows(b"k" * 16)) == 1


async def test_a_key_that_only_resembles_a_known_one_is_a_new_message(repository: AgentRepository, database: Database) -> None:
    for row in range(1, 4):
        database.inbox_index.keys.add(b"k" * 16, row)  # rows that are not there, or have another key
    assert await repository.inbox.receive(b"o" * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)[1]
    _, is_new, is_surely_new = repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)
    assert await is_new
    assert not is_surely_new
    assert not await repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)[1]


async def test_old_requests_are_purged_and_those_of_the_last_week_stay_known(
    repository: AgentRepository, database: Database
) -> None:
    keys, conversation = [number.to_bytes(16, "big") for number in range(3)], make_conversation(repository)
    for days, key in enumerate(keys):
        row, is_new, _ = repository.inbox.receive(
            key, "alice@localhost", "{}", NOW + timedelta(days=days), evidence=SAME_STANZA
        )
        assert await is_new
        await repository.inbox.finish(row, conversation, None, None)
    now = NOW + timedelta(days=8, hours=1)
    await repository.inbox.purge(now)
    assert [row.received_at for row in await repository.inbox.load_received_from("alice@localhost")] == [
        NOW + timedelta(days=2)
    ]
    assert [await repository.inbox.receive(key, "alice@localhost", "{}", now, evidence=SAME_STANZA)[1] for key in keys] == [
        True,
        True,
        False,
    ]


async def test_requests_that_are_not_closed_are_pending_in_order(repository: AgentRepository) -> None:
    rows = []
    for number in range(4):
        row, is_new, _ = repository.inbox.receive(bytes([number]) * 16, "alice@localhost", f'{{"n":{number}}}', NOW)
        assert await is_new
        rows.append(row)
    conversation = make_conversation(repository)
    await repository.inbox.finish(rows[1], conversation, None, '["<message/>"]')
    await repository.inbox.finish(rows[2], conversation, None, None)
    pending = await repository.inbox.load_pending()
    assert [(pending_request.inbox_row, pending_request.request, pending_request.reply) for pending_request in pending] == [
        (rows[0], '{"n":0}', None),
        (rows[1], None, '["<message/>"]'),
        (rows[3], '{"n":3}', None),
    ]


async def test_a_closed_answer_is_not_sent_again(database_url: str) -> None:
    database = await open_database(database_url, "off")
    repository = await open_repository(database, "echo@localhost")
    await store_one_turn(repository, make_conversation(repository), 1)
    await database.close()
    database = await open_database(database_url, "off")
    assert await (await open_repository(database, "echo@localhost")).inbox.load_pending() == []
    await database.close()


async def test_history_pages_back_from_the_newest(repository: AgentRepository) -> None:
    row = make_conversation(repository)
    for number in range(1, 11):
        row = await store_one_turn(repository, row, number)
    assert await repository.turns.load_history(row.id, 3) == ['{"n": 8}', '{"n": 9}', '{"n": 10}']
    assert await repository.turns.load_history(row.id, 3, 8) == ['{"n": 1}', '{"n": 2}']
    assert await repository.turns.load_history(row.id, 3, 10) == []


async def test_a_turn_is_stored_whole_or_not_at_all(repository: AgentRepository, database: Database) -> None:
    row = make_conversation(repository)
    request, is_new, _ = repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW)
    assert await is_new
    broken = Variable("conversation", "t", "n", None)  # type: ignore[arg-type]  # what the table refuses
    with pytest.raises(StoreError, match=r"(?i)not.null"):
        await repository.inbox.finish(request, row, TurnRecord("i", NOW, "{}"), None, [broken])
    assert await repository.find_conversations(["t"]) == {}
    assert await repository.turns.load_history(row.id, 10) == []
    assert len(await repository.inbox.load_pending()) == 1


async def test_a_failed_write_harms_no_other_of_its_batch(repository: AgentRepository, database: Database) -> None:
    def wrong(connection: Connection) -> None:
        connection.execute(text("INSERT INTO inbox (nowhere) VALUES (1)"))

    requests = [repository.inbox.receive(bytes([n]) * 16, "alice@localhost", "{}", NOW)[1] for n in range(20)]
    failing = asyncio.ensure_future(database.write(wrong))
    requests += [repository.inbox.receive(bytes([n]) * 16, "alice@localhost", "{}", NOW)[1] for n in range(20, 40)]
    assert all(await asyncio.gather(*requests))
    with pytest.raises(StoreError, match="nowhere"):
        await failing
    assert len(await repository.inbox.load_pending()) == 40


async def test_a_waiter_that_is_cancelled_breaks_nothing(repository: AgentRepository) -> None:
    first, second = (repository.inbox.receive(bytes([n]) * 16, "alice@localhost", "{}", NOW)[1] for n in range(2))
    waiting = asyncio.ensure_future(first)
    await asyncio.sleep(0)
    waiting.cancel()
    assert await second
    assert await first
    assert len(await repository.inbox.load_pending()) == 2


async def test_reading_sees_earlier_writes(repository: AgentRepository) -> None:
    row = make_conversation(repository)
    for number in range(1, 30):
        row = await store_one_turn(repository, row, number)
        assert await repository.turns.load_history(row.id, 1) == [f'{{"n": {number}}}']


async def test_variables_of_agents_and_scopes_are_separate(repository: AgentRepository, database: Database) -> None:
    row = make_conversation(repository)
    await store_one_turn(
        repository,
        row,
        1,
        Variable("conversation", "t", "city", '"Valencia"'),
        Variable("person", "alice@localhost", "city", '"Berlin"'),
    )
    assert await repository.load_variables("conversation", "t") == {"city": '"Valencia"'}
    assert await repository.load_variables("person", "alice@localhost") == {"city": '"Berlin"'}
    assert await (await open_repository(database, "notes@localhost")).load_variables("conversation", "t") == {}


async def test_erasing_a_person_leaves_everyone_else(repository: AgentRepository) -> None:
    for owner in ("alice@localhost", "bob@localhost"):
        row = make_conversation(repository, f"t-{owner}", owner)
        await store_one_turn(
            repository,
            row,
            1,
            Variable("conversation", f"t-{owner}", "n", "1"),
            Variable("person", owner, "n", "1"),
        )
        assert await repository.inbox.receive(owner.encode()[:3] + b"waiting.waits", owner, '{"secret": 1}', NOW)[1]
    report = await repository.erase_person("alice@localhost")
    assert (report.conversation_ids, report.interactions, report.variables, report.requests) == (
        ("t-alice@localhost",),
        1,
        2,
        1,
    )
    assert [row.owner for row in await repository.list_conversations()] == ["bob@localhost"]
    assert await repository.load_variables("person", "alice@localhost") == {}
    assert await repository.load_variables("person", "bob@localhost") == {"n": "1"}
    assert [pending_request.key[:3] for pending_request in await repository.inbox.load_pending()] == [b"bob"]


async def test_deleting_a_conversation_takes_its_turns_and_variables(repository: AgentRepository) -> None:
    row = await store_one_turn(repository, make_conversation(repository), 1, Variable("conversation", "t", "n", "1"))
    report = await repository.delete_conversation(row)
    assert (report.interactions, report.variables) == (1, 1)
    assert await repository.list_conversations() == []
    assert await repository.turns.load_history(row.id, 10) == []


async def test_active_conversations_are_found_by_time(repository: AgentRepository) -> None:
    for number in (1, 0, 2):
        status = ConversationStatus(ConversationState.ACTIVE, 1, NOW, NOW + timedelta(minutes=number))
        row = StoredConversation(repository.database.row_ids.next(), f"t{number}", "alice@localhost", "s", status, 100)
        await repository.save_conversation(row)
    assert list((await repository.load_agent()).active.items()) == [
        (f"t{number}", NOW + timedelta(minutes=number)) for number in range(3)
    ]


async def test_migrating_from_nothing_gives_the_schema_of_today(database_url: str) -> None:
    await (await open_database(database_url, "off")).close()
    schema_before = _schema(database_url)
    assert {"conversations", "interactions", "variables", "inbox"} <= schema_before.keys()
    for table in schema_before:
        if table.startswith("passage_words_"):
            continue  # they go with the table of the full text
        execute(database_url, f"DROP TABLE {table}{'' if database_url.startswith(SQLITE) else ' CASCADE'}")
    execute(database_url, "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    database = await open_database(database_url, "off")
    assert database.row_ids.next() == 1
    await database.close()
    assert _schema(database_url) == schema_before
    assert execute(database_url, "SELECT * FROM alembic_version") == [{"version_num": schema.REVISION}]
    oldest = schema.OLDEST_REVISIONS["sqlite" if database_url.startswith(SQLITE) else "postgresql"]
    assert execute(database_url, "SELECT * FROM compatibility") == [{"oldest_revision": oldest}]


@pytest.mark.parametrize("is_read_only", [False, True])
async def test_a_database_from_before_the_first_revision_is_told_what_lifts_it(database_url: str, is_read_only: bool) -> None:
    await (await open_database(database_url, "off")).close()
    execute(database_url, "UPDATE alembic_version SET version_num = '0030'")
    remedy = r"from before the first release \(0030\); migrate it with `spade-coreason storage migrate` of commit a36bbe40"
    with pytest.raises(StoreError, match=remedy):
        await open_database(database_url, is_read_only=is_read_only)
    assert execute(database_url, "SELECT * FROM alembic_version") == [{"version_num": "0030"}]


def _schema(url: str) -> dict[str, list[object]]:
    """The columns, keys and indexes of every table, as the database describes them."""
    found: dict[str, list[object]] = {}
    if not url.startswith(SQLITE):
        for row in execute(
            url,
            "SELECT table_name AS t, column_name AS c, data_type, is_nullable, column_default FROM information_schema.columns"
            " WHERE table_schema = current_schema() ORDER BY 1, 2",
        ):
            found.setdefault(row.pop("t"), []).append(row)
        for row in execute(
            url, "SELECT tablename AS t, indexdef AS c FROM pg_indexes WHERE schemaname = current_schema() ORDER BY indexname"
        ) + execute(
            url,
            "SELECT conrelid::regclass::text AS t, pg_get_constraintdef(oid) AS c FROM pg_constraint"
            " WHERE connamespace = current_schema()::regnamespace ORDER BY 1, 2",
        ):
            found[row["t"]].append(row["c"])
        return found
    with closing(sqlite3.connect(url.removeprefix(SQLITE))) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in sorted(tables):
            found[table] = [
                connection.execute(f"PRAGMA table_info({table})").fetchall(),
                connection.execute(f"PRAGMA foreign_key_list({table})").fetchall(),
                sorted(
                    (name, unique, origin, partial, tuple(connection.execute(f"PRAGMA index_info({name})").fetchall()))
                    for _, name, unique, origin, partial in connection.execute(f"PRAGMA index_list({table})").fetchall()
                ),
            ]
    return found


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        (
            ("CREATE TABLE alembic_version (version_num TEXT)", "INSERT INTO alembic_version VALUES ('9999')"),
            "newer version",
        ),
        (("CREATE TABLE songs (title TEXT)",), "another program"),
    ],
)
@pytest.mark.parametrize("is_read_only", [False, True])
async def test_a_database_that_is_not_ours_is_one_clear_line(
    database_url: str, prepare: tuple[str, ...], problem: str, is_read_only: bool
) -> None:
    for statement in prepare:
        execute(database_url, statement)
    with pytest.raises(StoreError, match=problem) as caught:
        await open_database(database_url, is_read_only=is_read_only)
    assert "\n" not in str(caught.value)


async def test_a_file_that_is_no_database_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "platform.db").write_text("this is a letter, and no database" * 100)
    with pytest.raises(StoreError, match="not a database") as caught:
        await open_database(sqlite_url(tmp_path))
    assert "\n" not in str(caught.value)
    assert (tmp_path / "platform.db").read_text().startswith("this is a letter")


WRITER = """
import asyncio, os, sys
from datetime import UTC, datetime
from spade_coreason.storage import AgentRepository, open_database

async def main(url, agent, durability):
    store = AgentRepository(await open_database(url, durability), agent)
    await store.inbox.open()
    async def one(n):
        await store.inbox.receive(n.to_bytes(16, "big"), "a@localhost", "{}", datetime.now(UTC))[1]
        os.write(1, f"{n}\\n".encode())
    for base in range(0, 1_000_000, 50):
        await asyncio.gather(*(one(base + n) for n in range(50)))

asyncio.run(main(*sys.argv[1:]))
"""


def _start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    return WarmProcess([sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_confirmed_writes_survive_kill_9(database_url: str) -> None:
    for attempt, durability in enumerate(("full", "normal", "full")):
        agent = f"echo{attempt}@localhost"
        child = _start(WRITER, database_url, agent, durability)
        assert child.stdout is not None
        confirmed = [int(child.stdout.readline()) for _ in range(120 + attempt * 130)]
        child.send_signal(signal.SIGKILL)
        confirmed += [int(line) for line in child.stdout.read().splitlines() if line]
        child.communicate()
        database = await open_database(database_url)
        stored = {
            int.from_bytes(pending_request.key, "big")
            for pending_request in await (await open_repository(database, agent)).inbox.load_pending()
        }
        await database.close()
        assert set(confirmed[:-1]) <= stored  # the last line may be cut in the middle of its number


def test_a_data_directory_that_cannot_be_written_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as caught, lock_directory(tmp_path / "file"):
        pass
    remedy = "correct its permissions, or name another directory (data_dir)"
    assert str(caught.value) == f"{tmp_path}/file: cannot be written: File exists; {remedy}"
    with pytest.raises(OSError, match="of the block"), lock_directory(tmp_path / "data"):
        raise OSError("of the block")


async def test_one_process_owns_a_data_directory(tmp_path: Path) -> None:
    hold = "import sys; from pathlib import Path; from spade_coreason.storage import lock_directory\n"
    hold += "with lock_directory(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    child = _start(hold, str(tmp_path))
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(DataDirectoryInUseError, match=f"in use by process {child.pid}"), lock_directory(tmp_path):
        pass
    child.kill()
    child.communicate()
    with lock_directory(tmp_path):
        pass


async def test_a_look_at_the_lock_keeps_no_process_from_taking_it(tmp_path: Path) -> None:
    look = "import sys; from pathlib import Path; from spade_coreason.config import is_platform_running\n"
    look += "print('looking', flush=True)\nwhile True: is_platform_running(Path(sys.argv[1]))"
    with lock_directory(tmp_path):
        pass
    child = _start(look, str(tmp_path))
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"looking\n"
        for _ in range(100):
            with lock_directory(tmp_path):
                pass
    finally:
        child.kill()
        child.communicate()


async def test_a_reader_waits_for_no_writer_and_changes_nothing(tmp_path: Path) -> None:
    database = await open_database(sqlite_url(tmp_path), "off")
    await store_one_turn(
        await open_repository(database, "echo@localhost"),
        make_conversation(await open_repository(database, "echo@localhost")),
        1,
    )
    with closing(sqlite3.connect(tmp_path / "platform.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(asyncio.to_thread(_wait_to_write, tmp_path / "platform.db"))
        reader = await open_database(sqlite_url(tmp_path), is_read_only=True)
        assert len(await AgentRepository(reader, "echo@localhost").list_conversations()) == 1
        assert not waiting.done()  # it waits as long as a reader would that waits for writers
        await reader.close()
        writer.execute("ROLLBACK")
        await waiting
    await database.close()


def _wait_to_write(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as another:  # the package waits as long
        another.execute("BEGIN IMMEDIATE")


async def test_a_database_opened_read_only_is_neither_created_nor_migrated(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "platform.db")) as other:
        other.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        other.execute("INSERT INTO alembic_version VALUES ('')")
        other.commit()
    with pytest.raises(StoreError, match=r"has an older schema \(none\); start the platform to migrate it"):
        await open_database(sqlite_url(tmp_path), is_read_only=True)


async def test_writes_of_one_batch_wait_for_a_lock_together(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    expected_errors("database is locked; stop the other program that uses it; retrying")
    database = await open_database(sqlite_url(tmp_path), "off")
    repository = await open_repository(database, "echo@localhost")
    await database.write(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout = 300") and None)
    loop = asyncio.get_running_loop()
    waits_s = []
    with closing(sqlite3.connect(tmp_path / "platform.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        for count in (1, 20):
            began = loop.time()
            requests = [repository.inbox.receive(bytes([n]) * 16, "alice@localhost", "{}", NOW)[1] for n in range(count)]
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
            waits_s.append(loop.time() - began)
            assert {str(outcome) for outcome in outcomes} == {
                f"{tmp_path}/platform.db: database is locked; stop the other program that uses it"
            }
        assert waits_s[1] < 10 * waits_s[0]  # one wait for the lock, not one each
    await database.close()


async def test_the_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    database = await open_database(f"sqlite+aiosqlite:///{directory}/platform.db", "off")
    await store_one_turn(
        await open_repository(database, "echo@localhost"),
        make_conversation(await open_repository(database, "echo@localhost")),
        1,
    )
    files = sorted(directory.iterdir())
    assert [stat.S_IMODE(path.stat().st_mode) for path in (directory, *files)] == [0o700, *[0o600] * len(files)]
    assert len(files) == 3  # with the write-ahead log
    await database.close()


def test_every_added_key_is_found_with_its_rows_and_hardly_any_other() -> None:
    index = KeyIndex()
    keys = [uuid5(NAMESPACE_URL, str(number)).bytes for number in range(60_000)]
    for row, key in enumerate(keys[:30_000], start=2**33):
        index.add(key, row)
    index.add_further(keys[0], 2**34)
    assert index.find_rows(keys[0]) == [2**34, 2**33]
    assert all(row in index.find_rows(key) for row, key in enumerate(keys[:30_000], start=2**33))
    assert sum(len(index.find_rows(key)) for key in keys) < 30_010


def test_keys_of_deleted_rows_are_dropped_in_time() -> None:
    index = KeyIndex()
    keys = [uuid5(NAMESPACE_URL, str(number)).bytes for number in range(30_000)]
    for row, key in enumerate(keys, start=1):
        index.add(key, row)
    index.add_further(keys[0], 1)
    index.drop_before(first_row=29_000)
    assert all(row in index.find_rows(key) for row, key in enumerate(keys[29_000:], start=29_001))
    assert not any(index.find_rows(key) for key in keys[:8_000])


def test_a_row_that_is_added_again_with_its_transaction_counts_once() -> None:
    index, key = KeyIndex(), b"key"
    for _ in range(MAX_FURTHER_ROWS):
        index.add_further(key, 1)
    assert index.find_rows(key) == [1]


async def test_reads_that_no_turn_waits_for_leave_a_connection_free(database: Database) -> None:
    def read_often(connection: Connection) -> None:
        for _ in range(20):
            connection.execute(text("SELECT 1"))

    reads = [asyncio.create_task(database.read(read_often, is_background=True)) for _ in range(50)]
    await asyncio.sleep(0)
    await database.read(lambda connection: connection.execute(text("SELECT 1")).all())
    assert sum(read.done() for read in reads) < 25
    await asyncio.gather(*reads)


async def test_a_cancelled_read_ends_and_gives_its_connection_back(database: Database) -> None:
    endless = text("WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers) SELECT count(*) FROM numbers")
    for _ in range(database.backend.reader_connections):
        begun = threading.Event()

        def read(connection: Connection, begun: threading.Event = begun) -> object:
            begun.set()
            return connection.execute(endless).scalar()

        reading = asyncio.create_task(database.read(read))
        await asyncio.to_thread(begun.wait, 30)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    async with asyncio.timeout(30):
        assert await database.read(lambda connection: connection.execute(text("SELECT 1")).scalar()) == 1
        await database.close()
