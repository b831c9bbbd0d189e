"""Backups: of one moment while turns are stored, from and to both databases, and nothing is overwritten."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentInteractionMemory, StoreError
from spade_coreason.storage import open_database
from spade_coreason.storage.backup import back_up, restore
from spade_coreason.storage.records import StoredStep, Variable
from tests.support.archives import unpack
from tests.support.databases import SAME_STANZA, SQLITE, execute, read_all_tables, read_rows
from tests.support.records import AGENT, ALICE, BOB, NOW, new_conversation, open_repository, receive_request, store_turn
from tests.support.servers.postgres import Postgres
from tests.support.stored_questions import store_question, take_answer


def ignore_progress(done: int, total: int) -> None:
    """Ignore the progress."""


async def fill(url: str, memory_dir: Path, turns: int = 30) -> None:
    database = await open_database(url, "off")
    repository = await open_repository(database, AGENT)
    row = new_conversation(repository)
    for number in range(turns):
        row = await store_turn(repository, row, Variable("person", ALICE, "v", f'"{number} ☂"'), answer='["<message/>"]')
    request = await receive_request(repository, key=b"k" * 16)
    await repository.inbox.save_step(request, StoredStep("charge", 1, "0" * 64, '"☂"'))
    await store_question(repository, ALICE, BOB)
    await database.close()
    memory = AgentInteractionMemory(AGENT, memory_dir)
    memory.add_information("t", "a plane on Friday ☂")


def read_data(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables that `fill` has filled."""
    others = {table: read_rows(url, table) for table in ("steps", "parked_requests", "questions")}
    return {**read_all_tables(url), **others, "asked_people": execute(url, "SELECT * FROM asked_people")}


async def test_a_backup_is_restored_into_either_database(database_url: str, postgres: Postgres, tmp_path: Path) -> None:
    await fill(database_url, tmp_path / "memory")
    kept = read_data(database_url)
    seen: list[tuple[int, int]] = []
    database = await open_database(database_url, is_read_only=True)
    about = await back_up(database, tmp_path / "memory", tmp_path / "b.tar", "1", lambda *done: seen.append(done))
    await database.close()
    assert {table: count for table, count in about.rows.items() if count} == {
        table: len(found) for table, found in kept.items()
    }
    assert (seen[0], seen[-1]) == ((0, sum(about.rows.values())), (sum(about.rows.values()),) * 2)
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    for target in (f"{SQLITE}{tmp_path}/restored.db", postgres.url()):
        memory_dir = tmp_path / target.partition(":")[0] / "memory"
        database = await open_database(target, "off")
        assert await restore(database, memory_dir, tmp_path / "b.tar", ignore_progress) == about
        await database.close()
        assert read_data(target) == kept
        assert AgentInteractionMemory(AGENT, memory_dir).get_information("t") == ["a plane on Friday ☂"]
        # What was known is known, and row ids go on.
        database = await open_database(target, "off")
        repository = await open_repository(database, AGENT)
        assert not await repository.inbox.receive(b"k" * 16, ALICE, "{}", NOW, evidence=SAME_STANZA)[1]
        row = (await repository.find_conversations(["t"]))["t"]
        assert (await store_turn(repository, row)).turns == 31
        # A request that waited for an answer goes on with it.
        [question] = await repository.questions.load_asked(BOB)
        assert await take_answer(repository, question, BOB) == {"ask": '{"approved": true}'}
        await database.close()


async def test_a_backup_is_consistent_while_turns_are_stored(database_url: str, tmp_path: Path) -> None:
    database = await open_database(database_url, "off")
    repository = await open_repository(database, AGENT)
    is_over, has_stored = False, asyncio.Event()

    async def store_turns(name: str) -> None:
        row = new_conversation(repository, name)
        while not is_over:
            row = await store_turn(repository, row, Variable("conversation", name, "turns", str(row.turns + 1)))
            has_stored.set()

    tasks = [asyncio.create_task(store_turns(f"t{number}")) for number in range(4)]
    for number in range(5):
        has_stored.clear()
        await has_stored.wait()
        reader = await open_database(database_url, is_read_only=True)
        await back_up(reader, tmp_path / "memory", tmp_path / f"{number}.tar", "1", ignore_progress)
        await reader.close()
    is_over = True
    await asyncio.gather(*tasks)
    await database.close()
    sizes = []
    for number in range(5):
        unpack(tmp_path / f"{number}.tar", tmp_path, "platform.db")
        with closing(sqlite3.connect(tmp_path / "platform.db")) as copy:
            turns = dict(copy.execute("SELECT conversation_id, turns FROM conversations"))
            stored = dict(
                copy.execute(
                    "SELECT conversation_id, max(number) FROM interactions"
                    " JOIN conversations c ON c.id = conversation GROUP BY 1"
                )
            )
            variables = {name: int(value) for name, value in copy.execute("SELECT holder, value FROM variables")}
        assert turns == stored == variables
        sizes.append(sum(turns.values()))
    assert sizes == sorted(set(sizes))  # it was not the same moment


