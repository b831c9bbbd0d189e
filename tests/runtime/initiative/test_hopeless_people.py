"""A person whose server returns everything for a week, beside people whose servers take it: nobody waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import ColumnElement, func, select

from spade_coreason.domain.initiative.notifications import NotificationPolicy
from spade_coreason.domain.messages import Bounce
from spade_coreason.runtime import AgentNetwork, OutboundMessage
from spade_coreason.runtime.initiative.notifications import dump_blocks
from spade_coreason.storage.schema import tasks
from spade_coreason.testing import Policy, Rules
from spade_coreason.xmpp.transport import XmppTransport
from tests.support.clock import Clock
from tests.support.databases import SQLITE
from tests.support.long_forms import short_and_long_in_release
from tests.support.records import AGENT
from tests.support.runner import RunnerHarness
from tests.support.transports import STANZA_BYTES
from tests.support.wait import TIMEOUT_S

HOPELESS = "hopeless@down.example"
TRIES = 5


class HalfWorkingHarness(RunnerHarness):
    """A runner over a network that has every message a moment later, and then returns those to one person."""

    def make_network(self) -> AgentNetwork:
        return XmppTransport(AGENT, self._take, STANZA_BYTES).network

    def _take(self, messages: Sequence[OutboundMessage]) -> None:
        for message in messages:
            asyncio.get_running_loop().call_soon(self._answer, message)

    def _answer(self, message: OutboundMessage) -> None:
        message.acknowledge()
        if message.recipient == HOPELESS:
            bounce = Bounce(
                HOPELESS, message.content.partition(" id='")[2].partition("'")[0], "remote-server-timeout", "", True
            )
            self.runner.notifier.receive_bounce(bounce)

    async def notify(self, person: str) -> None:
        await self.runner.control.notifications.notify(str(uuid4()), person, None, dump_blocks("hello"), "")

    async def count(self, *conditions: ColumnElement[bool]) -> int:
        query = select(func.count()).select_from(tasks).where(*conditions)
        return await self.database.read(lambda connection: connection.execute(query).scalar_one())


@pytest.mark.timeout(600)
@short_and_long_in_release("HOPELESS_DAYS", 1, 7)
async def test_a_person_whose_server_is_down_for_days_delays_no_other(tmp_path: Path, count: int) -> None:
    clock, row, hours, people_count = Clock(), tasks.c, 24 * count, 24 if count == 1 else 1000
    policy = Policy(rules=Rules(max_interactions=0), notifications=NotificationPolicy(per_day=hours))
    others, delayed = row.owner != HOPELESS, row.changed_at != row.created_at
    async with HalfWorkingHarness(f"{SQLITE}{tmp_path / 'platform.db'}", policy=policy, clock=clock) as harness:

        async def wait_for(number: int, *conditions: ColumnElement[bool]) -> None:
            async with asyncio.timeout(TIMEOUT_S):
                while await harness.count(*conditions) != number:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.001)

        async def pass_an_hour() -> None:
            for _ in range(4):
                clock.advance(minutes=15)
                harness.runner.task_clock.check()
                # All that is due comes back before the time goes on.
                await wait_for(0, row.state == "waiting", row.due_at <= int(clock.now.timestamp() * 1e6))

        sent = 0
        for hour in range(hours):
            people = [f"p{number}@localhost" for number in range(hour % 24, people_count, 24)]  # each once a day
            for person in (HOPELESS, *people):
                await harness.notify(person)
            sent += len(people)
            await wait_for(sent, others, row.state == "sent")
            await pass_an_hour()
        assert await harness.count(others, delayed) == 0
        for _ in range(4):
            await pass_an_hour()
        assert await harness.count(row.owner == HOPELESS, row.state == "failed", row.attempts == TRIES) == hours
        assert await harness.count() == sent + hours
