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
