"""The version before the newest migration runs on the schema of today, and today's version goes on with what it stored."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from sqlalchemy import make_url

from spade_coreason.storage import check_health, open_database, schema
from spade_coreason.storage.repository import AgentRepository
from tests.support.program import clean_environment
from tests.support.records import ALICE, BOB, new_conversation, open_repository, store_turn
from tests.support.stored_questions import store_question, take_answer
from tests.support.version_before import unpack_version_before
from tests.support.wait import TIMEOUT_S

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


async def test_the_version_before_runs_on_the_schema_of_today(database_url: str, tmp_path: Path) -> None:
    unpack_version_before(tmp_path, schema.OLDEST_REVISIONS[make_url(database_url).get_backend_name()])
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