async def test_nothing_is_overwritten(database_url: str, tmp_path: Path) -> None:
    await fill(database_url, tmp_path / "memory", 1)
    database = await open_database(database_url, "off")
    await back_up(database, tmp_path / "memory", tmp_path / "b.tar", "1", ignore_progress)
    before = read_all_tables(database_url)
    with pytest.raises(StoreError, match=r"b\.tar: already exists; name another file, or delete it"):
        await back_up(database, tmp_path / "memory", tmp_path / "b.tar", "1", ignore_progress)
    with pytest.raises(StoreError, match="memory: is not empty; restore to a new data directory"):
        await restore(database, tmp_path / "memory", tmp_path / "b.tar", ignore_progress)
    with pytest.raises(StoreError, match=r"is not empty \(conversations\); restore to a new database"):
        await restore(database, tmp_path / "another", tmp_path / "b.tar", ignore_progress)
    await database.close()
    assert read_all_tables(database_url) == before
    assert not (tmp_path / "another").exists()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda directory: (directory / "b.tar").unlink(), r"b\.tar: no such file"),
        (lambda directory: (directory / "b.tar").write_text("a letter"), r"b\.tar: is not a backup of spade-coreason: "),
        (lambda directory: truncate(directory / "b.tar"), r"b\.tar: is not a backup of spade-coreason: "),
        (lambda directory: repack(directory, about=None), r"b\.tar: is not a backup of spade-coreason"),
        (lambda directory: repack(directory, about={"format": 2}), "was written by a newer version"),
        (lambda directory: repack(directory, newer=True), "was written by a newer version"),
        (lambda directory: repack(directory, {"rows": []}), "about.json is damaged"),
        (lambda directory: repack(directory, {"memories": 2}), r"its contents do not match its index \(memory\)"),
        (lambda directory: repack(directory, {}, database=b""), r"its contents do not match its index \(\w+\)"),
        (lambda directory: add_member(directory, "../evil"), "'../evil' is not part of a backup"),
        (lambda directory: add_member(directory, "memory/a/b"), "'memory/a/b' is not part of a backup"),
        (lambda directory: add_member(directory, "memory/b", tarfile.SYMTYPE), "'memory/b' is not part of a backup"),
        (lambda directory: add_member(directory, "memory/b", tarfile.LNKTYPE), "'memory/b' is not part of a backup"),
        (lambda directory: add_member(directory, "memory/b", tarfile.FIFOTYPE), "'memory/b' is not part of a backup"),
    ],
)
async def test_a_backup_that_cannot_be_read_is_one_line_and_changes_nothing(
    tmp_path: Path, damage: Callable[[Path], object], problem: str
) -> None:
    await fill(f"{SQLITE}{tmp_path}/platform.db", tmp_path / "memory", 3)
    database = await open_database(f"{SQLITE}{tmp_path}/platform.db", is_read_only=True)
    await back_up(database, tmp_path / "memory", tmp_path / "b.tar", "1", ignore_progress)
    await database.close()
    damage(tmp_path)
    url = f"{SQLITE}{tmp_path}/new/platform.db"
    database = await open_database(url, "off")
    with pytest.raises(StoreError, match=problem) as caught:
        await restore(database, tmp_path / "new" / "memory", tmp_path / "b.tar", ignore_progress)
    assert "\n" not in str(caught.value)
    await database.close()
    assert not any(read_all_tables(url).values())
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["platform.db"]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def add_member(directory: Path, name: str, kind: bytes = tarfile.REGTYPE) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "about.json"
    with tarfile.open(directory / "b.tar", "a") as archive:
        archive.addfile(member)


def repack(directory: Path, about: dict[str, object] | None = None, newer: bool = False, database: bytes | None = None) -> None:
    inside = directory / "inside"
    inside.mkdir()
    unpack(directory / "b.tar", inside)
    if database is not None:
        (inside / "platform.db").write_bytes(database)
    if newer:
        execute(f"{SQLITE}{inside}/platform.db", "UPDATE alembic_version SET version_num = '9999'")
    elif about is None:
        (inside / "about.json").unlink()
    else:
        known = json.loads((inside / "about.json").read_text())
        (inside / "about.json").write_text(json.dumps({**known, **about}))
    with tarfile.open(directory / "b.tar", "w") as archive:
        for path in inside.iterdir():
            archive.add(path, path.name)
