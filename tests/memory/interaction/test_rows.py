"""Interaction memory in a table of PostgreSQL: when it is stored, what is read, and how it passes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Connection, event

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, AgentTester, ResponseHandler, SessionHandle
from spade_coreason.exceptions import MemoryFullError, PeerFailedError, StoreError
from spade_coreason.memory import CURRENT_DEFERRED_SYNCS, DeferredSyncs, MemoryLimits
from spade_coreason.memory.interaction.rows import MemoryRows
from spade_coreason.storage import Database, check_health, open_database
from spade_coreason.storage.backends.group_commit import StoreTimings
from spade_coreason.storage.interaction_memory import _load_rows
from tests.support.databases import WriterGate, execute
from tests.support.errors import ExpectedErrors
from tests.support.memories import AGENT, memory_over
from tests.support.servers.postgres import Postgres
from tests.support.wait import eventually

READ = "SELECT conversation_id, entry::json->>'content' AS content FROM interaction_memory ORDER BY id"


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url()


@pytest.fixture
def gate() -> WriterGate:
    return WriterGate()


@pytest.fixture
async def database(url: str, gate: WriterGate) -> AsyncIterator[Database]:
    database = await open_database(url, "off", writer_hook=gate, timings=StoreTimings(retry_s=0.1))
    yield database
    await database.close()


def stored(url: str) -> list[str]:
    """Return what another program finds."""
    return [row["content"] for row in execute(url, READ)]


# When it is stored


async def test_an_awaited_change_is_durable_when_it_returns(url: str, database: Database) -> None:
    memory = memory_over(database)
    await memory.aadd_information("c", "x")
    assert stored(url) == ["x"]
    await asyncio.to_thread(memory.add_information, "c", "y")
    assert stored(url) == ["x", "y"]
    assert await memory.aremove_information("c", "x") == 1
    assert stored(url) == ["y"]
    assert await asyncio.to_thread(memory.clear_conversation, "c")
    assert stored(url) == []


async def test_a_change_without_await_is_seen_at_once_and_stored_by_a_settle(
    url: str, database: Database, gate: WriterGate
) -> None:
    memory = memory_over(database)
    await memory.aadd_information("c", "stored")
    with gate.hold_batches():
        memory.add_information("d", "new")
        memory.add_information("c", "newer")
        memory.add_information("e", "removed")
        assert memory.remove_information("e", "removed") == 1
        assert memory.get_information("c") == ["stored", "newer"]
        assert await memory.aget_information("c") == ["stored", "newer"]
        assert memory.get_all_conversations() == await memory.aget_all_conversations() == ["c", "d"]
        assert memory.clear_conversation("c")
        assert not memory.clear_conversation("c")
        assert memory.get_information("c") == await memory.aget_information("c") == []
        memory.add_information("c", "after")
        assert memory.get_information("c") == ["after"]
        assert memory.get_all_conversations() == ["d", "c"]
        assert stored(url) == ["stored"]
    await memory.asettle()
    assert stored(url) == ["new", "after"]
    assert memory.get_all_conversations() == ["d", "c"]


async def test_what_becomes_durable_during_a_read_is_in_it(url: str, database: Database, gate: WriterGate) -> None:
    memory = memory_over(database)
    for number in range(30):
        memory.add_information("c", str(number))
        readings = [asyncio.create_task(memory.aget_information("c")) for _ in range(3)]
        for found in await asyncio.gather(*readings):
            assert found == [str(n) for n in range(number + 1)]


async def test_a_plain_addition_leaves_the_awaited_ones_that_wait_to_their_own_write(
    url: str, database: Database, gate: WriterGate
) -> None:
    memory = memory_over(database)
    with gate.hold_batches():
        waiting = asyncio.create_task(memory.aadd_information("c", "waits"))
        await asyncio.sleep(0)
        memory.add_information("c", "plain")
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
    await waiting
    await memory.asettle()
    assert sorted(stored(url)) == ["plain", "waits"]


class WorkAgent:
    """Run the test's function in each turn."""

    manifest = AgentDefinition.simple("agent")

    def __init__(self, memory: AgentInteractionMemory, work: Callable[[AgentInteractionMemory], Awaitable[None]]) -> None:
        self.memory = memory
        self.work = work

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await self.work(self.memory)
        await response.markdown(", ".join(self.memory.get_information("c")))


