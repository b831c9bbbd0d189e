"""What is deleted stands nowhere in the files of SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spade_coreason.stores import AgentStore, Database, Variable
from tests.databases import SQLITE
from tests.turns import AGENT, ALICE, conversation, turn
from tests.waiting import eventually

BOB = "bob@localhost"


@pytest.mark.parametrize("is_read", [False, True])
async def test_what_was_forgotten_is_not_in_the_log_either_even_if_somebody_reads_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    monkeypatch.setattr("spade_coreason.stores.sqlite._EMPTY_AGAIN_AFTER_S", 0.05)
    file, log = tmp_path / "platform.db", tmp_path / "platform.db-wal"
    database = await Database.open(f"{SQLITE}{file}", "normal")
    store = AgentStore(database, AGENT)
    for owner in (ALICE, BOB):
        await turn(store, conversation(store, f"{owner}_{AGENT}", owner), Variable("person", owner, "v", f'"{owner}"'))
    assert ALICE.encode() in log.read_bytes()
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        if is_read:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM conversations").fetchone()
        await store.forget(ALICE)
        if is_read:
            await turn(store, conversation(store, "meanwhile", BOB))
            await asyncio.sleep(1.0)  # it is tried
            assert ALICE.encode() in log.read_bytes()
            reader.execute("COMMIT")
        await eventually(lambda: log.stat().st_size == 0)
    assert ALICE.encode() not in file.read_bytes()
    assert [row.owner for row in await store.conversations()] == [BOB] * (2 if is_read else 1)
    await store.forget(BOB)
    await eventually(lambda: BOB.encode() not in log.read_bytes() + file.read_bytes())
    await store.forget(BOB)
    await database.close()
