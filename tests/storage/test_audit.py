"""The audit trail: entries that each name the one before, on both databases."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

from spade_coreason import AgentRequest, AgentTester, ResponseHandler, SessionHandle, StoreError, agent
from spade_coreason.contracts import GENESIS_HASH, AuditEntry, Interaction
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.storage import WorkerTerms, open_database
from spade_coreason.storage.audit import AuditVerification
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.health import check_health
from spade_coreason.storage.backup import back_up, restore
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import SQLITE, execute
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, ALICE, BOB, open_repository
from tests.support.servers.postgres import Postgres
from tests.support.wait import eventually

EMPTY = sha256(b"{}").hexdigest()


def entry(resource: str = "it") -> AuditEntry:
    return AuditEntry(actor=AGENT, action="tool.call", resource=resource, outcome="success")


async def trail_of(repository: AgentRepository, entries: int = 5) -> list[AuditEntry]:
    return [
        await repository.audit_trail.append(entry(f"tool {number}"), ALICE if number % 2 else BOB)
        for number in range(1, entries + 1)
    ]


async def test_entries_appended_at_once_are_one_chain(repository: AgentRepository) -> None:
    sealed = await asyncio.gather(*(repository.audit_trail.append(entry(f"tool {number}"), ALICE) for number in range(50)))
    found = await repository.audit_trail.load_newest(100)
    assert [row.number for row in found] == list(range(1, 51))
    assert [AuditEntry.model_validate(row.entry) for row in found] == list(sealed)
    assert sealed[0].previous_hash == GENESIS_HASH
    assert all(later.previous_hash == earlier.integrity_hash for earlier, later in pairwise(sealed))
    assert all(one.is_intact for one in sealed)
    assert await repository.audit_trail.verify() == AuditVerification(50, 0, sealed[-1].integrity_hash, ())
    assert [row.number for row in await repository.audit_trail.load_newest(2)] == [49, 50]


async def test_entries_of_two_workers_at_once_are_one_chain(postgres: Postgres) -> None:
    url = postgres.url()
    async with AsyncExitStack() as stack:
        trails = []
        for name in ("one", "two"):
            database = await open_database(url, "off", terms=WorkerTerms(name, 3600))
            stack.push_async_callback(database.close)
            trails.append((await open_repository(database, AGENT)).audit_trail)
        for number in range(50):
            await asyncio.gather(*(trail.append(entry(f"tool {number}"), ALICE) for trail in trails))
        verified = await trails[0].verify()
        assert (verified.entries, verified.problems) == (100, ())


async def test_a_trail_goes_on_after_a_restart_and_each_agent_has_its_own(
    repository: AgentRepository, database: Database, database_url: str
) -> None:
    await trail_of(repository, 2)
    await database.close()
    again = await open_database(database_url, "off")
    try:
        continued, other = await open_repository(again, AGENT), await open_repository(again, "echo@localhost")
        last = await continued.audit_trail.append(entry(), ALICE)
        assert (await continued.audit_trail.verify())[:3] == (3, 0, last.integrity_hash)
        assert (await other.audit_trail.append(entry(), ALICE)).previous_hash == GENESIS_HASH
        assert (await other.audit_trail.verify()).entries == 1
    finally:
        await again.close()


async def test_a_trail_restored_from_a_backup_is_intact_and_continues(
    repository: AgentRepository, database: Database, tmp_path: Path
) -> None:
    sealed = await trail_of(repository)
    await repository.erase_person(BOB)
    await back_up(database, tmp_path / "none", tmp_path / "b.tar", "1", lambda done, total: None)
    restored = await open_database(f"{SQLITE}{tmp_path}/restored.db", "off")
    try:
        await restore(restored, tmp_path / "memory", tmp_path / "b.tar", lambda done, total: None)
        trail = (await open_repository(restored, AGENT)).audit_trail
        assert await trail.verify(sealed[0].integrity_hash) == await repository.audit_trail.verify()
        assert (await trail.append(entry(), ALICE)).previous_hash == sealed[-1].integrity_hash
        assert (await trail.verify())[:2] == (6, 2)
    finally:
        await restored.close()


@pytest.mark.parametrize(
    ("tampering", "problems"),
    [
        ("UPDATE audit SET entry = replace(entry, 'tool 3', 'tool 9') WHERE number = 3", ["entry 3 was changed"]),
        ("UPDATE audit SET entry = replace(entry, '{', '{\"more\":1,') WHERE number = 3", ["entry 3 was changed"]),
        ("UPDATE audit SET entry = '[' WHERE number = 3", ["entry 3 was changed"]),
        ('UPDATE audit SET entry = \'{"actor": "\\ud800"}\' WHERE number = 3', ["entry 3 was changed"]),
        (f"UPDATE audit SET entry = '{'[' * 10_000}' WHERE number = 3", ["entry 3 was changed"]),
        (
            f"UPDATE audit SET entry = '{{\"integrity_hash\": \"{EMPTY}\"}}', integrity_hash = '{EMPTY}' WHERE number = 3",
            [f"entry {number} does not follow the one before it" for number in (3, 4)],
        ),
        ("DELETE FROM audit WHERE number = 1", ["entry 1 is missing"]),
        ("DELETE FROM audit WHERE number IN (2, 3)", ["entries 2 to 3 are missing"]),
        ("DELETE FROM audit WHERE number >= 4", ["entries 4 to 5 are missing"]),
        ("DELETE FROM audit", ["entries 1 to 5 are missing"]),
        ("DELETE FROM audit_heads", ["the trail ends with entry 5, which does not match its recorded end (entry 0)"]),
        (
            "DELETE FROM audit WHERE number = 2; UPDATE audit SET number = number - 1 WHERE number = 3;"
            " UPDATE audit SET number = number - 1 WHERE number = 4; UPDATE audit SET number = number - 1 WHERE number = 5;"
            " UPDATE audit_heads SET number = 4",
            ["entry 2 does not follow the one before it"],
        ),
        (
            "UPDATE audit SET number = 9 WHERE number = 2; UPDATE audit SET number = 2 WHERE number = 3;"
            " UPDATE audit SET number = 3 WHERE number = 9",
            [f"entry {number} does not follow the one before it" for number in (2, 3, 4)],
        ),
    ],
)
async def test_changed_missing_and_moved_entries_are_found(
    repository: AgentRepository, database: Database, database_url: str, tampering: str, problems: list[str]
) -> None:
    await trail_of(repository)
    assert (await repository.audit_trail.verify()).problems == ()
    for statement in tampering.split("; "):
        execute(database_url, statement)
    assert list((await repository.audit_trail.verify()).problems) == problems
    assert list((await check_health(database)).problems) == [f"audit trail of {AGENT}: {problem}" for problem in problems]


async def test_a_replaced_trail_is_found_by_a_hash_of_the_old_one(repository: AgentRepository, database_url: str) -> None:
    kept = (await trail_of(repository, 3))[1].integrity_hash
    assert (await repository.audit_trail.verify(kept)).problems == ()
    for table in ("audit", "audit_heads"):
        execute(database_url, f"DELETE FROM {table}")
    await trail_of(repository, 3)
    assert (await repository.audit_trail.verify()).problems == ()
    assert (await repository.audit_trail.verify(kept)).problems == (f"no entry has the hash {kept}",)


async def test_only_hashes_of_an_erased_person_stay_and_the_rest_is_verified(
    repository: AgentRepository, database_url: str
) -> None:
    sealed = await trail_of(repository)
    assert set(await repository.list_people()) == {ALICE, BOB}
    assert (await repository.erase_person(ALICE)).audit_entries == 3
    assert await repository.list_people() == [BOB]
    assert await repository.audit_trail.verify() == AuditVerification(5, 3, sealed[-1].integrity_hash, ())
    left = execute(database_url, "SELECT number, person, entry FROM audit ORDER BY number")
    assert [(row["number"], row["person"]) for row in left] == [(1, ""), (2, BOB), (3, ""), (4, BOB), (5, "")]
    assert [row["entry"] is None for row in left] == [True, False, True, False, True]
    await repository.audit_trail.append(entry(), BOB)
    execute(database_url, "UPDATE audit SET entry = replace(entry, 'tool 4', 'tool 9') WHERE number = 4")
    assert (await repository.audit_trail.verify()).problems == ("entry 4 was changed",)


async def test_an_audit_entry_is_in_the_trail_however_its_turn_ends(database_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("OSError: broken")
    audited: list[str] = []

    @agent
    async def auditing(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.audit("me\ud800", "delete", request.payload["query"], False)
        audited.append(request.payload["query"])
        if request.payload["query"] == "fail":
            raise OSError("broken")
        if request.payload["query"] == "wait":
            await asyncio.Event().wait()

    async with AgentTester(auditing, user=ALICE, database=database_url) as t:
        for query in ("be well", "fail", "wait"):
            t.send_stanza(f"<message to='{t.jid}' id='{query}' type='chat'><body>{query}</body></message>", user=ALICE)
            await eventually(lambda query=query: query in audited)  # type: ignore[misc]  # mypy knows no type of a lambda with a default
        retract = "<retract xmlns='urn:xmpp:message-retract:1' id='wait'/>"
        t.send_stanza(f"<message to='{t.jid}' id='r' type='chat'>{retract}</message>", user=ALICE)
        await t.settled()
        trail = t.runners[t.jid].repository.audit_trail
        entries = [AuditEntry.model_validate(row.entry) for row in await trail.load_newest(9)]
        assert [(one.resource, one.actor, one.outcome) for one in entries] == [
            (query, "me?", "failure") for query in ("be well", "fail", "wait")
        ]
        assert {row.person for row in await trail.load_newest(9)} == {ALICE}
        assert (await trail.verify()).problems == ()
        [first, _] = [Interaction.model_validate_json(text) for text in await _stored_turns(t)]
        assert first.events[0]["data"] == entries[0].dump()


async def _stored_turns(t: AgentTester) -> list[str]:
    repository = t.runners[t.jid].repository
    [row] = await repository.list_conversations()
    return await repository.turns.load_history(row.id, 9)


async def test_an_agent_that_cannot_audit_does_not_continue(database_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("audit")
    went_on = []

    @agent
    async def auditing(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.audit("me", "delete", "it", True)
        went_on.append(request)

    async with AgentTester(auditing, database=database_url) as t:
        execute(database_url, "DROP TABLE audit")
        with pytest.raises(StoreError, match="audit"):
            await t.runners[t.jid].repository.audit_trail.append(entry(), ALICE)
        with pytest.raises(PeerFailedError, match="I cannot read or write my memory"):
            await t.ask("x")
        assert went_on == []
        assert execute(database_url, "SELECT * FROM audit_heads") == []
