"""The data that a platform left when it was killed: what is open is answered, and what was said is known.

tests/fixtures/data_cb8b72b1/README.md says what is in it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import Platform, load_settings
from spade_coreason.storage import open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.xmpp.servers.prosody import find_prosody
from tests.app.test_older_data import ALICE, KEEPER, PASSWORD, PROJECT, Reader, body, event, receive, run_reader
from tests.support.databases import SQLITE, execute
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require

FIXTURE = PROJECT / "tests" / "fixtures" / "data_cb8b72b1"
NOW = datetime(2026, 11, 26, 10, 49, tzinfo=UTC)
"""Four minutes after it was killed."""
PENDING_QUERIES = ["Wait with this: waiting", "This waits behind it.", "Wait with this of a program: waiting3"]
UNSENT_IDS = [
    "fe978512-7579-5ded-b6d3-f98d3dbea246-0-f2d6d26c",
    "7d4a2db8-4e54-5c9e-b098-b4c8fe5787ae-0-5e7e4801",
    "7d4a2db8-4e54-5c9e-b098-b4c8fe5787ae-1-bd92b666",
]
PENDING_KEYS = [
    "6dc7b849-4b70-5f6c-8378-32eaaea79a1d",
    "247ebfd0-95c2-5440-a4f9-9546db5562bd",
    "e1ee99b5-aa78-5349-89c9-425fa6eb2016",
]
"""The keys of the open requests, with which the ids of their answers begin."""
STANZAS: list[str] = json.loads((FIXTURE / "sent.json").read_text(encoding="utf-8"))
"""All that was sent, in order."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A copy of the data directory."""
    return Path(shutil.copytree(FIXTURE / "data", tmp_path / "data"))


@pytest.fixture
async def database(data: Path) -> AsyncIterator[Database]:
    database = await open_database(f"{SQLITE}{data}/platform.db", "off")
    yield database
    await database.close()


def with_server_id(stanza: str, server_id: str | None) -> str:
    """Put the id that a server's archive has for a message into it."""
    return (
        stanza
        if server_id is None
        else stanza.replace("</message>", f"<stanza-id xmlns='urn:xmpp:sid:0' by='{KEEPER}' id='{server_id}'/></message>")
    )


async def test_what_is_open_is_answered_and_what_was_answered_is_sent_again(database: Database) -> None:
    async with run_reader(database, now=NOW) as (_, reader, sent):
        assert [message.get("id") for message in sent[:3]] == UNSENT_IDS
        assert [body(sent[0]), event(sent[1])["data"]["content"]] == [
            "Kept: Hold this: held",
            "Kept: Hold this of a program: held2",
        ]
        assert sorted(one["query"] for one in reader.seen) == sorted(PENDING_QUERIES)
        assert all(one["redelivered"] for one in reader.seen)
        answered = [message.get("id", "")[:36] for message in sent[3:] if body(message) or event(message)]
        assert set(answered) == set(PENDING_KEYS)
        queries = [one["query"] for one in reader.seen if one["conversation"] == "waits"]
        assert queries == PENDING_QUERIES[:2]
    async with run_reader(database, now=NOW) as (_, reader, sent):
        assert (reader.seen, sent) == ([], [])


async def test_a_copy_is_known_and_the_same_words_of_another_message_are_new(data: Path, database: Database) -> None:
    rows = execute(f"{SQLITE}{data}/platform.db", "SELECT evidence FROM inbox ORDER BY id")
    server_ids = [json.loads(row["evidence"])[0] if row["evidence"] else None for row in rows]
    async with run_reader(database, now=NOW) as (runner, _, _):
        copies = [with_server_id(*one) for one in zip(STANZAS, server_ids, strict=True)]
        assert [await receive(runner, ALICE, copy) for copy in copies] == [False] * len(STANZAS)
        new = with_server_id(STANZAS[0], "another")
        assert [await receive(runner, ALICE, stanza) for stanza in (new, new)] == [True, False]
        origin_id, program = (with_server_id(STANZAS[number], None) for number in (2, 3))
        assert [await receive(runner, ALICE, stanza) for stanza in (origin_id, program)] == [False, False]


@pytest.mark.servers
async def test_a_platform_on_prosody_resumes(data: Path, tmp_path: Path) -> None:
    require("Prosody", find_prosody() is not None)
    configuration = (FIXTURE / "platform.yaml").read_text(encoding="utf-8")
    (tmp_path / "platform.yaml").write_text(
        configuration.replace("make:Keeper", f"{Reader.__module__}:Reader"), encoding="utf-8"
    )
    settings = load_settings(tmp_path / "platform.yaml", PROJECT, {**os.environ, "SPADE_COREASON_DATA_DIR": str(data)})
    async with Platform(settings) as platform:
        server: Any = platform.server
        async with StockClient(ALICE, PASSWORD, server, resource="phone") as alice:
            arrived: set[str] = set()
            while not {*UNSENT_IDS, *PENDING_KEYS} <= arrived:
                message_id = (await alice.message()).xml.get("id", "")
                arrived |= {message_id, message_id[:36]}
            garden = json.loads(await alice.ask("And now?", KEEPER, thread="garden"))
            assert garden["history"] == [[text, f"Kept: {text}"] for text in ("yes", "yes", "The bench is new.")]
            assert garden["told"] == 3