async def test_what_a_turn_adds_is_stored_before_its_answer(url: str) -> None:
    async def work(memory: AgentInteractionMemory) -> None:
        memory.add_information("c", "plain")
        await memory.aadd_information("c", "awaited")
        await asyncio.to_thread(memory.add_information, "c", "in a thread")
        memory.add_information("other", "to remove")
        await memory.asettle()
        memory.clear_conversation("other")

    async with AgentTester(WorkAgent, options={"work": work}, database=url) as t:
        rows: list[list[str]] = []
        database = t.runners[t.jid].repository.database
        submit = database.writes.submit

        def spy(*args: Any, **options: Any) -> Any:
            if options.get("is_turn_end"):
                rows.append(stored(url))
            return submit(*args, **options)

        database.writes.submit = spy  # type: ignore[method-assign]  # the moment in which the end of the turn is stored
        assert (await t.ask("work")).text == "plain, awaited, in a thread"
        assert rows == [["plain", "awaited", "in a thread"]]


async def test_a_turn_whose_memory_the_database_refuses_is_not_answered_as_finished(
    url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("is not stored yet", "incident")

    async def work(memory: AgentInteractionMemory) -> None:
        if not memory.get_information("c"):
            execute(url, "ALTER TABLE interaction_memory ADD CONSTRAINT no CHECK (entry = '')")
        memory.add_information("c", "x")

    async with AgentTester(WorkAgent, options={"work": work}, database=url) as t:
        with pytest.raises(PeerFailedError, match=r"I cannot read or write my memory, so this is not stored"):
            await t.ask("work")
        assert stored(url) == []
        execute(url, "ALTER TABLE interaction_memory DROP CONSTRAINT no")
        # The next turn stores what was seen as added, with its own.
        assert (await t.ask("work")).text == "x, x"
        assert stored(url) == ["x", "x"]


async def test_an_awaited_change_that_fails_is_gone(url: str, database: Database) -> None:
    memory = memory_over(database)
    await memory.aadd_information("c", "before")
    execute(url, "ALTER TABLE interaction_memory ADD CONSTRAINT no CHECK (entry = '') NOT VALID")
    with pytest.raises(StoreError, match="violates check constraint"):
        await memory.aadd_information("c", "x")
    assert await memory.aget_information("c") == memory.get_information("c") == ["before"]
    execute(url, "ALTER TABLE interaction_memory DROP CONSTRAINT no")
    await memory.aadd_information("c", "after")
    assert stored(url) == ["before", "after"]


async def test_a_deferred_change_that_was_stored_after_all_is_not_stored_twice(url: str, database: Database) -> None:
    """Its confirmation may be lost with the connection."""
    memory = memory_over(database)
    memory.add_information("c", "x")
    await memory.asettle()
    store = memory.store
    assert isinstance(store, MemoryRows)
    memory.add_information("c", "y")
    [change] = store._changes
    await change.commit
    change.commit.is_stored, change.commit.error = False, StoreError("the connection was lost")
    store._changes.append(change)
    await memory.asettle()
    assert stored(url) == ["x", "y"]


# Limits


async def test_a_full_conversation_refuses_plain_additions_too_and_knows_what_is_stored(database: Database) -> None:
    limits = MemoryLimits(conversation_bytes=150)
    await memory_over(database).aadd_information("c", "x" * 20)
    memory = memory_over(database, limits=limits)
    memory.add_information("c", "y" * 20)
    with pytest.raises(MemoryFullError):
        memory.add_information("c", "z")
    with pytest.raises(MemoryFullError):
        await memory.aadd_information("c", "z")
    assert memory.remove_information("c", "x" * 20) == 1
    memory.add_information("c", "there is room again")
    await memory.asettle()
    await memory.aclose()
    with pytest.raises(MemoryFullError):
        await memory.aadd_information("c", "z" * 20)


# Reading


async def test_a_read_of_a_conversation_needs_no_scan(url: str, database: Database) -> None:
    memory = memory_over(database)
    lines = {f"c{n}": bytearray(b'{"content":"%d","timestamp":""}\n' % n) for n in range(3000)}
    assert await memory.amerge(lines) == 3000
    execute(url, "ANALYZE interaction_memory")

    def explain(connection: Connection) -> str:
        statements: list[tuple[str, Any]] = []
        event.listen(connection, "before_cursor_execute", lambda *given: statements.append((given[2], given[3])))
        assert len(_load_rows(connection, AGENT, "c7")) == 1
        return str(connection.exec_driver_sql(f"EXPLAIN {statements[0][0]}", statements[0][1]).all())

    plan = await database.read(explain)
    assert "interaction_memory_by_conversation" in plan
    assert "Seq Scan" not in plan


async def test_agents_and_the_longest_conversation_ids_are_apart(database: Database) -> None:
    one, other = memory_over(database, "one@localhost"), memory_over(database, "other@localhost")
    ids = ["x" * 60_000, "x" * 59_999, "a\\b", 'a"b', "a\nb", "a\x00b", "%", "é"]
    for name in ids:
        await one.aadd_information(name, f"of {name[:9]}{len(name)}")
    assert await one.aget_all_conversations() == one.get_all_conversations() == ids
    for name in ids:
        assert await one.aget_information(name) == one.get_information(name) == [f"of {name[:9]}{len(name)}"]
    assert await other.aget_all_conversations() == []
    assert await other.aclear_conversations(ids) == 0
    assert await one.aclear_conversations(ids) == len(ids)


async def test_a_check_of_the_database_names_an_entry_that_is_damaged(url: str, database: Database) -> None:
    memory = memory_over(database)
    for text in ("a", "b", "c"):
        await memory.aadd_information("c", text)
    assert (await check_health(database)).problems == ()
    [first, second, _] = [row["id"] for row in execute(url, "SELECT id FROM interaction_memory ORDER BY id")]
    execute(url, f"UPDATE interaction_memory SET entry = left(entry, 9) WHERE id = {first}")
    execute(url, f"UPDATE interaction_memory SET entry = '{{}}' WHERE id = {second}")
    assert (await check_health(database)).problems == tuple(
        f"interaction memory of {AGENT}: row {row} is no entry" for row in (first, second)
    )


# The next owner


async def test_after_a_close_the_next_owner_finds_everything_and_the_last_one_reads_what_it_stored(
    url: str, database: Database
) -> None:
    first = memory_over(database)
    first.add_information("c", "by the first")
    await first.aclose()
    await database.close()
    next_database = await open_database(url, "off")
    second = memory_over(next_database)
    assert second.get_information("c") == ["by the first"]
    await second.aadd_information("c", "x")
    await next_database.close()
    again_database = await open_database(url, "off")
    again = memory_over(again_database)
    assert await again.aget_information("c") == ["by the first", "x"]
    await again_database.close()


async def test_two_owners_in_turn_with_the_same_object_see_each_others_changes(database: Database) -> None:
    """As if two processes had it in turn: a close drops what the first knew."""
    limits = MemoryLimits(conversation_bytes=120)
    first, second = memory_over(database, limits=limits), memory_over(database, limits=limits)
    await first.aadd_information("c", "x" * 20)
    await first.aclose()
    assert await second.aremove_information("c", "x" * 20) == 1
    await second.aclose()
    await first.aadd_information("c", "y" * 60)  # with the old size it would be full
    assert await second.aget_information("c") == ["y" * 60]


async def test_a_turn_that_was_cancelled_leaves_nothing_half_done(url: str, database: Database, gate: WriterGate) -> None:
    memory, syncs = memory_over(database), DeferredSyncs()
    with gate.hold_batches():
        task = asyncio.create_task(memory.aclear_conversation("c"))
        adding = asyncio.create_task(memory.aadd_information("c", "x"))
        await asyncio.sleep(0.02)
        adding.cancel()
        await asyncio.wait([adding])
        CURRENT_DEFERRED_SYNCS.set(syncs)
        memory.add_information("d", "y")
        running = asyncio.create_task(syncs.run())
        done, _ = await asyncio.wait([running], timeout=0.05)
        assert not done
    await running
    await task
    assert "y" in stored(url)
    await eventually(lambda: sorted(stored(url)) in (["x", "y"], ["y"]))
