"""Ten thousand schedules and ten thousand notifications that wait cost a running agent nothing until they are due."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, event, func, insert, select

from spade_coreason.runtime import AgentNetwork, OutboundMessage
from spade_coreason.runtime.initiative.notifications import dump_blocks
from spade_coreason.storage import AgentRepository
from spade_coreason.storage.records import to_micros
from spade_coreason.storage.schema import tasks
from spade_coreason.testing import Policy
from spade_coreason.xmpp.transport import XmppTransport
from tests.support.databases import open_without_sync
from tests.support.records import AGENT
from tests.support.runner import RunnerHarness
from tests.support.stored_initiative import make_reminder
from tests.support.wait import eventually

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
DUE = NOW + timedelta(days=10)


async def fill(url: str, count: int) -> None:
    """Store so many schedules and notifications of as many people, all due in ten days."""
    database = await open_without_sync(url)
    repository = AgentRepository(database, AGENT)
    content, due = dump_blocks("hello"), to_micros(DUE)
    waiting: list[dict[str, Any]] = []
    for number in range(count):
        if number % 1000 == 0:  # so that it can take further row ids
            await database.write(lambda connection: None)
        person, ident = f"p{number}@localhost", f"00000000-0000-4000-8000-{number:012x}"
        made = repository.notifications.make_notification(ident, person, None, "", content, NOW)
        waiting.append(made._replace(due_at=due, wake_at=due)._asdict())
        waiting.append(make_reminder(repository, person, DUE, ident)._asdict())
    await database.write(lambda connection: connection.execute(insert(tasks), waiting) and None)
    await database.close()


class Answering:
    """An agent that answers each request."""

    def __init__(self) -> None:
        from spade_coreason import AgentDefinition

        self.manifest = AgentDefinition.simple("answering")
        self.runs = 0

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        self.runs += 1
        await response.markdown("yes")


class AcknowledgingHarness(RunnerHarness):
    """A runner over a network that has each message a moment after it was sent."""

    def make_network(self) -> AgentNetwork:
        def send(messages: Sequence[OutboundMessage]) -> None:
            self.sent += [message.content for message in messages]
            for message in messages:
                asyncio.get_running_loop().call_soon(message.acknowledge)

        return XmppTransport(AGENT, send, 65_536).network


class Opening(NamedTuple):
    """An agent that was opened: the traced bytes that it holds, its wake-ups, and the work of SQLite for its start.

    `read_instructions` are those of SQLite's virtual machine for SELECT statements. Each row that is read takes some.
    """

    bytes_held: int
    wake_ups: int
    statements: int
    read_instructions: int


async def measure_open(url: str) -> Opening:
    """Open an agent, and ask it once."""
    statements, read_instructions = 0, 0
    of_thread = threading.local()

    def count_statement(connection: object, cursor: object, statement: str, *_: object) -> None:
        nonlocal statements
        statements += 1

    def note_statement(statement: str) -> None:
        of_thread.is_read = statement.startswith("SELECT")  # COMMIT too comes here, and is no read

    def count_instruction() -> int:
        nonlocal read_instructions
        read_instructions += getattr(of_thread, "is_read", False)
        return 0

    def count_instructions_of(connection: Any, _: object) -> None:
        connection.set_trace_callback(note_statement)
        connection.set_progress_handler(count_instruction, 1)

    gc.collect()
    tracemalloc.start()
    event.listen(Engine, "before_cursor_execute", count_statement)
    event.listen(Engine, "connect", count_instructions_of)
    try:
        async with RunnerHarness(url, Answering(), clock=lambda: NOW) as harness:
            started = statements, read_instructions
            await harness.receive_and_wait("hello")
            gc.collect()
            return Opening(tracemalloc.get_traced_memory()[0], harness.runner.task_clock.wake_ups, *started)
    finally:
        event.remove(Engine, "before_cursor_execute", count_statement)
        event.remove(Engine, "connect", count_instructions_of)
        tracemalloc.stop()


async def test_what_waits_is_not_in_memory_and_wakes_nothing(tmp_path: Path) -> None:
    opened: dict[int, Opening] = {}
    for count in (0, 100, 10_000):
        url = f"sqlite+aiosqlite:///{tmp_path}/{count}.db"
        await fill(url, count) if count else None
        await measure_open(url)  # what the first run imports and compiles
        opened[count] = await measure_open(url)
        assert opened[count].wake_ups == 0
    none, few, many = (opened[count] for count in (0, 100, 10_000))
    assert many.bytes_held < few.bytes_held * 1.03
    assert many.statements == few.statements == none.statements
    assert 0 < many.read_instructions < few.read_instructions * 1.1


@pytest.mark.release
@pytest.mark.timeout(300)
async def test_ten_thousand_that_are_due_at_once_are_handed_over_in_small_parts(tmp_path: Path) -> None:
    url, now, count = f"sqlite+aiosqlite:///{tmp_path}/due.db", [NOW], 10_000
    await fill(url, count)
    agent = Answering()
    async with AcknowledgingHarness(url, agent, Policy(), clock=lambda: now[0]) as harness:
        clock = harness.runner.task_clock
        most_in_flight = 0
        now[0] = DUE
        clock.check()

        def is_done() -> bool:
            nonlocal most_in_flight
            most_in_flight = max(most_in_flight, len(clock.tasks.in_flight))
            return agent.runs >= count and len(harness.sent) >= 2 * count

        await eventually(is_done, timeout_s=200)
        await harness.runner.mailboxes.wait_until_idle()
        await asyncio.sleep(0)
        assert most_in_flight <= 1000
        assert agent.runs == count
        left = await harness.database.read(
            lambda c: c.scalar(select(func.count()).select_from(tasks).where(tasks.c.kind == "schedule"))
        )
        assert left == 0
        # A look for every hundred, and some for what became of notifications.
        assert clock.wake_ups <= 4 * count / 100
