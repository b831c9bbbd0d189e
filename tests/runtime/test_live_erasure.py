"""Deletion while the agent runs: nothing that is at work stores again what was deleted."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from spade_coreason import AgentTester
from spade_coreason.agents.echo import EchoAgent
from spade_coreason.testing import Policy, Rules
from tests.support.clock import Clock

AGENT = "agent@localhost"
PEOPLE = [f"person{number}@localhost" for number in range(30)]


async def test_an_expiry_does_not_store_a_person_again_who_is_deleted_meanwhile() -> None:
    clock = Clock()
    async with AgentTester(EchoAgent, clock=clock, policy=Policy(rules=Rules(timeout=timedelta(hours=1)))) as t:
        for person in PEOPLE:
            await t.say("hello", user=person)
        await t.restart()  # none of the conversations is in memory
        clock.advance(hours=2)
        last = PEOPLE[-1]
        await asyncio.gather(t.runners[AGENT].expire_idle(), t.runners[AGENT].control.erase_person(last))
        repository = t.runners[AGENT].repository
        assert last not in await repository.list_people()
        [record] = await repository.list_conversations(owner=PEOPLE[0])
        assert record.status.state == "timeout"


async def test_a_request_that_waits_for_a_start_does_not_run_after_its_person_was_deleted() -> None:
    async with AgentTester(EchoAgent) as t:
        person, runner = PEOPLE[0], t.runners[AGENT]
        await runner.drain(0)
        t.send("a secret", user=person)
        await t.delivered()
        await runner.control.erase_person(person)
        await runner.open()
        await t.settled()
        assert t.unread(user=person) == []
        assert await runner.repository.list_people() == []
