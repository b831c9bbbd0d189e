"""Incidents in the database: stored within limits, without texts unless asked, and deleted with what they are about."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from spade_coreason.domain.texts.error_chain import ErrorChain, describe_error_chain
from spade_coreason.storage import open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backup import back_up, restore
from spade_coreason.storage.incidents import (
    IncidentRepository,
)
from spade_coreason.storage.records import to_micros
from spade_coreason.storage.repository import AgentRepository, list_stored_agents
from tests.support.databases import SQLITE, read_rows
from tests.support.records import AGENT, ALICE, BOB, NOW, OTHER_AGENT, new_conversation, open_repository, store_turn


def make_chain(text: str = "what alice said") -> ErrorChain:
    try:
        raise ValueError(text)
    except ValueError as error:
        return describe_error_chain(error)


def numbers(database_url: str) -> list[str]:
    return [row["incident"] for row in read_rows(database_url, "incidents")]


async def test_an_incident_is_found_by_its_number_and_its_text_only_if_asked(database: Database) -> None:
    chain = make_chain("a \x00 NUL, half a pair \ud83d and \N{UMBRELLA}")
    repository = await open_repository(database, AGENT)
    await repository.incidents.record("1f2e3d4c", ALICE, "t", NOW, chain)
    await AgentRepository(database, OTHER_AGENT).incidents.record("00000000", BOB, None, NOW, make_chain())
    [found] = await IncidentRepository(database, "").load_page(incident="1f2e3d4c")
    assert found[1:6] == (AGENT, "1f2e3d4c", ALICE, "t", to_micros(NOW))
    assert found.chain == tuple(replace(error, text="") for error in chain)
    with_texts = await IncidentRepository(database, AGENT).find_with_texts(found.id)
    assert with_texts is not None
    assert (with_texts._replace(texts=""), with_texts.chain) == (found, chain)
    assert await IncidentRepository(database, OTHER_AGENT).find_with_texts(found.id) is None
    assert await IncidentRepository(database, OTHER_AGENT).load_page(incident="1f2e3d4c") == []
    newest = await IncidentRepository(database, "").load_page()
    assert [incident.incident for incident in newest] == ["00000000", "1f2e3d4c"]
    assert await IncidentRepository(database, AGENT).load_page() == [found]
    assert await repository.list_people() == [ALICE]
    assert await list_stored_agents(database) == sorted([AGENT, OTHER_AGENT])


async def test_only_the_newest_of_a_person_and_of_an_agent_are_kept(database: Database, database_url: str) -> None:
    of_agent = IncidentRepository(database, AGENT, max_of_agent=3, max_of_person=2)
    await AgentRepository(database, OTHER_AGENT).incidents.record("other", ALICE, None, NOW, make_chain())
    for number in range(3):
        await of_agent.record(f"alice {number}", ALICE, None, NOW, make_chain())
    assert numbers(database_url) == ["other", "alice 1", "alice 2"]
    for number in range(2):
        await of_agent.record(f"bob {number}", BOB, None, NOW, make_chain())
    assert numbers(database_url) == ["other", "alice 2", "bob 0", "bob 1"]


async def test_incidents_are_deleted_with_their_person_their_conversation_and_by_age(
    database: Database, database_url: str
) -> None:
    repository = await open_repository(database, AGENT)
    record = await store_turn(repository, new_conversation(repository, "t", ALICE))
    for number, person, conversation in [
        ("in t", ALICE, "t"),
        ("before", ALICE, None),
        ("in u", ALICE, "u"),
        ("of bob in t", BOB, "t"),
        ("of bob", BOB, None),
    ]:
        await repository.incidents.record(number, person, conversation, NOW, make_chain())
    await AgentRepository(database, OTHER_AGENT).incidents.record("other", ALICE, "t", NOW, make_chain())
    assert (await repository.delete_conversation(record)).incidents == 2
    assert numbers(database_url) == ["before", "in u", "of bob", "other"]
    assert (await repository.erase_person(ALICE)).incidents == 2
    assert numbers(database_url) == ["of bob", "other"]
    await repository.incidents.delete_older(NOW)
    assert numbers(database_url) == ["of bob", "other"]
    await repository.incidents.delete_older(NOW + timedelta(seconds=1))
    assert numbers(database_url) == ["other"]


async def test_a_backup_has_the_incidents_and_their_numbers_go_on(database_url: str, tmp_path: Path) -> None:
    database = await open_database(database_url, "off")
    await AgentRepository(database, AGENT).incidents.record("first", ALICE, None, NOW, make_chain())
    await back_up(database, tmp_path / "memory", tmp_path / "b.tar", "1", lambda *done: None)
    await database.close()
    stored, restored = read_rows(database_url, "incidents"), f"{SQLITE}{tmp_path}/restored.db"
    database = await open_database(restored, "off")
    await restore(database, tmp_path / "memory", tmp_path / "b.tar", lambda *done: None)
    await database.close()
    assert read_rows(restored, "incidents") == stored
    database = await open_database(restored, "off")
    await AgentRepository(database, AGENT).incidents.record("second", ALICE, None, NOW, make_chain())
    await database.close()
    assert numbers(restored) == ["first", "second"]
