"""Interaction memories that move between files and a table of PostgreSQL: once, whole, and also if the process is killed."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from spade_coreason import AgentInteractionMemory, MemoryLimits
from spade_coreason.exceptions import MemoryFileError, StoreError
from spade_coreason.memory import (
    import_all_memory_files,
    import_memory_files,
    move_files_to_rows,
    move_rows_to_files,
    require_imported,
)
from spade_coreason.storage import Database, back_up, open_database, restore
from tests.support.databases import SQLITE, execute
from tests.support.errors import ExpectedErrors
from tests.support.memories import AGENT, memory_over
from tests.support.servers.postgres import Postgres
from tests.support.wait import TIMEOUT_S

SPADE_LLM = Path(__file__).parent / "spade_llm"
SPADE_LLM_FILE = "support_agent_example.com_interactions.json"


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = await open_database(url, "off")
    yield database
    await database.close()


def write_files(directory: Path, agent: str = AGENT) -> None:
    """Write a memory file and a journal. A fact stands there twice, and one is only in the journal."""
    memory = AgentInteractionMemory(agent, directory)
    for text in ("twice", "☂ \x00"):
        memory.add_information("c", text)
    memory.flush()
    memory.add_information("d", "in the journal")
    memory.add_information("c", "twice")


MOVED = {"c": ["twice", "☂ \x00", "twice"], "d": ["in the journal"]}


def names(directory: Path) -> list[str]:
    return sorted(path.name.removeprefix(AGENT) for path in directory.iterdir() if not path.name.endswith(".lock"))


async def read_all(memory: AgentInteractionMemory) -> dict[str, list[str]]:
    return {name: [text for text, _ in entries] for name, entries in (await memory.aget_entries()).items()}


async def test_files_are_imported_once_and_deleted(database: Database, tmp_path: Path) -> None:
    write_files(tmp_path)
    before = AgentInteractionMemory(AGENT, tmp_path).get_entries()
    memory = memory_over(database)
    with pytest.raises(StoreError, match="is not in the database yet; the next start of the platform moves it there"):
        require_imported(tmp_path, AGENT)
    assert await import_memory_files(memory, tmp_path) == 4
    require_imported(tmp_path, AGENT)
    assert await memory.aget_entries() == before
    assert await read_all(memory) == MOVED
    assert names(tmp_path) == []
    await memory.aclear_conversation("c")
    assert await import_memory_files(memory, tmp_path) == 0
    assert await read_all(memory) == {"d": ["in the journal"]}
    # A platform with files ran in between: its additions come too.
    AgentInteractionMemory(AGENT, tmp_path).add_information("d", "later")
    assert await import_memory_files(memory, tmp_path) == 1
    assert await read_all(memory) == {"d": ["in the journal", "later"]}
    assert names(tmp_path) == []


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from spade_coreason.memory import import_memory_files
from spade_coreason.storage import open_database
from tests.support.memories import AGENT, memory_over
url, directory, moment = sys.argv[1:]

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    database = await open_database(url, "off")
    if moment == "before the transaction ends":
        run = database.backend._run_batch
        async def run_batch(*arguments):
            await run(*arguments)
            kill()
        database.backend._run_batch = run_batch
    elif moment == "before the files are deleted":
        Path.unlink = kill
    else:
        unlink, count = Path.unlink, []
        def unlink_once(*arguments, **options):
            kill() if count else unlink(*arguments, **options)
            count.append(1)
        Path.unlink = unlink_once
    await import_memory_files(memory_over(database), Path(directory))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "moment", ["before the transaction ends", "before the files are deleted", "before the second file is deleted"]
)
async def test_a_kill_during_an_import_loses_and_doubles_nothing(url: str, tmp_path: Path, moment: str) -> None:
    write_files(tmp_path)
    await (await open_database(url, "off")).close()
    command = [sys.executable, "-c", KILLED, url, str(tmp_path), moment]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == -signal.SIGKILL, done.stderr
    stored = len(execute(url, "SELECT id FROM interaction_memory"))
    assert stored == (0 if moment == "before the transaction ends" else 4)
    assert names(tmp_path) != []
    database = await open_database(url, "off")
    memory = memory_over(database)
    assert await import_memory_files(memory, tmp_path) == 4 - stored
    assert await read_all(memory) == MOVED
    assert names(tmp_path) == []
    await database.close()


async def test_a_file_of_spade_llm_is_taken_over_once_and_only_without_one_of_ours(database: Database, tmp_path: Path) -> None:
    shutil.copy(SPADE_LLM / SPADE_LLM_FILE, tmp_path)
    memory = memory_over(database)
    assert await import_memory_files(memory, tmp_path) == 3
    assert names(tmp_path) == [f"{SPADE_LLM_FILE}.imported"]
    assert (tmp_path / f"{SPADE_LLM_FILE}.imported").read_bytes() == (SPADE_LLM / SPADE_LLM_FILE).read_bytes()
    await memory.aclear_conversations(await memory.aget_all_conversations())
    assert await import_memory_files(memory, tmp_path) == 0
    write_files(tmp_path)
    shutil.copy(SPADE_LLM / SPADE_LLM_FILE, tmp_path)
    for _ in range(2):
        await import_memory_files(memory, tmp_path)
    assert await read_all(memory) == MOVED
    assert names(tmp_path) == [f"{SPADE_LLM_FILE}.imported", f"{SPADE_LLM_FILE}.imported.1"]


async def test_a_damaged_file_is_named_and_kept_and_the_others_move(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("is not complete JSON")
    write_files(tmp_path)
    write_files(tmp_path, "other@localhost")
    path = tmp_path / f"{AGENT}.json"
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    await import_all_memory_files(tmp_path, lambda agent: memory_over(database, agent))
    assert f"{path}: is not complete JSON" in caplog.text
    assert path.read_bytes() == data[:-20]
    with pytest.raises(MemoryFileError):
        require_imported(tmp_path, AGENT)
    assert await read_all(memory_over(database, "other@localhost")) == MOVED
    assert await read_all(memory_over(database)) == {}
    path.write_bytes(data)
    await import_all_memory_files(tmp_path, lambda agent: memory_over(database, agent), without=["other@localhost"])
    assert await read_all(memory_over(database)) == MOVED


async def test_an_export_is_the_seeds_json_and_an_import_of_it_adds_nothing(database: Database, tmp_path: Path) -> None:
    entry = {"content": "x", "timestamp": "2025-01-09T10:30:00.000Z", "by": "hand", "half": "\ud83d"}
    document = {"agent_id": AGENT, "interactions": {"conversation \ud83d\x00": [entry, entry]}}
    (tmp_path / f"{AGENT}.json").write_text(json.dumps(document))
    memory = memory_over(database, limits=MemoryLimits())
    assert await import_memory_files(memory, tmp_path) == 2
    assert await memory.aexport_file(tmp_path / "exported.json") == 2
    assert json.loads((tmp_path / "exported.json").read_text()) == document
    assert (tmp_path / "exported.json").stat().st_mode & 0o777 == 0o600
    assert await memory.aimport_file(tmp_path / "exported.json") == 0
    with pytest.raises(StoreError, match="already exists"):
        await memory.aexport_file(tmp_path / "exported.json")
    with pytest.raises(StoreError, match="has no file"):
        memory.path  # noqa: B018 - it raises
    # spade_llm and the memory over files read it as their own.
    (tmp_path / "exported.json").rename(tmp_path / f"{AGENT}.json")
    assert AgentInteractionMemory(AGENT, tmp_path).get_entries() == await memory.aget_entries()


async def test_a_backup_carries_memories_over_from_files_to_the_table_and_back(
    database: Database, postgres: Postgres, tmp_path: Path
) -> None:
    def ignore(done: int, total: int) -> None:
        pass

    write_files(tmp_path / "memory")
    sqlite = await open_database(f"{SQLITE}{tmp_path}/platform.db", "off")
    await back_up(sqlite, tmp_path / "memory", tmp_path / "1.tar", "1", ignore)
    await sqlite.close()

    about = await restore(database, tmp_path / "a" / "memory", tmp_path / "1.tar", ignore, move_files_to_rows)
    assert (about.rows["interaction_memory"], about.memories) == (4, 0)
    assert list((tmp_path / "a" / "memory").iterdir()) == []
    memory = memory_over(database)
    assert await read_all(memory) == MOVED
    await memory.aadd_information("e", "new")
    await back_up(database, tmp_path / "a" / "memory", tmp_path / "2.tar", "1", ignore)

    other = await open_database(postgres.url(), "off")
    await restore(other, tmp_path / "b" / "memory", tmp_path / "2.tar", ignore, move_files_to_rows)
    assert await read_all(memory_over(other)) == {**MOVED, "e": ["new"]}
    await other.close()

    sqlite = await open_database(f"{SQLITE}{tmp_path}/again.db", "off")
    about = await restore(sqlite, tmp_path / "c" / "memory", tmp_path / "2.tar", ignore, move_rows_to_files)
    await sqlite.close()
    assert (about.rows["interaction_memory"], about.memories) == (0, 1)
    found = AgentInteractionMemory(AGENT, tmp_path / "c" / "memory").get_entries()
    assert found == await memory.aget_entries()
