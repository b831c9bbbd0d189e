"""The version before the newest migration runs on the schema of today, and today's version goes on with what it stored."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

from spade_coreason.storage import check_health, open_database, schema
from spade_coreason.storage.repository import AgentRepository
from tests.support.archives import unpack
from tests.support.program import clean_environment
from tests.support.records import ALICE, BOB, new_conversation, open_repository, store_turn
from tests.support.stored_questions import store_question, take_answer
from tests.support.wait import TIMEOUT_S

ROOT = Path(__file__).parents[2]
SCHEMA_FILE = "spade_coreason/storage/schema.py"
AGENT = "notes@localhost"
PROGRAM = f'''
import asyncio
import sys

import spade_coreason
from spade_coreason import AgentTester
from spade_coreason.agents.notes import NotesAgent
from spade_coreason.storage import schema


async def main() -> None:
    assert spade_coreason.__file__.startswith(sys.argv[1]), spade_coreason.__file__
    for _ in range(2):
        async with AgentTester(NotesAgent, jid="{AGENT}", user="{BOB}", database=sys.argv[2]) as tester:
            await tester.say("my plane leaves on Friday")
            print(schema.REVISION, *await tester.say("when does my plane leave?"))


asyncio.run(main())
'''


def git(*arguments: str) -> bytes:
    """Return the output of git; empty if it fails, such as in a source distribution."""
    try:
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=True, timeout=TIMEOUT_S).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


def find_version_before(oldest: str) -> str:
    """Return the last commit with an older schema than today's, or skip the test with the reason that there is none."""
    if oldest == schema.REVISION:
        pytest.skip(f"no older version may run on schema {schema.REVISION}: it is the oldest itself")
    changes = git("log", "--format=%H", "-G^REVISION = ", "--", SCHEMA_FILE).decode().split()
    for commit in ("HEAD", *(f"{change}^" for change in changes)):
        found = re.search(r'^REVISION = "(\d+)"', git("show", f"{commit}:{SCHEMA_FILE}").decode(), re.M)
        if found is not None and found[1] < schema.REVISION:
            assert found[1] >= oldest
            return commit
    pytest.skip(f"the history of git is not here, or is too short for a version before schema {schema.REVISION}")


async def test_the_version_before_runs_on_the_schema_of_today(database_url: str, tmp_path: Path) -> None:
    commit = find_version_before(schema.OLDEST_REVISIONS[make_url(database_url).get_backend_name()])
    (tmp_path / "version.tar").write_bytes(git("archive", commit, "spade_coreason", "agents"))
    unpack(tmp_path / "version.tar", tmp_path)
    database = await open_database(database_url, "off")
    repository = await open_repository(database)
    await store_turn(repository, new_conversation(repository, "of alice"))
    question = await store_question(repository, ALICE, BOB)
    await database.close()

    command = [sys.executable, "-c", PROGRAM, str(tmp_path), database_url]
    environment = clean_environment({"PYTHONPATH": str(tmp_path)})
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == 2
    assert all(answer[:4] < schema.REVISION and "Friday" in answer for answer in answers), answers

    database = await open_database(database_url, "off")
    health = await check_health(database)
    assert (health.schema, health.problems) == (schema.REVISION, ())
    found = await AgentRepository(database, AGENT).list_conversations()
    assert {record.owner: record.turns for record in found} == {ALICE: 1, BOB: 4}
    assert await take_answer(await open_repository(database), question, BOB) == {"ask": '{"approved": true}'}
    await database.close()
